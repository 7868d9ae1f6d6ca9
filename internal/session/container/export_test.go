package container

// For tests of other packages.
const (
	Label       = label
	DefaultPath = defaultPath
)
