// Package fake is an engine without isolation: sandboxes are directories, and commands are plain child
// processes. It exists for tests of the packages above engines and of the conformance suite itself. It fulfils
// the contract as far as that is possible. A Dir of "/x" means x below the sandbox's directory. Other absolute
// paths in commands are the host's.
package fake

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/proc"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Options are the options of Open.
type Options struct {
	KeepOutput  int64 // kept output of each command, in bytes; 0 means 16 MiB
	VolumeQuota int   // volumes of one account; 0 means no limit
	VolumeFiles int   // files and directories of one volume, from outside of sandboxes; 0 means no limit
}

// Engine is the fake. In addition to the contract, it has methods that inject faults.
type Engine struct {
	dir     string
	opts    Options
	images  *images
	volumes *volume.Local

	mu        sync.Mutex
	sandboxes map[string]*sandbox  // by Ref; guarded by mu, like all below
	ids       map[string]bool      // IDs in use, including those of sandboxes that are being created
	fail      map[Op][]error       // errors of the next calls
	delay     map[Op]time.Duration // additional duration of every call
}

var (
	_ engine.Engine = (*Engine)(nil)
	_ engine.Warmer = (*Engine)(nil)
)

// Main lets commands outlive this process. Call it first in TestMain or main. Each command then gets its own
// keeper, which is another process of this program. In that process, Main runs the keeper and does not return.
// Without Main, keepers are goroutines.
func Main() {
	if os.Args[0] == engine.OwnEcho {
		engine.Echo(os.Args[1:], os.Stdout)
		os.Exit(0)
	}
	proc.Main()
}

// Open opens the engine with sandboxes and volumes in dir, which is created if missing.
func Open(dir string, opts Options) (*Engine, error) {
	if opts.KeepOutput == 0 {
		opts.KeepOutput = 16 << 20
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, errors.Wrapf(err, "find %s", dir)
	}
	e := &Engine{
		dir: dir, opts: opts, sandboxes: map[string]*sandbox{}, ids: map[string]bool{},
		fail: map[Op][]error{}, delay: map[Op]time.Duration{},
	}
	e.images = newImages(e.usesImage)
	for _, sub := range []string{"sandboxes", "trash", "new"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, errors.Wrapf(err, "make the data directory")
		}
	}
	for _, sub := range []string{"trash", "new"} { // left by a process that was killed
		if err := emptyDir(filepath.Join(dir, sub)); err != nil {
			return nil, err
		}
	}
	if e.volumes, err = volume.OpenDir(filepath.Join(dir, "volumes")); err != nil {
		return nil, err
	}
	e.volumes.SetQuota(opts.VolumeQuota)
	e.volumes.SetFileLimit(opts.VolumeFiles)
	if err := e.load(); err != nil {
		return nil, errors.Join(err, e.volumes.Close())
	}
	return e, nil
}

func emptyDir(dir string) error {
	entries, err := os.ReadDir(dir)
	for _, entry := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return errors.Wrapf(err, "empty %s", dir)
}

// load finds the existing sandboxes.
func (e *Engine) load() error {
	entries, err := os.ReadDir(filepath.Join(e.dir, "sandboxes"))
	if err != nil {
		return errors.Wrapf(err, "list the sandboxes")
	}
	for _, entry := range entries {
		sb := e.newSandbox(entry.Name(), filepath.Join(e.dir, "sandboxes", entry.Name()))
		data, err := os.ReadFile(filepath.Join(sb.dir, "record.json"))
		if err != nil {
			return errors.Wrapf(err, "read a sandbox's record")
		}
		if err := json.Unmarshal(data, &sb.record); err != nil {
			return errors.Wrapf(err, "read the record of sandbox %s", sb.ref)
		}
		if sb.record.End != nil {
			close(sb.ended)
		}
		for _, m := range sb.record.Mounts {
			if err := sb.use(sb.record.ID, m.Volume); err != nil {
				return err
			}
		}
		e.sandboxes[sb.ref] = sb
		e.ids[sb.record.ID] = true
	}
	return nil
}

// Name returns "fake".
func (e *Engine) Name() string { return "fake" }

// Capabilities returns the capabilities of plain processes.
func (e *Engine) Capabilities() engine.Capabilities {
	c := engine.Capabilities{
		Isolation: "none (plain processes)",
		Missing: []string{
			"Commands run on the host, see its files, its processes and its network, and can do all that Harvest's " +
				"own user can.",
			"No limit holds, and volumes that are mounted read-only can be written.",
		},
		Terminal: true, Reopen: true, Warm: true, Volumes: true, Users: os.Geteuid() == 0,
	}
	if !proc.Detached() {
		c.Missing = append(c.Missing, "Commands do not outlive the process of Harvest.")
	}
	return c
}

// Images returns a builder with one image, "base".
func (e *Engine) Images() image.Builder { return e.images }

// Volumes returns a provider that stores volumes as directories.
func (e *Engine) Volumes() volume.Provider { return e.volumes }

// Close closes the volumes.
func (e *Engine) Close() error { return e.volumes.Close() }

// Create creates the directory of a sandbox.
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	if err := e.fault(OpCreate); err != nil {
		return nil, err
	}
	sb, err := e.make(ctx, spec.Stage)
	if err != nil {
		return nil, err
	}
	if err := e.claim(ctx, sb, spec); err != nil {
		return nil, errors.Join(err, sb.remove())
	}
	return sb, nil
}

// Warm creates a directory without a spec.
func (e *Engine) Warm(ctx context.Context, _ engine.Limits) (engine.Warm, error) {
	if err := e.fault(OpWarm); err != nil {
		return nil, err
	}
	sb, err := e.make(ctx, nil)
	if err != nil {
		return nil, err
	}
	if err := e.publish(sb); err != nil {
		return nil, errors.Join(err, sb.remove())
	}
	return &warm{sb: sb}, nil
}

// make creates the files of a sandbox that is not visible yet.
func (e *Engine) make(ctx context.Context, stage func(string, time.Duration)) (*sandbox, error) {
	begin := time.Now()
	ref := "fake-" + strings.ToLower(rand.Text())
	sb := e.newSandbox(ref, filepath.Join(e.dir, "new", ref))
	err := os.MkdirAll(filepath.Join(sb.dir, "processes"), 0o755)
	for _, dir := range []string{"root", "root/home", "root/mnt", "root/root", "root/tmp"} {
		err = errors.Join(err, os.MkdirAll(filepath.Join(sb.dir, dir), 0o755))
	}
	err = errors.Join(err, os.Chmod(filepath.Join(sb.dir, "root/tmp"), 0o777|os.ModeSticky))
	if err == nil {
		err = e.pause(ctx, OpCreate)
	}
	if err != nil {
		return nil, errors.Join(errors.Wrapf(err, "make a sandbox"), sb.remove())
	}
	if stage != nil {
		stage("files", time.Since(begin))
	}
	return sb, nil
}

// claim turns sb into the sandbox that spec describes, and makes it visible. If it fails, sb is as before,
// except for its files.
func (e *Engine) claim(ctx context.Context, sb *sandbox, spec engine.Spec) error {
	begin, old := time.Now(), sb.record
	if err := e.reserve(spec.ID); err != nil {
		return err
	}
	record, err := e.record(ctx, spec)
	if err == nil {
		err = sb.mount(spec.ID, spec.Mounts, spec.User)
	}
	if err == nil {
		err = ctx.Err()
	}
	if err == nil {
		sb.mu.Lock()
		sb.record = record
		sb.mu.Unlock()
		if err = e.publish(sb); err != nil {
			sb.mu.Lock()
			sb.record = old
			sb.mu.Unlock()
		}
	}
	if err != nil {
		e.release(spec.ID)
		return errors.Wrapf(err, "create sandbox %s", spec.ID)
	}
	if spec.Stage != nil {
		spec.Stage("claim", time.Since(begin))
	}
	return nil
}

// record validates spec and merges it with its image.
func (e *Engine) record(ctx context.Context, spec engine.Spec) (record, error) {
	img, err := e.images.Find(ctx, spec.Image)
	if err != nil {
		return record{}, err
	}
	r := record{ID: spec.ID, Image: img.ID, Env: maps.Clone(img.Config.Env), Dir: spec.Dir, User: spec.User,
		Mounts: spec.Mounts, Spec: spec}
	r.Spec.Stage = nil
	for name, value := range spec.Env {
		if err := engine.CheckEnvName(name); err != nil {
			return record{}, err
		}
		r.Env[name] = value
	}
	if r.Dir == "" {
		r.Dir = img.Config.Dir
	}
	if err := proc.CheckUser(r.User); err != nil {
		return record{}, err
	}
	return r, nil
}

// publish writes the record and makes sb visible.
func (e *Engine) publish(sb *sandbox) error {
	if err := sb.save(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.sandboxes[sb.ref] == sb {
		return nil
	}
	dir := filepath.Join(e.dir, "sandboxes", sb.ref)
	if err := os.Rename(sb.dir, dir); err != nil {
		return errors.Wrapf(err, "publish a sandbox")
	}
	sb.dir = dir
	e.sandboxes[sb.ref] = sb
	return nil
}

func (e *Engine) reserve(id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ids[id] {
		return errors.Newf(errors.Conflict, "sandbox %s: already exists", id)
	}
	e.ids[id] = true
	return nil
}

func (e *Engine) release(id string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.ids, id)
}

// Open finds a sandbox by its Ref.
func (e *Engine) Open(_ context.Context, h engine.Handle) (engine.Sandbox, error) {
	if err := e.fault(OpOpen); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	sb := e.sandboxes[h.Ref]
	if sb == nil || sb.Handle().ID != h.ID {
		return nil, errors.Newf(errors.NotFound, "sandbox %.100s is gone", h.ID)
	}
	return sb, nil
}

// List returns the visible sandboxes.
func (e *Engine) List(context.Context) ([]engine.Handle, error) {
	if err := e.fault(OpList); err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	handles := []engine.Handle{}
	for _, sb := range e.sandboxes {
		handles = append(handles, sb.Handle())
	}
	return handles, nil
}

func (e *Engine) usesImage(id string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, sb := range e.sandboxes {
		sb.mu.Lock()
		image := sb.record.Image
		sb.mu.Unlock()
		if image == id {
			return true
		}
	}
	return false
}
