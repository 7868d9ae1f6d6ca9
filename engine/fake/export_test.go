package fake

// Keepers returns the keepers that are processes and have files below dir.
var Keepers = keepers

// Detach says whether keepers are processes, and returns what undoes it.
func Detach(on bool) (undo func()) {
	before := detached.Swap(on)
	return func() { detached.Store(before) }
}
