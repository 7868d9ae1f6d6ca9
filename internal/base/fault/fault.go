// Package fault lets tests kill the server at named points, to prove that the next server recovers.
//
// In an ordinary binary, a point does nothing. A binary built with the tag harvest_faults, as by
// testenv.FaultBinary, reads the variable HARVEST_FAULT and dies with SIGKILL at the point of that name.
package fault
