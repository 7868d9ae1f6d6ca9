// Command s3server serves a directory as S3: s3server DIR ADDRESS ACCESS-KEY SECRET-KEY. It is the server of
// the row P9. It is a separate program, so that the figures of the clients do not include it.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/RelevanceAI/harvest/internal/s3/embedded/serve"
)

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: s3server DIR ADDRESS ACCESS-KEY SECRET-KEY")
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := serve.Serve(ctx, serve.Config{Dir: os.Args[1], Address: os.Args[2], AccessKey: os.Args[3],
		SecretKey: os.Args[4]})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
