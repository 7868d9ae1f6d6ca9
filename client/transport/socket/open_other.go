//go:build !linux

package socket

import (
	"os"
	"path/filepath"
)

func open(dir string) (*os.File, error) { return os.Open(dir) }

// within is the path of the socket, which must fit a socket address: there is no /proc.
func within(dir string, _ *os.File, name string) string { return filepath.Join(dir, name) }
