package main

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/agents"
	"github.com/RelevanceAI/harvest/internal/cli/files"
	"github.com/RelevanceAI/harvest/internal/cli/images"
	"github.com/RelevanceAI/harvest/internal/cli/repos"
	"github.com/RelevanceAI/harvest/internal/cli/sandboxes"
	"github.com/RelevanceAI/harvest/internal/cli/schedules"
	"github.com/RelevanceAI/harvest/internal/cli/secrets"
	"github.com/RelevanceAI/harvest/internal/cli/ssh"
)

// commands makes the commands of this package.
type commands struct{ *cli.CLI }

// newCommands returns the commands of one command line. They start the server that they need.
func newCommands(program string, stdin io.Reader, stdout, stderr io.Writer, env []string) commands {
	c := commands{cli.New(program, stdin, stdout, stderr, env)}
	c.Start = c.ensureServer
	return c
}

// root returns the tree of commands.
func (c commands) root() *cobra.Command {
	root := cli.Group(&cobra.Command{
		Use:   "harvest",
		Short: "Run code in isolated sandboxes on this machine",
		Long: `Harvest runs code and commands in isolated sandboxes on this machine. It works without configuration.
The first command that needs a server starts one.`,
		Example: `  harvest run --code 'print(6*7)'
  harvest run script.py input.txt
  harvest run -it -- bash
  harvest doctor`,
	})
	root.SilenceErrors, root.SilenceUsage = true, true
	root.SetIn(c.In)
	root.SetOut(c.Out)
	root.SetErr(c.Err)
	root.SetHelpTemplate(root.HelpTemplate() + cli.ExitCodesHelp)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return cli.Usage(cmd, "%s", err.Error()) })
	flags := root.PersistentFlags()
	flags.StringVar(&c.Data, "data", "", "data directory (environment: HARVEST_DATA)")
	flags.StringVar(&c.Engine, "engine", "", "engine, if this command starts the server: "+strings.Join(config.Engines,
		", ")+" (environment: HARVEST_ENGINE)")
	flags.StringVar(&c.ConfigFile, "config", "", "configuration file (environment: HARVEST_CONFIG)")
	flags.BoolVarP(&c.Quiet, "quiet", "q", false, "no progress and no hints")
	// Suggestions for unknown commands prefer those that come first.
	root.AddCommand(sandboxes.Commands(c.CLI)...)
	root.AddCommand(files.Volume(c.CLI), images.Command(c.CLI, c.contextOf), repos.Command(c.CLI),
		secrets.Command(c.CLI), schedules.Command(c.CLI), c.keyCommand(), c.modalCommand(), agents.Command(c.CLI),
		agents.Editor(c.CLI), agents.Tools(c.CLI), c.upCommand(), c.downCommand(), c.backupCommand(),
		c.ofServer(c.doctorCommand()), c.configCommand(), c.versionCommand())
	root.AddCommand(secrets.Logins(c.CLI)...)
	root.AddCommand(agents.Sessions(c.CLI)...)
	root.AddCommand(ssh.Commands(c.CLI)...)
	root.AddCommand(manCommands()...)
	return root
}
