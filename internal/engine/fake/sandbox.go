package fake

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/proc"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// record is the stored record of a sandbox. ID is "" while it is warm.
type record struct {
	ID     string            `json:"id"`
	Image  string            `json:"image"`
	Env    map[string]string `json:"env"` // the image's and the spec's
	Dir    string            `json:"dir"`
	User   string            `json:"user"`
	Mounts []engine.Mount    `json:"mounts"`
	End    *engine.End       `json:"end,omitempty"`
	Spec   engine.Spec       `json:"spec"`
}

// sandbox is a directory with the sandbox's files in root, the keepers' files in processes, and record.json.
type sandbox struct {
	e   *Engine
	ref string
	dir string // constant once the sandbox is visible

	mu       sync.Mutex
	record   record        // guarded by mu
	release  []func()      // releases the volumes; guarded by mu
	ended    chan struct{} // closed when record.End is set
	starting sync.RWMutex  // held for reading while a command starts
	removing sync.Mutex    // held by remove
	removed  bool          // guarded by removing
}

var (
	_ engine.ProcessOpener = (*sandbox)(nil)
	_ engine.Described     = (*sandbox)(nil)
)

func (e *Engine) newSandbox(ref, dir string) *sandbox {
	return &sandbox{e: e, ref: ref, dir: dir, ended: make(chan struct{})}
}

func (sb *sandbox) Handle() engine.Handle {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return engine.Handle{ID: sb.record.ID, Ref: sb.ref}
}

// Spec implements engine.Described.
func (sb *sandbox) Spec(context.Context) (engine.Spec, error) {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if end := sb.record.End; end != nil {
		return engine.Spec{}, errors.Newf(errors.Conflict, "the sandbox has ended: %s", end.Detail)
	}
	return sb.record.Spec, nil
}

func (sb *sandbox) save() error {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	data, err := json.Marshal(sb.record)
	if err != nil {
		return errors.Wrapf(err, "encode a sandbox's record")
	}
	return atomicfile.Write(filepath.Join(sb.dir, "record.json"), data, 0o600)
}

// use protects a volume from deletion until the sandbox, which has or gets this ID, is removed.
func (sb *sandbox) use(id, name string) error {
	release, err := sb.e.volumes.Use(name, engine.Holder(id))
	if err != nil {
		return err
	}
	sb.mu.Lock()
	defer sb.mu.Unlock()
	sb.release = append(sb.release, release)
	return nil
}

// mount mounts volumes as symbolic links, which need no privileges. New volumes get the sandbox's user as their
// owner.
func (sb *sandbox) mount(id string, mounts []engine.Mount, user string) error {
	uid, gid, err := proc.Owner(user)
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := sb.use(id, m.Volume); err != nil {
			return err
		}
		link := filepath.Join(sb.dir, "root", m.Path)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			return errors.Wrapf(err, "mount volume %s", m.Volume)
		}
		_ = os.Remove(link) // an empty directory of the image
		if err := os.Symlink(sb.e.volumes.Path(m.Volume), link); err != nil {
			return errors.Explainf(err, errors.Invalid, "volume %s cannot be mounted at %.200q", m.Volume, m.Path)
		}
		if user == "" || m.ReadOnly {
			continue
		}
		if err := volume.Give(sb.e.volumes.Path(m.Volume), uid, gid); err != nil {
			return err
		}
	}
	return nil
}

// begin starts every operation: it returns Conflict after the end, and injects the faults that tests have
// requested.
func (sb *sandbox) begin(ctx context.Context, op Op) error {
	if err := sb.e.fault(op); err != nil {
		return err
	}
	if err := sb.e.pause(ctx, op); err != nil {
		return err
	}
	if end := sb.endOf(); end != nil {
		return errors.Newf(errors.Conflict, "the sandbox has ended: %s", end.Detail)
	}
	return errors.Wrapf(ctx.Err(), "%s", op)
}

func (sb *sandbox) endOf() *engine.End {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	return sb.record.End
}

// hostPath returns the host's path for a path of the sandbox.
func (sb *sandbox) hostPath(name string) string {
	return filepath.Join(sb.dir, "root", filepath.Clean("/"+name))
}

// locate opens the tree that contains path, a volume or the sandbox's own, and returns the rest of the path.
func (sb *sandbox) locate(path string) (root *os.Root, rest string, readOnly bool, err error) {
	base, rest := filepath.Join(sb.dir, "root"), filepath.Clean("/"+path)
	sb.mu.Lock()
	for _, m := range sb.record.Mounts {
		if below, found := strings.CutPrefix(rest+"/", m.Path+"/"); found {
			base, rest, readOnly = sb.e.volumes.Path(m.Volume), filepath.Clean("/"+below), m.ReadOnly
			break
		}
	}
	sb.mu.Unlock()
	root, err = os.OpenRoot(base)
	return root, strings.TrimPrefix(rest, "/"), readOnly, errors.Wrapf(err, "open the files")
}

// untilEnd stops reading when the sandbox ends.
type untilEnd struct {
	r  io.Reader
	sb *sandbox
	// ctx is the context of the copy that reads.
	ctx context.Context
}

func (u untilEnd) Read(p []byte) (int, error) {
	if end := u.sb.endOf(); end != nil {
		return 0, errors.Newf(errors.Conflict, "the sandbox has ended: %s", end.Detail)
	}
	if err := u.ctx.Err(); err != nil {
		return 0, errors.Wrapf(err, "copy")
	}
	return u.r.Read(p)
}

func (sb *sandbox) CopyIn(ctx context.Context, dir string, tar io.Reader) error {
	if err := sb.begin(ctx, OpCopyIn); err != nil {
		return err
	}
	root, rest, readOnly, err := sb.locate(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	if readOnly {
		return errors.Newf(errors.Denied, "%.200q is mounted read-only", dir)
	}
	return tarfs.Unpack(root, rest, untilEnd{tar, sb, ctx}, tarfs.Options{Owners: os.Geteuid() == 0, SetID: true})
}

func (sb *sandbox) CopyOut(ctx context.Context, path string) (io.ReadCloser, error) {
	if err := sb.begin(ctx, OpCopyOut); err != nil {
		return nil, err
	}
	root, rest, _, err := sb.locate(path)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return tarfs.Open(ctx, root, rest)
}

// Files implements engine.Filer. It refuses links that lead out of the sandbox's directory, and moves between
// volumes.
func (sb *sandbox) Files(ctx context.Context, req tarfs.Request, w io.Writer) error {
	if err := sb.begin(ctx, OpFiles); err != nil {
		return err
	}
	root, rest, readOnly, err := sb.locate(req.Path)
	if err != nil {
		return err
	}
	defer root.Close()
	if readOnly && req.Op != tarfs.OpStat && req.Op != tarfs.OpList && req.Op != tarfs.OpWatch {
		return errors.Newf(errors.Denied, "%.200q is mounted read-only", req.Path)
	}
	asked := req.Path
	req.Path = rest
	if req.Op == tarfs.OpMove {
		other, to, _, err := sb.locate(req.To)
		if err != nil {
			return err
		}
		defer other.Close()
		if other.Name() != root.Name() {
			return errors.Remedy(errors.Newf(errors.Invalid, "%.200q and %.200q are on different file systems", asked,
				req.To), "copy it, and remove the original")
		}
		req.To = to
	}
	return tarfs.Do(ctx, root, req, w)
}

func (sb *sandbox) Wait(ctx context.Context) (engine.End, error) {
	select {
	case <-sb.ended:
	case <-ctx.Done():
		if sb.endOf() == nil {
			return engine.End{}, errors.Wrapf(ctx.Err(), "wait for a sandbox")
		}
	}
	return *sb.endOf(), nil
}

func (sb *sandbox) Destroy(ctx context.Context) error {
	if err := sb.e.fault(OpDestroy); err != nil {
		return err
	}
	if err := sb.e.pause(ctx, OpDestroy); err != nil {
		return err
	}
	return sb.destroy(ctx, engine.End{Destroyed: true, Detail: "It was destroyed."})
}

// destroy ends the sandbox with this end, if it has not ended yet, and removes it.
func (sb *sandbox) destroy(ctx context.Context, end engine.End) error {
	sb.finish(end)
	if err := sb.table().KillAll(ctx); err != nil {
		return err
	}
	return sb.remove()
}

// finish marks the sandbox as ended. Afterwards no command can start.
func (sb *sandbox) finish(end engine.End) {
	sb.mu.Lock()
	if sb.record.End == nil {
		sb.record.End = &end
		close(sb.ended)
	}
	sb.mu.Unlock()
	sb.starting.Lock() // wait for commands that are starting, so that they can be found
	defer sb.starting.Unlock()
}

// table returns the sandbox's commands.
func (sb *sandbox) table() *proc.Table {
	return &proc.Table{
		Dir: filepath.Join(sb.dir, "processes"), Name: sb.ref, Keep: sb.e.opts.KeepOutput,
		OutOfMemory: func() bool { end := sb.endOf(); return end != nil && end.OutOfMemory },
	}
}

// remove removes the files, and the sandbox from the engine's list.
func (sb *sandbox) remove() error {
	sb.removing.Lock()
	defer sb.removing.Unlock()
	if sb.removed {
		return nil
	}
	trash := filepath.Join(sb.e.dir, "trash", sb.ref)
	if err := os.Rename(sb.dir, trash); err != nil && !errors.IsNotExist(err) {
		return errors.Wrapf(err, "remove a sandbox")
	}
	sb.e.mu.Lock()
	delete(sb.e.sandboxes, sb.ref)
	delete(sb.e.ids, sb.Handle().ID)
	sb.e.mu.Unlock()
	sb.mu.Lock()
	for _, release := range sb.release {
		release()
	}
	sb.mu.Unlock()
	err := os.RemoveAll(trash)
	for range 100 { // a copy, or a keeper's last write, may still be in progress
		if err == nil {
			sb.removed = true
			return nil
		}
		time.Sleep(2 * time.Millisecond)
		err = os.RemoveAll(trash)
	}
	return errors.Wrapf(err, "remove a sandbox's files")
}

// warm is a sandbox without a spec.
type warm struct{ sb *sandbox }

func (w *warm) Handle() engine.Handle { return w.sb.Handle() }

func (w *warm) Claim(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	if err := w.sb.begin(ctx, OpClaim); err != nil {
		return nil, errors.Join(err, w.Destroy(context.WithoutCancel(ctx)))
	}
	if err := w.sb.e.claim(ctx, w.sb, spec); err != nil {
		return nil, errors.Join(err, w.Destroy(context.WithoutCancel(ctx)))
	}
	return w.sb, nil
}

func (w *warm) Destroy(ctx context.Context) error {
	if w.sb.Handle().ID != "" {
		return nil
	}
	return w.sb.destroy(ctx, engine.End{Destroyed: true, Detail: "It was never claimed."})
}
