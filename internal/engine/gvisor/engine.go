// Package gvisor runs sandboxes on one Linux machine with gVisor, which is built into this binary.
//
// Each sandbox has a keeper, a small process (package keeper) that owns gVisor's processes and the commands in
// the sandbox. This package starts keepers and talks to them. So commands keep running while a server crashes
// or is upgraded. It works as root, and as an ordinary user with user namespaces. It works with cgroups of
// version 1, 2, both or none.
package gvisor

import (
	"cmp"
	"context"
	"debug/elf"
	"encoding/json"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/initprog"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Images is the engine's interface to the image library.
type Images interface {
	image.Builder
	// Root returns the path of the image's EROFS file.
	Root(img image.Image) string
	// Layer returns the path of a snapshot's changes to that file, a tar stream in the form of an OCI layer. It
	// returns "" for other images.
	Layer(img image.Image) string
	// Use protects the image from deletion until release is called.
	Use(id, who string) (release func(), err error)
}

// Volumes is the engine's interface to the volumes on this machine.
type Volumes interface {
	volume.Provider
	// Path returns the volume's directory.
	Path(name string) string
	// Use protects the volume from deletion until release is called.
	Use(name, who string) (release func(), err error)
}

// Options are the options of Open.
type Options struct {
	// Dir is the data directory: an absolute path, on a disk, used by one engine at a time.
	Dir      string
	Images   Images
	Volumes  Volumes
	Platform string // gVisor's platform; defaults to systrap
	// NoSetuid disables privileges from setuid programs and file capabilities in sandboxes.
	NoSetuid bool
	// OutputBytes is how much output of each command is kept for ProcessOpener. 0 means 64 MiB.
	OutputBytes int64
	// Executable is a static program that calls keeper.Handover first in main. "" means this process's, which
	// must call Main.
	Executable string
	// Sentry is a static program that calls sentry.Main first in main. "" means Executable.
	Sentry string
	// Tools is a static program that first in main calls tool.Handover and the handovers of the programs of
	// Command.Own. "" means Executable.
	Tools string
	// Hosts are further addresses of this machine, which sandboxes reach as little as those of its interfaces.
	Hosts []netip.Addr
	// SetOwner is for sandboxes with their own users. It makes the file system that serves a directory of engine.Mount
	// show the files of its user n as files of the host's user first+n. It returns false if that file system does not
	// serve the directory: the owners are then mapped as in volumes, as they are without SetOwner.
	SetOwner func(ctx context.Context, dir string, first int) (bool, error)
}

// defaultOutput is the default of Options.OutputBytes.
const defaultOutput = 64 << 20

// Engine runs gVisor sandboxes, or containers (Containers). It implements engine.Engine, engine.Isolator and
// engine.Warmer.
type Engine struct {
	*machine
	filter []unix.SockFilter // the filter of system calls of containers; nil for sandboxes of gVisor
}

// machine is what the engines of one data directory have in common.
type machine struct {
	opts     Options
	rootless bool
	cgroups  bool
	shared   error // why sandboxes of a server of root have no users of their own; nil if they have
	trash    *trash

	mu      sync.Mutex
	holding map[string]*holding // by ref; guarded by mu
}

// holding protects the objects that one sandbox uses from deletion.
type holding struct {
	id        string // Spec.ID, "" before the claim
	container bool   // rather than a sandbox of gVisor
	ending    bool   // it is being destroyed; its keeper may already be gone
	releases  []func()
}

// uses is a file in a sandbox's directory. It tells a later engine which objects the sandbox uses.
type uses struct {
	ID        string
	Image     string
	Mounts    []engine.Mount
	Container bool `json:",omitempty"` // it is a container
}

const usesFile = "uses.json"

// rootName is the name of the root file system in a sandbox's directory, if a hard link to it is possible.
const rootName = "root.erofs"

// Open opens the engine on a data directory, and adopts the sandboxes that run there.
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
	e := &Engine{machine: &machine{opts: opts, rootless: os.Geteuid() != 0, holding: map[string]*holding{}}}
	e.cgroups = !e.rootless && cgroup.Available("harvest-probe-"+newRef()) == nil
	if err := os.MkdirAll(e.sandboxes(), 0o700); err != nil {
		return nil, errors.Wrapf(err, "create directory of sandboxes")
	}
	e.findUsers(ctx)
	if err := initprog.Write(e.initImage()); err != nil {
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

// checkStatic returns an error unless the program is statically linked, because gVisor restarts it in its empty
// root, without shared libraries.
func checkStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return errors.Wrapf(err, "read program %s", path)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			err := errors.Newf(errors.Unsupported,
				"this program needs shared libraries, and gVisor's sandboxes cannot start with them")
			return errors.Remedy(err, "build it with CGO_ENABLED=0")
		}
	}
	return nil
}

func (e *Engine) sandboxes() string        { return filepath.Join(e.opts.Dir, "sandboxes") }
func (e *Engine) initImage() string        { return filepath.Join(e.opts.Dir, initprog.Name()) }
func (e *Engine) dir(ref string) string    { return filepath.Join(e.sandboxes(), ref) }
func (e *Engine) cgroup(ref string) string { return "harvest-" + ref }

// newRef returns a new name for a sandbox.
func newRef() string { return strings.ToLower(ulid.Make().String()) }

// adopt takes over the sandbox that an earlier engine left in ref's directory.
func (e *Engine) adopt(ctx context.Context, ref string) {
	b, err := os.ReadFile(filepath.Join(e.dir(ref), usesFile))
	if errors.IsNotExist(err) && !e.alive(ctx, ref) {
		// The earlier engine died before it had made more than the directory.
		if err := e.remove(ref); err != nil {
			logf.Errorf(ctx, "remove the leftovers of sandbox %s: %v", ref, err)
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
	h := &holding{id: u.ID, container: u.Container}
	if err := e.hold(h, u); err != nil {
		logf.Errorf(ctx, "adopt sandbox %s: %v", ref, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.holding[ref] = h
}

// hold marks the image and the volumes as used by the sandbox.
func (e *Engine) hold(h *holding, u uses) error {
	if u.Image != "" {
		release, err := e.opts.Images.Use(u.Image, engine.Holder(u.ID))
		if err != nil {
			return errors.Stage(err, "image")
		}
		h.releases = append(h.releases, release)
	}
	for _, m := range u.Mounts {
		if m.Dir != "" {
			continue
		}
		release, err := e.opts.Volumes.Use(m.Volume, engine.Holder(u.ID))
		if err != nil {
			return errors.Stage(err, "volumes")
		}
		h.releases = append(h.releases, release)
	}
	return nil
}

// take registers a new sandbox. The ID must be unused.
func (e *Engine) take(ref, id string) (*holding, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if id != "" {
		for other, h := range e.holding {
			if h.id == id && other != ref {
				return nil, errors.Newf(errors.Conflict, "sandbox %q: already exists", id)
			}
		}
	}
	h := e.holding[ref]
	if h == nil {
		h = &holding{}
		e.holding[ref] = h
	}
	h.id, h.container = id, e.filter != nil
	return h, nil
}

// drop releases everything that ref holds.
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
func (e *Engine) Name() string {
	if e.filter != nil {
		return engine.Container
	}
	return engine.GVisor
}

// Images implements engine.Engine.
func (e *Engine) Images() image.Builder { return e.opts.Images }

// Volumes implements engine.Engine.
func (e *Engine) Volumes() volume.Provider { return e.opts.Volumes }

// Close implements engine.Engine. It waits until the files of destroyed sandboxes are gone.
func (e *Engine) Close() error {
	e.trash.close()
	return nil
}

// Capabilities implements engine.Engine.
func (e *Engine) Capabilities() engine.Capabilities {
	c := engine.Capabilities{Isolation: "gvisor/" + e.opts.Platform, Terminal: true, Reopen: true, Warm: true,
		Volumes: true, Dirs: true, Users: true, Snapshot: true, Usage: true, Memory: true, Hostname: true,
		Isolated: true, Private: true,
		Network: true, Rules: true, Denials: true, Intercept: true,
		Limits: []string{"cpu", "memory", "processes", "disk", "files", "volume_files"}}
	if e.filter != nil {
		return ofContainers(c)
	}
	if e.rootless {
		c.Isolation += " rootless"
	}
	if e.shared != nil {
		c.Isolation += " shared users"
		c.Missing = append(c.Missing,
			"no users of their own: sandboxes run as this machine's user 0, without its capabilities")
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
	return e.sandbox(h, held.container), nil
}

// Create implements engine.Engine.
func (e *Engine) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	ref := newRef()
	prepare := e.prepare
	if spec.Checkpoint != "" {
		if e.filter != nil {
			return nil, errors.Remedy(errors.Newf(errors.Unsupported, "a container cannot start from a checkpoint"),
				"use "+engine.GVisor+", or a snapshot of files")
		}
		prepare = e.prepareRestore
	}
	claim, err := prepare(ctx, ref, spec)
	if err != nil {
		return nil, err
	}
	if err := e.boot(ctx, ref, spec, claim); err != nil {
		return nil, err
	}
	return e.sandbox(engine.Handle{ID: spec.ID, Ref: ref}, e.filter != nil), nil
}

// prepare takes ref for the spec, and resolves its image and volumes. If it fails, ref is free again.
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
	if err = e.hold(h, u); err == nil {
		err = e.writeUses(ref, u)
	}
	if err != nil {
		return nil, errors.Join(err, e.remove(ref))
	}
	root := e.opts.Images.Root(img)
	// The image may be rebuilt while the sandbox exists, so keep a link to its file for Root. The link fails for
	// a directory and across file systems. In that case, only the image's current file is available.
	_ = os.Link(root, filepath.Join(e.dir(ref), rootName))
	claim := &wire.ClaimArgs{ID: spec.ID, Root: root, Layer: e.opts.Images.Layer(img),
		Hostname: cmp.Or(spec.Hostname, engine.HostName(spec.ID)), Env: imageEnv(img),
		Dir: cmp.Or(spec.Dir, img.Config.Dir), User: cmp.Or(spec.User, img.Config.User), Network: spec.Network,
		Keep: spec.KeepOnOOM, Spec: &spec}
	maps.Copy(claim.Env, spec.Env)
	for _, m := range spec.Mounts {
		source := m.Dir
		if source == "" {
			source = e.opts.Volumes.Path(m.Volume)
		}
		claim.Mounts = append(claim.Mounts, wire.Mount{Source: source, Path: m.Path, ReadOnly: m.ReadOnly,
			Foreign: m.Dir != ""})
	}
	return claim, nil
}

// writeUses records the objects that the sandbox uses in ref's directory, which is created if missing.
func (e *Engine) writeUses(ref string, u uses) error {
	u.Container = e.filter != nil
	b, err := json.Marshal(u)
	if err == nil {
		err = os.MkdirAll(e.dir(ref), 0o700)
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(e.dir(ref), usesFile), b, 0o600)
	}
	return errors.Wrapf(err, "record the resources of sandbox %s", ref)
}
