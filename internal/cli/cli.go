// Package cli is the base of commands: flags, formats of output, exit codes, progress, and the connection to a server.
package cli

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// CLI is the state shared by all commands.
type CLI struct {
	Program string // argv[0]
	In      io.Reader
	Out     io.Writer
	Err     io.Writer
	Environ []string

	// Global flags.
	Data       string
	ConfigFile string
	Engine     string
	Quiet      bool

	// Start starts the server of the data directory, and returns when it answers.
	Start func(ctx context.Context, cfg config.Config, server *client.Client) error

	Format  string // of -o, once a command runs
	command string // below the root, once it runs
}

// New returns the state of one command line. Its field Start is still nil.
func New(program string, stdin io.Reader, stdout, stderr io.Writer, env []string) *CLI {
	return &CLI{Program: program, In: stdin, Out: stdout, Err: stderr, Environ: env}
}

// Env returns an environment variable, "" if it is not set.
func (c *CLI) Env(name string) string {
	value, _ := c.LookupEnv(name)
	return value
}

// LookupEnv returns an environment variable, and whether it is set.
func (c *CLI) LookupEnv(name string) (string, bool) {
	for i := len(c.Environ) - 1; i >= 0; i-- {
		if value, ok := strings.CutPrefix(c.Environ[i], name+"="); ok {
			return value, true
		}
	}
	return "", false
}

// Config returns the effective configuration.
func (c *CLI) Config(more ...config.Setting) (config.Config, error) {
	var flags []config.Setting
	if c.Data != "" {
		dir, err := filepath.Abs(c.Data)
		if err != nil {
			return config.Config{}, errors.Explainf(err, errors.Invalid,
				"cannot determine the data directory %q", c.Data)
		}
		flags = append(flags, config.Setting{Key: "data", Value: dir, Source: "--data"})
	}
	if c.Engine != "" {
		flags = append(flags, config.Setting{Key: "engine", Value: c.Engine, Source: "--engine"})
	}
	cfg, err := config.Load(c.ConfigFile, c.Env, append(flags, more...)...)
	return cfg, errors.Remedy(err, "correct it; harvest config --help lists the sources of options")
}

// Group makes a command that only has subcommands.
func Group(cmd *cobra.Command, children ...*cobra.Command) *cobra.Command {
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

// Usage is the error for an invalid command line.
func Usage(cmd *cobra.Command, format string, args ...any) error {
	return errors.Remedy(errors.Newf(errors.Invalid, format, args...), "see: %s --help", cmd.CommandPath())
}

// Args checks the number of arguments; most < 0 means no maximum.
func Args(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least || most >= 0 && len(args) > most {
			return Usage(cmd, "%s takes %s", cmd.CommandPath(), what)
		}
		return nil
	}
}

// Terminal returns the file of a stream if it is a terminal.
func Terminal(stream any) (*os.File, bool) {
	f, ok := stream.(*os.File)
	return f, ok && term.IsTerminal(int(f.Fd()))
}

// TerminalSize returns the size of the terminal, if there is one.
func (c *CLI) TerminalSize() (api.Size, bool) {
	for _, stream := range []any{c.In, c.Out, c.Err} {
		if f, ok := Terminal(stream); ok {
			cols, rows, err := term.GetSize(int(f.Fd()))
			return api.Size{Rows: rows, Cols: cols}, err == nil && rows > 0 && cols > 0
		}
	}
	return api.Size{}, false
}
