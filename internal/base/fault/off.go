//go:build !harvest_faults

package fault

// Point does nothing.
func Point(string) {}
