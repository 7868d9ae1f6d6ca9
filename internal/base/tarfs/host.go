//go:build linux

package tarfs

import (
	"bufio"
	"io"
	"os"
	"path/filepath"
)

// UnpackAt unpacks into a directory of this machine. It creates a missing directory. The path of the directory
// may contain symbolic links. /proc/self is the first process.
func UnpackAt(dir string, r io.Reader, opts Options) error {
	dir = ofFirst(dir, true)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Explain(err, dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Explain(err, dir)
	}
	defer root.Close()
	return Unpack(root, ".", bufio.NewReaderSize(r, 64<<10), opts)
}

// PackAt packs a path of this machine, as Pack does. /proc/self is the first process.
func PackAt(path string, w io.Writer) error {
	path = ofFirst(path, false)
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return Explain(err, path)
	}
	defer root.Close()
	return Pack(root, filepath.Base(path), w)
}
