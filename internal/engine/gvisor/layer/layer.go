// Package layer reads and fills the writable layer of a sandbox in the form of OCI layers
// (https://github.com/opencontainers/image-spec/blob/main/layer.md).
//
// It sends requests to gVisor's process, where package agent executes them. They are transported as gVisor's
// trace sessions: a keeper starts a session whose sink is Harvest's, and passes it an open file.
package layer

import (
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// SinkName is the name of Harvest's sink in gVisor.
const SinkName = "harvest-layer"

// Request is a keeper's request to gVisor's process. It is the configuration of the sink, which reads or writes
// its file.
type Request struct {
	Container string
	// Apply fills the layer from the file. Otherwise the sink writes the layer to the file.
	Apply   bool
	Path    string   // limits the written files, "" for all
	Mounted []string // mount points, for Apply
	Room    []Room   `json:",omitempty"` // if set, the request only sets the room in volumes
	// Hostname, if set, becomes the host name of the container. Nothing else happens.
	Hostname string `json:",omitempty"`
	Keep     *Kept  `json:",omitempty"` // if set, the request only prepares processes for a checkpoint
}

// Room is how many files and directories can be created in a volume before the keeper counts again.
type Room struct {
	Path string // the volume's mount point
	Left int64  // Plenty for no limit
}

// Plenty is the value of Room.Left for a volume that is far from its limit.
const Plenty = -1

// Kept describes which processes of a container a checkpoint preserves.
type Kept struct {
	Root     string     // the root container, under whose name gVisor looks for the files
	Commands []int32    // the processes of preserved commands
	Leave    []int32    // processes that are not preserved, with their descendants
	Files    []KeptFile // the keeper's ends of the files of commands
}

// Numbers of files in a checkpoint. FirstFile is the first one of commands.
const (
	NullFile  = 3  // the null device
	SinkFile  = 4  // a pipe for output that nothing reads
	EmptyFile = 5  // a pipe that is at end-of-file
	FirstFile = 16 // the first file of commands
)

// KeptFile identifies an open file of the host, with the number that it has when the checkpoint is restored.
type KeptFile struct {
	Device, Inode uint64
	Number        int
}

// failureMark marks an error of Harvest's in the text of a gVisor error, which comes over gVisor's control
// socket.
const failureMark = "harvest-failure:"

// Decode returns the request in a sink's configuration.
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

// Read writes the container's layer to w. If path is not "", only files below it are written. The container is
// paused until the layer has been read or w fails, so that the layer is consistent. NotFound: path does not
// exist. Invalid: path is not a directory.
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
	_ = r.Close() // if the reader gave up, the layer's writer fails, and the container resumes
	if failed := <-done; failed != nil && err == nil {
		err = failed
	}
	return err
}

// Apply fills the container's layer from r, except for the mount points. Nothing else may change its files
// until it returns. Invalid: r is not a layer, or it has something other than a directory at a mount point.
// Exhausted: the layer does not fit.
func Apply(sb *runsc.Sandbox, container string, mounted []string, r *os.File) error {
	return call(sb, Request{Container: container, Apply: true, Mounted: mounted}, r)
}

// Keep prepares processes of the container for a checkpoint. No process may start or end until it returns. It returns
// the PIDs of kept.Commands in the container.
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

// SetRoom limits how many files can be created in volumes. Beyond that, creating one fails with EDQUOT.
func SetRoom(sb *runsc.Sandbox, room []Room) error {
	_, err := exchange(sb, Request{Room: room})
	return err
}

// SetHostname sets the host name of a container.
func SetHostname(sb *runsc.Sandbox, container, hostname string) error {
	_, err := exchange(sb, Request{Container: container, Hostname: hostname})
	return err
}

// exchange sends a request, and returns the data written to its file.
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

// Mark encodes err so that its kind and its texts survive gVisor's control socket.
func Mark(err error) error {
	b, _ := json.Marshal(wire.FailureOf(err)) // strings can always be encoded as JSON
	return errors.Errorf("%s%s", failureMark, b)
}

// failure decodes a marked error in gVisor's text.
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
