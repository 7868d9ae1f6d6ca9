// Command runsc is gVisor's own command line and nothing else, of the version that Harvest has inside: the peer of the same name.
package main

import "gvisor.dev/gvisor/runsc/cli/maincli"

func main() { maincli.Main() }
