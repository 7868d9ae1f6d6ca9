// Command harvest runs code in isolated sandboxes on this machine.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/RelevanceAI/harvest/cmd/harvest/own"
	"github.com/RelevanceAI/harvest/engine/fake"
	"github.com/RelevanceAI/harvest/engine/gvisor"
	"github.com/RelevanceAI/harvest/engine/modal/inside"
	"github.com/RelevanceAI/harvest/s3mount"
)

func main() {
	// The binary starts itself as helper processes of the engines. They must not do anything else before.
	inside.Main(context.Background())
	gvisor.Main()
	fake.Main()
	s3mount.Main(context.Background())
	s3Main(context.Background())
	// stop is never called: a signal just before the exit would otherwise replace the exit code.
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code := 0
	if program := own.Programs[os.Args[0]]; program != nil {
		code = program(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	} else {
		code = run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr, os.Environ())
	}
	os.Exit(code)
}

// run runs one command line and returns its exit code. The end of ctx acts like an interrupt.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env []string) int {
	c := newCLI(args[0], stdin, stdout, stderr, env)
	root := c.root()
	root.SetArgs(args[1:])
	return c.exit(root.ExecuteContext(ctx))
}
