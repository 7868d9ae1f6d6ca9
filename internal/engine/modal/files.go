package modal

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"sync"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/modal/call"
	"github.com/RelevanceAI/harvest/internal/engine/modal/inside"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// modalVolume is a volume at Modal. Each sandbox has its own view of it. Modal commits the view periodically,
// when the sandbox reloads its volumes, and when it ends. The last writer of a file wins. The methods here read
// and change the committed files, from within the volume's attendant.
type modalVolume struct {
	v    *volumes
	name string
}

// Name implements volume.Volume.
func (m *modalVolume) Name() string { return m.name }

// Commit implements volume.Volume: all sandboxes of this installation that mount the volume commit and reload
// it. Modal does not offer one without the other.
func (m *modalVolume) Commit(ctx context.Context) error {
	if err := m.reload(ctx, true); err != nil {
		return errors.Stage(err, "commit")
	}
	return nil
}

// Reload implements volume.Volume, for all sandboxes of this installation that mount the volume.
func (m *modalVolume) Reload(ctx context.Context) error {
	return errors.Stage(m.reload(ctx, false), "reload")
}

func (m *modalVolume) reload(ctx context.Context, measure bool) error {
	n, err := m.v.records.Made(m.name)
	if err != nil {
		return err
	}
	holders, err := m.v.holders(ctx, m.name)
	if err != nil {
		return err
	}
	for _, box := range holders {
		if measure {
			m.measure(ctx, box)
		}
		err := m.v.e.reload(ctx, box)
		if kind := errors.KindOf(err); err != nil && kind != errors.NotFound && !m.v.e.over(ctx, box) {
			return err
		}
	}
	if sb, release := m.v.e.attendants.there(n.Modal); sb != nil {
		defer release()
		return m.v.e.reload(ctx, sb.box)
	}
	return nil
}

// reload makes a sandbox commit and reload its volumes.
func (e *Engine) reload(ctx context.Context, box *sdk.Sandbox) error {
	_, err := call.Attempt(ctx, ctx, e.patience.Reload, "commit and reload volumes",
		func(ctx context.Context) (struct{}, error) {
			return struct{}{}, box.ReloadVolumes(ctx, &sdk.SandboxReloadVolumesParams{Timeout: call.Usual.Reload})
		})
	if errors.KindOf(err) == errors.Conflict {
		return errors.Remedy(errors.Explainf(err, errors.Conflict,
			"Modal does not reload the volumes of a sandbox now: %.300s", call.Plain(err)),
			"close the files of the volume that are open, and try again")
	}
	return err
}

// over asks Modal whether a sandbox has ended.
func (e *Engine) over(ctx context.Context, box *sdk.Sandbox) bool {
	ctx, cancel := context.WithTimeout(ctx, e.patience.Poll)
	defer cancel()
	code, err := box.Poll(ctx, nil)
	return code != nil || errors.KindOf(call.Explain(err, "")) == errors.NotFound
}

// measure flushes a sandbox's view of the volume, and records the size. It is best effort.
func (m *modalVolume) measure(ctx context.Context, box *sdk.Sandbox) {
	ctx, cancel := context.WithTimeout(ctx, m.v.e.patience.Measure)
	defer cancel()
	err := func() error {
		sb := m.v.e.sandbox(engine.Handle{ID: m.name, Ref: box.SandboxID}, box)
		reply, err := sb.Call(ctx, wire.Request{Op: wire.Info})
		if err != nil || reply.Claim == nil || reply.Claim.Spec == nil {
			return err
		}
		for _, mount := range reply.Claim.Spec.Mounts {
			if mount.Volume == m.name {
				return m.sized(sb.volumeTool(ctx, nil, inside.VolumeRequest{Op: inside.VolumeMeasure, Dir: mount.Path}))
			}
		}
		return nil
	}()
	if err != nil {
		logf.Debugf(ctx, "measure the volume %s: %v", m.name, err)
	}
}

// volumeTool runs a request for a volume, and returns the answer.
func (s *Sandbox) volumeTool(ctx context.Context, stdin io.Reader, req inside.VolumeRequest) ([]byte, error) {
	text, err := json.Marshal(req)
	if err != nil {
		return nil, errors.Wrapf(err, "write a request for a volume")
	}
	var out bytes.Buffer
	err = s.Tool(ctx, &out, stdin, inside.ToolVolume, string(text))
	return out.Bytes(), err
}

// sized records the size of a volume from an answer.
func (m *modalVolume) sized(answer []byte, err error) error {
	if err != nil {
		return err
	}
	var size inside.VolumeSize
	if err := json.Unmarshal(answer, &size); err != nil {
		return errors.Wrapf(err, "read the size of a volume")
	}
	return m.v.records.Change(m.name, func(n *records.Volume) { n.Size, n.Files = size.Size, size.Files })
}

// attend returns the attendant of the volume.
func (m *modalVolume) attend(ctx context.Context) (*Sandbox, func(), error) {
	n, err := m.v.records.Made(m.name)
	if err != nil {
		return nil, nil, err
	}
	return m.v.e.attendants.attend(ctx, n)
}

// CopyIn implements volume.Volume. It commits the copied files.
func (m *modalVolume) CopyIn(ctx context.Context, dir string, tar io.Reader) error {
	n, err := m.v.records.Made(m.name)
	if err != nil {
		return err
	}
	return m.copyIn(ctx, n, dir, tar)
}

func (m *modalVolume) copyIn(ctx context.Context, n records.Volume, dir string, tar io.Reader) error {
	return m.alter(ctx, n, tar, inside.VolumeRequest{Op: inside.VolumeUnpack, Path: dir})
}

// Remove implements volume.Volume. It commits the removal.
func (m *modalVolume) Remove(ctx context.Context, path string) error {
	n, err := m.v.records.Made(m.name)
	if err != nil {
		return err
	}
	return m.alter(ctx, n, nil, inside.VolumeRequest{Op: inside.VolumeRemove, Path: path})
}

// alter changes files, and returns when the change is committed.
func (m *modalVolume) alter(ctx context.Context, n records.Volume, stdin io.Reader, req inside.VolumeRequest) error {
	sb, release, err := m.v.e.attendants.attend(ctx, n)
	if err != nil {
		return err
	}
	defer release()
	req.Dir = attendedDir
	err = m.sized(sb.volumeTool(ctx, stdin, req))
	if ctx.Err() != nil {
		return err
	}
	// Commit after an error, too: the changes before it stay.
	return errors.Join(err, m.v.e.reload(ctx, sb.box))
}

// ReadDir implements volume.Volume.
func (m *modalVolume) ReadDir(ctx context.Context, dir string) ([]volume.Entry, error) {
	sb, release, err := m.attend(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	answer, err := sb.volumeTool(ctx, nil, inside.VolumeRequest{Op: inside.VolumeList, Dir: attendedDir, Path: dir})
	if err != nil {
		return nil, err
	}
	list := []volume.Entry{}
	return list, errors.Wrapf(json.Unmarshal(answer, &list), "read the list of a volume's files")
}

// CopyOut implements volume.Volume.
func (m *modalVolume) CopyOut(ctx context.Context, path string) (io.ReadCloser, error) {
	sb, release, err := m.attend(ctx)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(inside.VolumeRequest{Op: inside.VolumePack, Dir: attendedDir, Path: path})
	if err != nil {
		release()
		return nil, errors.Wrapf(err, "write a request for a volume")
	}
	stream, err := sb.ToolOutput(ctx, inside.ToolVolume, string(text))
	if err != nil {
		release()
		return nil, err
	}
	return &attendedStream{stream, sync.OnceFunc(release)}, nil
}

// attendedStream keeps the attendant until the stream is closed.
type attendedStream struct {
	io.ReadCloser
	release func()
}

func (s *attendedStream) Close() error {
	defer s.release()
	return s.ReadCloser.Close()
}
