package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"sync"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
	"github.com/RelevanceAI/harvest/internal/engine/modal/inside"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
)

// The path of the program inside, in every sandbox.
const (
	programDir  = "/.harvest-inside"
	programPath = programDir + "/" + inside.Name
)

// helper uploads the program inside to Modal, once, into a volume named after the program's digest.
type helper struct {
	e *Engine

	mu   sync.Mutex
	sent *sending // guarded by mu; nil before the first upload
}

// sending is one attempt to upload the program, shared by all callers that need it.
type sending struct {
	done   chan struct{} // closed when volume and err are set
	volume *sdk.Volume
	err    error
}

// failed reports whether the attempt has failed.
func (s *sending) failed() bool {
	select {
	case <-s.done:
		return s.err != nil
	default:
		return false
	}
}

// mount makes the program the first process of a sandbox.
func (h *helper) mount(ctx context.Context, img records.Image, params *sdk.SandboxCreateParams) error {
	sent := h.send(img)
	select {
	case <-sent.done:
	case <-ctx.Done():
		return errors.Stage(errors.Wrapf(ctx.Err(), "send the program to Modal"), "program")
	}
	if sent.err != nil {
		return errors.Stage(sent.err, "program")
	}
	readOnly := true
	if params.Volumes == nil {
		params.Volumes = map[string]*sdk.Volume{}
	}
	params.Volumes[programDir] = sent.volume.WithMountOptions(&sdk.VolumeMountOptionsParams{ReadOnly: &readOnly})
	params.Command = []string{programPath, inside.Serve}
	return nil
}

// send returns the current upload, and starts one if there is none or if the last one failed. Closing the
// engine cancels it.
func (h *helper) send(img records.Image) *sending {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.sent == nil || h.sent.failed() {
		s := &sending{done: make(chan struct{})}
		h.sent = s
		go func() {
			defer close(s.done)
			s.volume, s.err = h.upload(h.e.ctx, img)
		}()
	}
	return h.sent
}

// upload returns the volume with the program, and fills it if necessary.
func (h *helper) upload(ctx context.Context, img records.Image) (*sdk.Volume, error) {
	digest, err := digestOf(h.e.opts.Executable)
	if err != nil {
		return nil, err
	}
	name := inside.Name + "-" + digest
	v, err := ask(ctx, h.e, "make a volume", func(ctx context.Context) (*sdk.Volume, error) {
		return h.e.client.Volumes.FromName(ctx, name, &sdk.VolumeFromNameParams{CreateIfMissing: true})
	})
	if err != nil {
		return nil, err
	}
	// The volume's ID shows whether it is the one that was filled: it differs in another account or server.
	marker := filepath.Join(h.e.opts.Dir, "program-"+digest)
	if known, err := os.ReadFile(marker); err == nil && string(known) == v.VolumeID {
		return v, nil
	}
	if err := h.fill(ctx, v, img); err != nil {
		return nil, err
	}
	return v, errors.Wrapf(atomicfile.Write(marker, []byte(v.VolumeID), 0o600), "note that Modal has the program")
}

// fill writes the program to the volume, from within a sandbox, because the SDK has no other way.
func (h *helper) fill(ctx context.Context, v *sdk.Volume, img records.Image) (err error) {
	if err := h.e.attendants.begin(ctx); err != nil {
		return err
	}
	logf.Infof(ctx, "sending the program that runs commands to Modal, once")
	box, err := h.e.start(ctx, img, &sdk.SandboxCreateParams{
		Timeout: call.Usual.Upload, BlockNetwork: true, Command: []string{"sleep", "86400"},
		Volumes: map[string]*sdk.Volume{"/volume": v},
		Tags:    map[string]string{tagServer: h.e.server, tagAttendant: "yes"},
	})
	if err != nil {
		return err
	}
	defer func() { // this also commits the volume
		err = errors.Join(err, h.e.terminate(context.WithoutCancel(ctx), box))
	}()
	there := "/volume/" + inside.Name
	_, err = call.Attempt(ctx, ctx, h.e.patience.Upload, "send the program to Modal",
		func(ctx context.Context) (struct{}, error) {
			if run(ctx, box, "test", "-x", there) == nil {
				return struct{}{}, nil
			}
			if err := box.Filesystem.CopyFromLocal(ctx, h.e.opts.Executable, there+".new", nil); err != nil {
				return struct{}{}, err
			}
			return struct{}{}, run(ctx, box, "sh", "-c", `chmod 755 "$1.new" && mv "$1.new" "$1" && sync`, "sh", there)
		})
	return err
}

// run runs a command, and returns an error if the command fails.
func run(ctx context.Context, box *sdk.Sandbox, args ...string) error {
	p, err := box.Exec(ctx, args, nil)
	if err != nil {
		return err
	}
	code, err := p.Wait(ctx, nil)
	if err == nil && code != 0 {
		said, _ := io.ReadAll(io.LimitReader(p.Stderr, 1000))
		err = errors.Errorf("%q ended with code %d: %s", args[0], code, said)
	}
	return err
}

// digestOf returns the first digits of a file's SHA-256 digest.
func digestOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", errors.Wrapf(err, "open the program")
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", errors.Wrapf(err, "read the program")
	}
	return hex.EncodeToString(sum.Sum(nil))[:16], nil
}
