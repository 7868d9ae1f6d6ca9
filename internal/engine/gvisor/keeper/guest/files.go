package guest

import (
	"io"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
)

// maxDatabase limits how much of /etc/passwd and /etc/group is read.
const maxDatabase = 1 << 20

// read reads a small file in one of the containers. A missing file is empty.
func (g *Guest) read(container, path string) ([]byte, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Wrapf(err, "pipe")
	}
	defer r.Close()
	done := make(chan error, 1)
	go func() {
		err := g.Sandbox.ReadFile(container, path, maxDatabase, w)
		_ = w.Close()
		done <- err
	}()
	b, err := io.ReadAll(io.LimitReader(r, maxDatabase))
	if rpcErr := <-done; rpcErr != nil {
		return nil, nil
	}
	return b, errors.Wrapf(err, "read %s", path)
}

// CheckDir implements kept.Sandbox. gVisor follows the symbolic links of a path within the
// container, for a command all of them, and for a file that it reads all but the last.
func (g *Guest) CheckDir(dir string) error {
	if dir == "" || dir == "/" {
		return nil
	}
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return errors.Wrapf(err, "open null device")
	}
	defer null.Close()
	err = g.Sandbox.ReadFile(g.MainID(), dir+"/.", 1, null)
	if err != nil && strings.Contains(err.Error(), "is a directory") {
		return nil // dir exists
	}
	if err == nil {
		err = errors.Errorf("%s is a file", dir)
	}
	return errors.Wrapf(err, "working directory")
}

// Fill unpacks a tar stream into a container's writable layer, if path is not empty.
func (g *Guest) Fill(container, path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return errors.Wrapf(err, "open the layer of the snapshot")
	}
	defer f.Close()
	return layer.Apply(g.Sandbox, container, g.mounted, f)
}
