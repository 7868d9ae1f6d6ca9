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
	Room      []Room   `json:",omitempty"` // only how many files volumes have room for
	Keep      *Kept    `json:",omitempty"` // none of the other, but the processes are made to get through a checkpoint
}

// Room is how many files and directories can be created in a volume until the keeper counts again.
type Room struct {
	Path string // where it is mounted
	Left int64  // Plenty for any number
}

// Plenty as Room.Left means that the volume is far from its limit.
const Plenty = -1

// Kept says which processes of a container get through a checkpoint.
type Kept struct {
	Root     string     // the root container, under whose name gVisor looks for the files
	Commands []int32    // the processes of commands that do
	Leave    []int32    // processes that do not, with what they have started
	Files    []KeptFile // the keeper's ends of their files
}

// Numbers of files that are no command's own.
const (
	NullFile  = 3  // the null device
	SinkFile  = 4  // a pipe that takes what nobody reads
	EmptyFile = 5  // a pipe that has ended
	FirstFile = 16 // those of commands begin here
)

// KeptFile is an open file of the host, and the number under which it is brought along when the checkpoint is restored.
type KeptFile struct {
	Device, Inode uint64
	Number        int
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

// Keep makes processes of the container ones that get through a checkpoint. Nothing may start or end in it meanwhile. It returns the ids that
// kept.Commands have in the container.
func Keep(sb *runsc.Sandbox, container string, kept Kept) ([]int32, error) {
	var inside []int32
	answer, err := exchange(sb, Request{Container: container, Keep: &kept})
	if err == nil {
		err = errors.Wrapf(json.Unmarshal(answer, &inside), "read the ids of processes")
	}
	if err == nil && len(inside) != len(kept.Commands) {
		err = errors.Errorf("%d ids for %d processes", len(inside), len(kept.Commands))
	}
	return inside, err
}

// SetRoom limits how many files are created in volumes. What would be created beyond that fails with EDQUOT.
func SetRoom(sb *runsc.Sandbox, room []Room) error {
	_, err := exchange(sb, Request{Room: room})
	return err
}

// exchange sends a request and returns what is written to its file.
func exchange(sb *runsc.Sandbox, request Request) ([]byte, error) {
	r, theirs, err := os.Pipe()
	if err != nil {
		return nil, errors.Wrapf(err, "pipe")
	}
	defer r.Close()
	done := make(chan error, 1)
	go func() {
		done <- call(sb, request, theirs)
		_ = theirs.Close()
	}()
	answer, err := io.ReadAll(r)
	if failed := <-done; failed != nil {
		err = failed
	}
	return answer, err
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
