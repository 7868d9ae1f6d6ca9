// Command s3 is the embedded S3. The program harvest brings it along (package inner) and starts it where one is configured: linked into
// harvest, it would take 20 MiB and 10 ms of every command line.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/RelevanceAI/harvest/internal/s3server/serve"
)

func main() {
	serve.Main(context.Background())
	fmt.Fprintln(os.Stderr, "harvest starts this program by itself; run harvest")
	os.Exit(2)
}
