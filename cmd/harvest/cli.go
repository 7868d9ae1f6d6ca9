package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/RelevanceAI/harvest/config"
	"github.com/RelevanceAI/harvest/errors"
)

// cli is the state shared by all commands.
type cli struct {
	program string // argv[0]
	in      io.Reader
	out     io.Writer
	err     io.Writer
	environ []string

	// Global flags.
	data       string
	configFile string
	engine     string
	quiet      bool

	format  string // of -o, once a command runs
	command string // below the root, once it runs
}

func newCLI(program string, stdin io.Reader, stdout, stderr io.Writer, env []string) *cli {
	return &cli{program: program, in: stdin, out: stdout, err: stderr, environ: env}
}

// env returns an environment variable, "" if it is not set.
func (c *cli) env(name string) string {
	value, _ := c.lookupEnv(name)
	return value
}

func (c *cli) lookupEnv(name string) (string, bool) {
	for i := len(c.environ) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(c.environ[i], name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// config returns the effective configuration.
func (c *cli) config(more ...config.Setting) (config.Config, error) {
	var flags []config.Setting
	if c.data != "" {
		dir, err := filepath.Abs(c.data)
		if err != nil {
			return config.Config{}, errors.Explainf(err, errors.Invalid,
				"cannot determine the data directory %q", c.data)
		}
		flags = append(flags, config.Setting{Key: "data", Value: dir, Source: "--data"})
	}
	if c.engine != "" {
		flags = append(flags, config.Setting{Key: "engine", Value: c.engine, Source: "--engine"})
	}
	cfg, err := config.Load(c.configFile, c.env, append(flags, more...)...)
	return cfg, errors.Remedy(err, "correct it; harvest config --help lists the sources of options")
}

// root returns the tree of commands.
func (c *cli) root() *cobra.Command {
	root := group(&cobra.Command{
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
	root.SetIn(c.in)
	root.SetOut(c.out)
	root.SetErr(c.err)
	root.SetHelpTemplate(root.HelpTemplate() + exitCodesHelp)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return usage(cmd, "%s", err.Error()) })
	flags := root.PersistentFlags()
	flags.StringVar(&c.data, "data", "", "data directory (environment: HARVEST_DATA)")
	flags.StringVar(&c.engine, "engine", "", "engine, if this command starts the server: "+strings.Join(config.Engines,
		", ")+" (environment: HARVEST_ENGINE)")
	flags.StringVar(&c.configFile, "config", "", "configuration file (environment: HARVEST_CONFIG)")
	flags.BoolVarP(&c.quiet, "quiet", "q", false, "no progress and no hints")
	root.AddCommand(c.runCommand(), c.sandboxCommand(), c.volumeCommand(), c.imageCommand(), c.repoCommand(),
		c.secretCommand(), c.scheduleCommand(), c.keyCommand(), c.modalCommand(), c.agentCommand(), c.upCommand(),
		c.downCommand(),
		c.backupCommand(), c.ofServer(c.doctorCommand()), c.configCommand(), c.versionCommand())
	root.AddCommand(c.sessionCommands()...)
	root.AddCommand(manCommands()...)
	return root
}

// group makes a command that only has subcommands.
func group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(children...)
	cmd.Args = cobra.ArbitraryArgs
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		err := errors.Newf(errors.Invalid, "unknown command %q", cmd.CommandPath()+" "+args[0])
		if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
			return errors.Remedy(err, "did you mean: %s %s", cmd.CommandPath(), near[0])
		}
		return errors.Remedy(err, "see: %s --help", cmd.CommandPath())
	}
	cmd.SuggestionsMinimumDistance = 2
	return cmd
}

// usage is the error for an invalid command line.
func usage(cmd *cobra.Command, format string, args ...any) error {
	return errors.Remedy(errors.Newf(errors.Invalid, format, args...), "see: %s --help", cmd.CommandPath())
}

// count checks the number of arguments; most < 0 means no maximum.
func count(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return usage(cmd, "%s takes %s", cmd.CommandPath(), what)
		}
		return nil
	}
}

// terminal returns the file of a stream if it is a terminal.
func terminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}
