// Command s3 is the embedded S3 server. The program harvest embeds it (package programs) and starts it if one is
// configured. Linked into harvest, it would cost 20 MiB, and 10 ms in every command line.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/RelevanceAI/harvest/internal/s3/embedded/serve"
)

func main() {
	serve.Main(context.Background())
	fmt.Fprintln(os.Stderr, "harvest starts this program by itself; run harvest")
	os.Exit(2)
}
