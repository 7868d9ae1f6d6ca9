package keeper

import (
	"encoding/json"
	"io"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

// ToolName is the first argument of this program when it runs inside a sandbox. Nothing of an image is needed for it: gVisor
// executes it from a file of the host.
const ToolName = "harvest-tool"

// Tools that run inside.
const (
	Unpack = "unpack" // DIR: a tar stream on standard input
	Pack   = "pack"   // PATH: to a tar stream on standard output
)

// Tool runs a tool inside a sandbox and returns its exit code. An error goes to stderr as JSON of wire.Failure.
func Tool(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	err := errors.Errorf("the tools are %s DIR and %s PATH", Unpack, Pack)
	if len(args) == 2 {
		switch args[0] {
		case Unpack:
			err = unpack(args[1], stdin)
		case Pack:
			err = pack(args[1], stdout)
		}
	}
	if err == nil {
		return 0
	}
	_ = json.NewEncoder(stderr).Encode(wire.FailureOf(err))
	return 1
}

// unpack fills dir, whose own path may go through symbolic links of the image.
func unpack(dir string, r io.Reader) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return tarfs.Explain(err, dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return tarfs.Explain(err, dir)
	}
	defer root.Close()
	return tarfs.Unpack(root, ".", r, tarfs.Options{Owners: true, SetID: true})
}

func pack(path string, w io.Writer) error {
	root, err := os.OpenRoot(filepath.Dir(path))
	if err != nil {
		return tarfs.Explain(err, path)
	}
	defer root.Close()
	return tarfs.Pack(root, filepath.Base(path), w)
}
