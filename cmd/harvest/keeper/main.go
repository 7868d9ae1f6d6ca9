// Command keeper is what of Harvest each sandbox needs: the process that keeps it, and nothing else. The program harvest brings it along
// (package inner), since processes of it are smaller and begin sooner than processes of all of Harvest. gVisor is not in it but in command
// sentry, and what runs inside sandboxes is in command tools.
package main

import (
	"fmt"
	"os"

	"github.com/RelevanceAI/harvest/engine/gvisor/keeper"
)

func main() {
	keeper.Handover()
	fmt.Fprintln(os.Stderr, "harvest starts this program by itself; run harvest")
	os.Exit(2)
}
