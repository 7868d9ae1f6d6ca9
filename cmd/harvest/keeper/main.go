// Command keeper is the process that supervises a sandbox, and nothing else. The program harvest embeds it
// (package programs), because its processes are smaller and start faster than processes of all of Harvest. gVisor
// is in command sentry, and the programs that run inside sandboxes are in command tools.
package main

import (
	"fmt"
	"os"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper"
)

func main() {
	keeper.Handover()
	fmt.Fprintln(os.Stderr, "harvest starts this program by itself; run harvest")
	os.Exit(2)
}
