// Package layer reads and fills the writable layer of a sandbox, as OCI layers
// (https://github.com/opencontainers/image-spec/blob/main/layer.md).
//
// It asks gVisor's process, where package agent does the work. gVisor's trace sessions are the way in: a keeper asks for one whose sink is
// ours, and gives it an open file.
package layer

import (
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
)

// SinkName is the name of our sink among gVisor's.
const SinkName = "harvest-layer"

// Request is what a keeper asks gVisor's process for, as the configuration of the sink, whose file it reads or writes.
type Request struct {
	Container string
	Apply     bool     // fill the layer from the file; otherwise write it there
	Path      string   // of what is written, "" for all
	Mounted   []string // where something is mounted, for Apply
}

// failureMark begins an error of ours in the text of gVisor's, which comes over its control socket.
const failureMark = "harvest-failure:"

// Decode is the request that a sink's configuration holds.
func Decode(config map[string]any) (Request, error) {
	var r Request
	b, err := json.Marshal(config)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	return r, errors.Wrapf(err, "decode request of a layer")
}

func encode(r Request) map[string]any {
	config := map[string]any{}
	b, err := json.Marshal(r)
	if err == nil {
		_ = json.Unmarshal(b, &config)
	}
	return config
}

// Read writes the container's layer to w, limited to what lies below path if that is not "". The container is paused
// meanwhile, so that the layer is consistent in itself, and goes on when it is read or when w fails. NotFound: there is no such
// path. Invalid: it is no directory.
func Read(sb *runsc.Sandbox, container, path string, w io.Writer) error {
	r, theirs, err := os.Pipe()
	if err != nil {
		return errors.Wrapf(err, "pipe of the layer")
	}
	done := make(chan error, 1)
	go func() {
		done <- call(sb, Request{Container: container, Path: path}, theirs)
		_ = theirs.Close()
	}()
	_, err = io.Copy(w, r)
	_ = r.Close() // a reader that gave up: the layer's writer fails, and the container goes on
	if failed := <-done; failed != nil && err == nil {
		err = failed
	}
	return err
}

// Apply fills the container's layer from r, save for the directories at which something is mounted. Nothing else may change its files
// meanwhile. Invalid: this is no layer, or it has something else where a directory is mounted. Exhausted: it does not fit.
func Apply(sb *runsc.Sandbox, container string, mounted []string, r *os.File) error {
	return call(sb, Request{Container: container, Apply: true, Mounted: mounted}, r)
}

func call(sb *runsc.Sandbox, r Request, file *os.File) error {
	return failure(sb.Trace(SinkName, encode(r), file))
}

// Mark makes err one that comes through gVisor's control socket with its kind and its texts.
func Mark(err error) error {
	b, _ := json.Marshal(wire.FailureOf(err)) // strings always have JSON
	return errors.Errorf("%s%s", failureMark, b)
}

// failure finds our error in gVisor's text.
func failure(err error) error {
	if err == nil {
		return nil
	}
	_, text, ok := strings.Cut(err.Error(), failureMark)
	var f wire.Failure
	if !ok || json.NewDecoder(strings.NewReader(text)).Decode(&f) != nil {
		return errors.Explainf(err, errors.Unavailable, "the sandbox's files could not be reached")
	}
	return f.Err()
}
