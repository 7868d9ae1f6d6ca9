// Package gvisor runs sandboxes on one Linux machine with gVisor, which is built into this binary.
//
// Each sandbox has a keeper, a small process of its own (package keeper) that owns gVisor's processes and the commands in
// it. This package starts keepers and talks to them, so that a server can crash or be upgraded while commands go on.
// It works as root and as an ordinary user with user namespaces, with cgroups of version 1, 2, both or none.
package gvisor

import (
	"cmp"
	"context"
	"debug/elf"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/oklog/ulid/v2"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/engine/gvisor/keeper"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/volume"
)

// Images is what the engine needs of the image library.
type Images interface {
	image.Builder
	// Root returns the path of the image's EROFS file.
	Root(img image.Image) string
	// Layer returns the path of what a snapshot adds to that file, as a tar stream in the form of an OCI layer; "" for other images.
	Layer(img image.Image) string
	// Use keeps the image from being deleted until release.
	Use(id, who string) (release func(), err error)
}

// Volumes is what the engine needs of the volumes on this machine.
type Volumes interface {
	volume.Provider
	// Path returns the volume's directory.
	Path(name string) string
	// Use keeps the volume from being deleted until release.
	Use(name, who string) (release func(), err error)
}

// Options of Open.
type Options struct {
	Dir         string // data directory, absolute, on a disk; one engine at a time uses it
	Images      Images
	Volumes     Volumes
	Platform    string // of gVisor; "" means systrap
	NoSetuid    bool   // in sandboxes, setuid programs and those with file capabilities gain no privileges
	OutputBytes int64  // of each command that are kept for ProcessOpener; 0 means 64 MiB
	Executable  string // a static program that calls keeper.Handover first of all; "" means this process's, which must call Main
	Sentry      string // a static program that calls sentry.Main first of all; "" means Executable
	Tools       string // a static program that calls tool.Handover first of all, with whatever else Command.Own starts; "" means Executable
}

// defaultOutput is what of a command's output is kept.
const defaultOutput = 64 << 20

// Engine runs gVisor sandboxes. It is an engine.Engine and engine.Warmer.
type Engine struct {
	opts     Options
	rootless bool
	cgroups  bool
	trash    *trash

	mu      sync.Mutex
	holding map[string]*holding // by ref; guarded by mu
}

// holding is what one sandbox keeps from being deleted.
type holding struct {
	id       string // of the spec, "" while unclaimed
	ending   bool   // it is being destroyed: its keeper may be gone before the rest of it is
	releases []func()
}

// uses is the file in a sandbox's directory from which a later engine knows what it holds.
type uses struct {
	ID     string
	Image  string
	Mounts []engine.Mount
}

const usesFile = "uses.json"

// rootName is what a sandbox's directory calls its root file system, if it can have another name there.
const rootName = "root.erofs"

// Open makes the engine on a data directory and adopts the sandboxes that run there.
func Open(ctx context.Context, opts Options) (*Engine, error) {
	if opts.Platform == "" {
		opts.Platform = "systrap"
	}
	if opts.OutputBytes == 0 {
		opts.OutputBytes = defaultOutput
	}
	if opts.Executable == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, errors.Wrapf(err, "find own program")
		}
		opts.Executable = exe
	}
	opts.Sentry = cmp.Or(opts.Sentry, opts.Executable)
	for _, program := range []string{opts.Executable, opts.Sentry, cmp.Or(opts.Tools, opts.Executable)} {
		if err := checkStatic(program); err != nil {
			return nil, err
		}
	}
	e := &Engine{opts: opts, rootless: os.Geteuid() != 0, holding: map[string]*holding{}}
	e.cgroups = !e.rootless && cgroup.Available("harvest-probe-"+newRef()) == nil
	if err := os.MkdirAll(e.sandboxes(), 0o700); err != nil {
		return nil, errors.Wrapf(err, "create directory of sandboxes")
	}
	if err := keeper.WriteInit(e.initImage()); err != nil {
		return nil, err
	}
	e.trash = openTrash(filepath.Join(opts.Dir, "trash"))
	entries, err := os.ReadDir(e.sandboxes())
	if err != nil {
		return nil, errors.Wrapf(err, "list sandboxes")
	}
	for _, entry := range entries {
		e.adopt(ctx, entry.Name())
	}
	return e, nil
}

// checkStatic reports whether gVisor can start the program again in its empty root, where no shared library is.
func checkStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return errors.Wrapf(err, "read program %s", path)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			err := errors.Newf(errors.Unsupported, "this program needs shared libraries, and gVisor's sandboxes cannot start with them")
			return errors.Remedy(err, "build it with CGO_ENABLED=0")
		}
	}
	return nil
}

func (e *Engine) sandboxes() string        { return filepath.Join(e.opts.Dir, "sandboxes") }
func (e *Engine) initImage() string        { return filepath.Join(e.opts.Dir, keeper.InitName()) }
func (e *Engine) dir(ref string) string    { return filepath.Join(e.sandboxes(), ref) }
func (e *Engine) cgroup(ref string) string { return "harvest-" + ref }

// newRef returns a new name for a sandbox.
func newRef() string { return strings.ToLower(ulid.Make().String()) }

// adopt takes over what an earlier engine left in ref's directory.
func (e *Engine) adopt(ctx context.Context, ref string) {
	b, err := os.ReadFile(filepath.Join(e.dir(ref), usesFile))
	if errors.IsNotExist(err) && !e.alive(ctx, ref) {
		// The earlier engine died before the sandbox was more than a directory.
		if err := e.remove(ref); err != nil {
			logf.Errorf(ctx, "remove what was left of sandbox %s: %v", ref, err)
		}
		return
	}
	var u uses
	if err == nil {
		err = json.Unmarshal(b, &u)
	}
	if err != nil {
		logf.Errorf(ctx, "adopt sandbox %s: %v", ref, err)
	}
	h := &holding{id: u.ID}
	if err := e.hold(h, ref, u); err != nil {
		logf.Errorf(ctx, "adopt sandbox %s: %v", ref, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holding[ref] = h
}

// hold marks image and volumes as used by ref.
func (e *Engine) hold(h *holding, ref string, u uses) error {
	if u.Image != "" {
		release, err := e.opts.Images.Use(u.Image, ref)
		if err != nil {
			return errors.Stage(err, "image")
		}
		h.releases = append(h.releases, release)
	}
	for _, m := range u.Mounts {
		if m.Dir != "" {
			continue
		}
		release, err := e.opts.Volumes.Use(m.Volume, ref)
		if err != nil {
			return errors.Stage(err, "volumes")
		}
		h.releases = append(h.releases, release)
	}
	return nil
}

// take registers a new sandbox; the id must be free.
func (e *Engine) take(ref, id string) (*holding, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id != "" {
		for other, h := range e.holding {
			if h.id == id && other != ref {
				return nil, errors.Newf(errors.Conflict, "there is already a sandbox %q", id)
			}
		}
	}
	h := e.holding[ref]
	if h == nil {
		h = &holding{}
		e.holding[ref] = h
	}
	h.id = id
	return h, nil
}

// drop releases what ref held.
func (e *Engine) drop(ref string) {
	e.mu.Lock()
	h := e.holding[ref]
	delete(e.holding, ref)
	e.mu.Unlock()
	if h != nil {
		for _, release := range h.releases {
			release()
		}
	}
}

// Name implements engine.Engine.
func (e *Engine) Name() string { return "gvisor" }

// Images implements engine.Engine.
func (e *Engine) Images() image.Builder { return e.opts.Images }

// Volumes implements engine.Engine.
func (e *Engine) Volumes() volume.Provider { return e.opts.Volumes }

// Close implements engine.Engine. It waits until the files of destroyed sandboxes are gone.
func (e *Engine) Close() error {
	e.trash.wait()
	return nil
}

// Capabilities implements engine.Engine.
func (e *Engine) Capabilities() engine.Capabilities {
	c := engine.Capabilities{Isolation: "gvisor/" + e.opts.Platform, Terminal: true, Reopen: true, Warm: true, Volumes: true, Dirs: true, Users: true, Snapshot: true, Usage: true, Memory: true, Hostname: true, Isolated: true,
		Network: true, Rules: true, Denials: true,
		Limits: []string{"cpu", "memory", "processes", "disk", "files"}}
	if e.rootless {
		c.Isolation += " rootless"
	}
	if !e.cgroups {
		c.Missing = append(c.Missing,
			"no cgroups: the memory limit is watched ten times a second instead of held by the kernel",
			"no cgroups: the CPU limit holds in whole processors only")
	}
	return c
}

// List implements engine.Engine.
func (e *Engine) List(ctx context.Context) ([]engine.Handle, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]engine.Handle, 0, len(e.holding))
	for ref, h := range e.holding {
		list = append(list, engine.Handle{ID: h.id, Ref: ref})
	}
	return list, nil
}

// Open implements engine.Engine.
func (e *Engine) Open(ctx context.Context, h engine.Handle) (engine.Sandbox, error) {
	e.mu.Lock()
	held := e.holding[h.Ref]
	e.mu.Unlock()
	if held == nil || held.id != h.ID {
		return nil, errors.Newf(errors.NotFound, "sandbox %q is gone", h.ID)
	}
	return e.sandbox(h), nil
}

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	ref := newRef()
	prepare := e.prepare
	if spec.Checkpoint != "" {
		prepare = e.prepareRestore
	}
	claim, err := prepare(ctx, ref, spec)
	if err != nil {
		return nil, err
	}
	if err := e.boot(ctx, ref, spec, claim); err != nil {
		return nil, err
	}
	return e.sandbox(engine.Handle{ID: spec.ID, Ref: ref}), nil
}

// prepare takes ref for the spec and resolves its image and volumes. On failure ref is free again.
func (e *Engine) prepare(ctx context.Context, ref string, spec engine.Spec) (*wire.ClaimArgs, error) {
	img, err := e.opts.Images.Find(ctx, spec.Image)
	if err != nil {
		return nil, errors.Stage(err, "image")
	}
	h, err := e.take(ref, spec.ID)
	if err != nil {
		return nil, err
	}
	u := uses{ID: spec.ID, Image: img.ID, Mounts: spec.Mounts}
	if err = e.hold(h, ref, u); err == nil {
		err = e.writeUses(ref, u)
	}
	if err != nil {
		return nil, errors.Join(err, e.remove(ref))
	}
	root := e.opts.Images.Root(img)
	// The image may be built anew while the sandbox lives. A plain directory, or one on another file system, is what the image has in the end.
	_ = os.Link(root, filepath.Join(e.dir(ref), rootName))
	claim := &wire.ClaimArgs{ID: spec.ID, Root: root, Layer: e.opts.Images.Layer(img), Hostname: cmp.Or(spec.Hostname, engine.HostName(spec.ID)), Env: imageEnv(img),
		Dir: cmp.Or(spec.Dir, img.Config.Dir), User: cmp.Or(spec.User, img.Config.User), Network: spec.Network, Keep: spec.KeepOnOOM}
	maps.Copy(claim.Env, spec.Env)
	for _, m := range spec.Mounts {
		source := m.Dir
		if source == "" {
			source = e.opts.Volumes.Path(m.Volume)
		}
		claim.Mounts = append(claim.Mounts, wire.Mount{Source: source, Path: m.Path, ReadOnly: m.ReadOnly, Foreign: m.Dir != ""})
	}
	return claim, nil
}

// writeUses makes ref's directory, if missing, and notes in it what the sandbox uses.
func (e *Engine) writeUses(ref string, u uses) error {
	b, err := json.Marshal(u)
	if err == nil {
		err = os.MkdirAll(e.dir(ref), 0o700)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(e.dir(ref), usesFile), b, 0o600)
	}
	return errors.Wrapf(err, "write down what sandbox %s uses", ref)
}
