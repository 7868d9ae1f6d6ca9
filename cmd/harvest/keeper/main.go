// Command keeper is what of Harvest each sandbox needs: the process that keeps it, and the parts that run inside. The program harvest
// brings it along (package inner), since processes of it are smaller and begin sooner than processes of all of Harvest. gVisor is not in it
// but in command sentry.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/RelevanceAI/harvest/cmd/harvest/own"
	"github.com/RelevanceAI/harvest/engine/gvisor/keeper"
	"github.com/RelevanceAI/harvest/engine/modal/inside"
)

func main() {
	inside.Main(context.Background())
	keeper.Handover()
	program := own.Programs[os.Args[0]]
	if program == nil {
		fmt.Fprintln(os.Stderr, "harvest starts this program by itself; run harvest")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	code := program(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}
