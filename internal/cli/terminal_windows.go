package cli

import "os"

// OnResize does nothing: Windows has no signal for a change of the size.
func OnResize(chan<- os.Signal) {}
