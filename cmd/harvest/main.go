// Command harvest runs code in isolated sandboxes on this machine.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	helpers(context.Background())
	// stop is never called: a signal just before the exit would otherwise replace the exit code.
	ctx, _ := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	if code, ran := part(ctx); ran {
		os.Exit(code)
	}
	os.Exit(run(ctx, os.Args, os.Stdin, os.Stdout, os.Stderr, os.Environ()))
}

// run runs one command line and returns its exit code. The end of ctx acts like an interrupt.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, env []string) int {
	c := newCommands(args[0], stdin, stdout, stderr, env)
	root := c.root()
	root.SetArgs(args[1:])
	return c.Exit(root.ExecuteContext(ctx))
}
