// Command pod is the first process of a sandbox's pod on Kubernetes. The pod's image also has keeper, sentry and tools.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/inside"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "harvest starts this program by itself, in pods of Kubernetes; run harvest")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := inside.Run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "pod:", err)
		os.Exit(1)
	}
}
