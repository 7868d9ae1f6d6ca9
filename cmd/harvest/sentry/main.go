// Command sentry is gVisor, with the parts of Harvest that run in its processes. The program harvest embeds it
// beside keeper (package programs).
package main

import (
	"fmt"
	"os"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/sentry"
)

func main() {
	sentry.Main()
	fmt.Fprintln(os.Stderr, "harvest starts this program by itself; run harvest")
	os.Exit(2)
}
