// Command sentry is gVisor, with what of Harvest runs in its processes. The program harvest brings it along beside keeper (package inner).
package main

import (
	"fmt"
	"os"

	"github.com/RelevanceAI/harvest/engine/gvisor/sentry"
)

func main() {
	sentry.Main()
	fmt.Fprintln(os.Stderr, "harvest starts this program by itself; run harvest")
	os.Exit(2)
}
