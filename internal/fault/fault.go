// Package fault lets tests kill the server at points that have a name, to prove that the next one finds its way from there.
//
// In an ordinary binary a point is nothing at all: only one that is built with the tag harvest_faults, as testenv.FaultBinary
// builds it, looks for the variable HARVEST_FAULT and dies, as by kill -9, at the point of that name.
package fault
