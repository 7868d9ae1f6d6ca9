package keeper

import "os"

// Handover makes the process a keeper, if it was started as one. It then never returns.
func Handover() {
	if len(os.Args) > 0 && os.Args[0] == Name {
		os.Exit(Main())
	}
}
