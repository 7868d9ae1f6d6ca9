// Package layer reads and fills the writable layer of a sandbox, as OCI layers
// (https://github.com/opencontainers/image-spec/blob/main/layer.md).
//
// It works within gVisor's process, where files have all that they have: whiteouts, times to the nanosecond, any extended
// attribute, the ranges of sparse files. From inside the sandbox whiteouts cannot be seen; gVisor's own tar of the layer rounds
// times to seconds, leaves out attributes that are not UTF-8, and reads whole files into memory. gVisor's trace sessions are the
// way in: a keeper asks for one whose sink is ours, and gives it an open file.
package layer

import (
	"encoding/json"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/fd"
	"gvisor.dev/gvisor/pkg/sentry/seccheck"
	"gvisor.dev/gvisor/runsc/sandbox"

	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
)

// sinkName is the name of our sink among gVisor's.
const sinkName = "harvest-layer"

// request is what a keeper asks gVisor's process for, as the configuration of the sink.
type request struct {
	Container string
	Apply     bool     // fill the layer from the file; otherwise write it there
	Path      string   // of what is written, "" for all
	Mounted   []string // where something is mounted, for Apply
	File      int      // descriptor of the file in the keeper's process
}

// failureMark begins an error of ours in the text of gVisor's, which comes over its control socket.
const failureMark = "harvest-failure:"

// Register makes this process one that can ask for layers (a keeper) or that answers (gVisor's). It is called once, before
// gVisor's code runs.
func Register() {
	a := &agent{ready: make(chan struct{})}
	a.watch()
	seccheck.RegisterSink(seccheck.SinkDesc{
		Name: sinkName,
		Setup: func(config map[string]any) (*os.File, error) {
			r, err := decode(config)
			if err != nil {
				return nil, err
			}
			file, err := unix.FcntlInt(uintptr(r.File), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return nil, errors.Wrapf(err, "duplicate file of the layer")
			}
			return os.NewFile(uintptr(file), "layer"), nil
		},
		New: func(config map[string]any, file *fd.FD) (seccheck.Sink, error) {
			defer file.Close()
			r, err := decode(config)
			if err == nil {
				err = a.answer(r, file)
			}
			if err != nil {
				return nil, mark(err)
			}
			return sink{}, nil
		},
	})
}

// sink takes no trace points.
type sink struct{ seccheck.SinkDefaults }

// Name implements seccheck.Sink.
func (sink) Name() string { return sinkName }

func decode(config map[string]any) (request, error) {
	var r request
	b, err := json.Marshal(config)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	return r, errors.Wrapf(err, "decode request of a layer")
}

func encode(r request) map[string]any {
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
func Read(sb *sandbox.Sandbox, container, path string, w io.Writer) error {
	r, theirs, err := os.Pipe()
	if err != nil {
		return errors.Wrapf(err, "pipe of the layer")
	}
	done := make(chan error, 1)
	go func() {
		done <- call(sb, request{Container: container, Path: path, File: int(theirs.Fd())})
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
func Apply(sb *sandbox.Sandbox, container string, mounted []string, r *os.File) error {
	return call(sb, request{Container: container, Apply: true, Mounted: mounted, File: int(r.Fd())})
}

func call(sb *sandbox.Sandbox, r request) error {
	config := &seccheck.SessionConfig{Name: seccheck.DefaultSessionName, Sinks: []seccheck.SinkConfig{{Name: sinkName, Config: encode(r)}}}
	return failure(sb.CreateTraceSession(config, true))
}

// mark makes err one that failure finds again in gVisor's text.
func mark(err error) error {
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
