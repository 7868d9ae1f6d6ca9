//go:build linux && (amd64 || arm64) && !clientonly

package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/cmd/harvest/own"
	"github.com/RelevanceAI/harvest/engine/fake"
	"github.com/RelevanceAI/harvest/engine/gvisor"
	"github.com/RelevanceAI/harvest/engine/modal/inside"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3mount"
)

// helpers does not return in the helper processes of the engines, as which the binary starts itself. They must
// not do anything else before.
func helpers() {
	inside.Main(context.Background())
	gvisor.Main()
	fake.Main()
	s3mount.Main(context.Background())
	s3Main(context.Background())
}

// part runs the part of this binary that argv[0] names, if it names one.
func part(ctx context.Context) (code int, ran bool) {
	program := own.Programs[os.Args[0]]
	if program == nil {
		return 0, false
	}
	return program(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr), true
}

// ofServer returns a command that only a program with the server can run. This is one.
func (c *cli) ofServer(cmd *cobra.Command) *cobra.Command { return cmd }

// canServe returns an error if this program has no server, without a look at the data directory.
func canServe() error { return nil }

// serverProgram returns the program to start as the server: this one.
func serverProgram(string) (string, error) {
	program, err := os.Executable()
	return program, errors.Wrapf(err, "find our own program")
}
