// Command tools contains the parts of Harvest that run inside sandboxes, on this machine and at Modal. The
// program harvest embeds it beside keeper (package programs), which is smaller without it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/RelevanceAI/harvest/internal/app/programs/own"
	"github.com/RelevanceAI/harvest/internal/engine/container/pid1"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/tool"
	"github.com/RelevanceAI/harvest/internal/engine/modal/inside"
)

func main() {
	inside.Main(context.Background())
	tool.Handover()
	pid1.Handover()
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
