// Command runsc is only gVisor's own command line, of the version that Harvest contains. It is the peer of the
// same name.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
