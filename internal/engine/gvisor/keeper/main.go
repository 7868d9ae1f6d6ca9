package keeper

import (
	"os"
)

// Handover turns the process into a keeper if it was started as one, and then never returns.
func Handover() {
	if len(os.Args) > 0 && os.Args[0] == Name {
		os.Exit(Main())
	}
}
