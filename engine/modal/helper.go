package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/engine/modal/inside"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
)

// Where the program inside is, in every sandbox.
const (
	programDir  = "/.harvest-inside"
	programPath = programDir + "/" + inside.Name
)

// uploadPatience is how long it may take until Modal has the program.
const uploadPatience = 10 * time.Minute

// helper brings the program inside to Modal: once, into a volume that is named after what is in it.
type helper struct {
	e *Engine

	mu     sync.Mutex
	volume *sdk.Volume // guarded by mu; nil until the program is there
}

// mount makes the program the first process of a sandbox.
func (h *helper) mount(ctx context.Context, img record, params *sdk.SandboxCreateParams) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.volume == nil {
		v, err := h.upload(ctx, img)
		if err != nil {
			return errors.Stage(err, "program")
		}
		h.volume = v
	}
	readOnly := true
	if params.Volumes == nil {
		params.Volumes = map[string]*sdk.Volume{}
	}
	params.Volumes[programDir] = h.volume.WithMountOptions(&sdk.VolumeMountOptionsParams{ReadOnly: &readOnly})
	params.Command = []string{programPath, inside.Serve}
	return nil
}

// upload returns the volume with the program, which is filled if that was not done before.
func (h *helper) upload(ctx context.Context, img record) (*sdk.Volume, error) {
	digest, err := digestOf(h.e.opts.Executable)
	if err != nil {
		return nil, err
	}
	name := inside.Name + "-" + digest
	v, err := ask(ctx, "make a volume", func(ctx context.Context) (*sdk.Volume, error) {
		return h.e.client.Volumes.FromName(ctx, name, &sdk.VolumeFromNameParams{CreateIfMissing: true})
	})
	if err != nil {
		return nil, err
	}
	// The volume's ID tells whether it is the one that was filled: another account or server has another one.
	marker := filepath.Join(h.e.opts.Dir, "program-"+digest)
	if known, err := os.ReadFile(marker); err == nil && string(known) == v.VolumeID {
		return v, nil
	}
	ctx, cancel := context.WithTimeout(ctx, uploadPatience)
	defer cancel()
	if err := h.fill(ctx, v, img); err != nil {
		return nil, err
	}
	return v, errors.Wrapf(os.WriteFile(marker, []byte(v.VolumeID), 0o600), "note that Modal has the program")
}

// fill writes the program to the volume, from within a sandbox: the SDK has no other way.
func (h *helper) fill(ctx context.Context, v *sdk.Volume, img record) (err error) {
	if err := h.e.attendants.begin(ctx); err != nil {
		return err
	}
	logf.Infof(ctx, "sending the program that runs commands to Modal, once")
	box, err := h.e.start(ctx, img, &sdk.SandboxCreateParams{
		Timeout: uploadPatience, BlockNetwork: true, Command: []string{"sleep", "86400"}, Volumes: map[string]*sdk.Volume{"/volume": v},
		Tags: map[string]string{tagServer: h.e.server, tagAttendant: "yes"},
	})
	if err != nil {
		return err
	}
	defer func() { // which also commits the volume
		err = errors.Join(err, h.e.terminate(context.WithoutCancel(ctx), box))
	}()
	there := "/volume/" + inside.Name
	if run(ctx, box, "test", "-x", there) == nil {
		return nil
	}
	if err := box.Filesystem.CopyFromLocal(ctx, h.e.opts.Executable, there+".new", nil); err != nil {
		return explain(err, "send the program to Modal")
	}
	return run(ctx, box, "sh", "-c", `chmod 755 "$1.new" && mv "$1.new" "$1" && sync`, "sh", there)
}

// run runs a command that must succeed.
func run(ctx context.Context, box *sdk.Sandbox, args ...string) error {
	p, err := box.Exec(ctx, args, nil)
	if err != nil {
		return explain(err, "run a command at Modal")
	}
	code, err := p.Wait(ctx, nil)
	if err == nil && code != 0 {
		said, _ := io.ReadAll(io.LimitReader(p.Stderr, 1000))
		err = errors.Errorf("%q ended with code %d: %s", args[0], code, said)
	}
	return explain(err, "run a command at Modal")
}

// digestOf returns the beginning of a file's digest.
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
