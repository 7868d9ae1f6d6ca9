//go:build keeper || race

package helpers

// Linked reports whether this program contains the helpers. Here they are embedded programs. Programs with the
// race detector do not contain them, because gVisor does not boot with it, and takes minutes to compile.
const Linked = false

// Main does nothing here: this program is never a helper process.
func Main() {}
