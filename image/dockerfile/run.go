package dockerfile

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/moby/buildkit/solver/pb"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image/dockerfile/files"
	"github.com/RelevanceAI/harvest/image/dockerfile/plan"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

// run is a RUN.
type run struct {
	Args    []string
	Env     []string // KEY=VALUE, sorted
	Dir     string
	User    string
	Network string
	Mounts  []mount `json:",omitempty"`
	proxy   map[string]string
}

// runOf returns the run of an operation.
func (x *executor) runOf(v *plan.Vertex) (*run, error) {
	op := v.Op.GetExec()
	r := &run{Args: op.Meta.Args, Env: slices.Sorted(slices.Values(op.Meta.Env)), Dir: cmp.Or(op.Meta.Cwd, "/"),
		User: op.Meta.User, Network: "default", proxy: proxies(op.Meta.ProxyEnv)}
	if op.Network == pb.NetMode_NONE {
		r.Network = "none"
	}
	for _, m := range op.Mounts {
		if m.Dest == "/" {
			continue
		}
		to, err := x.mountOf(v, m)
		if err != nil {
			return nil, err
		}
		r.Mounts = append(r.Mounts, to)
	}
	for _, s := range op.Secretenv {
		r.Mounts = append(r.Mounts, mount{Type: "secret", ID: s.ID, Env: s.Name, Required: !s.Optional})
	}
	return r, nil
}

// proxies returns the variables that every RUN gets without an ARG, and that are not part of cache keys.
func proxies(p *pb.ProxyEnv) map[string]string {
	all := map[string]string{}
	if p == nil {
		return all
	}
	for name, value := range map[string]string{"HTTP_PROXY": p.HttpProxy, "HTTPS_PROXY": p.HttpsProxy,
		"FTP_PROXY": p.FtpProxy, "NO_PROXY": p.NoProxy, "ALL_PROXY": p.AllProxy} {
		if value != "" {
			all[name], all[strings.ToLower(name)] = value, value
		}
	}
	return all
}

// prepareRun prepares a RUN.
func (x *executor) prepareRun(v *plan.Vertex) (*work, error) {
	r, err := x.runOf(v)
	if err != nil {
		return nil, err
	}
	var shown []string
	for _, m := range r.Mounts {
		if m.Type == "bind" {
			digest, err := x.bindDigest(m)
			if err != nil {
				return nil, err
			}
			shown = append(shown, digest)
		}
		if m.Type == "secret" && m.Required && x.opts.Secrets[m.ID] == nil {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "the build has no secret %.100q", m.ID),
				"give it with --secret id=%s,src=FILE", m.ID)
		}
	}
	how, err := json.Marshal(r)
	if err != nil {
		return nil, errors.Wrapf(err, "encode an instruction")
	}
	key := hash(append([]string{x.chain.key, "run", string(how)}, shown...)...)
	return &work{key, func(ctx context.Context, out *os.File) error { return x.run(ctx, r, v.Title, out) }}, nil
}

// ownFiles are files of the file systems that a machine mounts itself. It makes the directories above them in images
// that lack them.
var ownFiles = []string{"/dev/null", "/proc/self", "/sys/fs", "/tmp/.X11-unix/X0"}

// run runs a command and writes its changes.
func (x *executor) run(ctx context.Context, r *run, title string, out *os.File) error {
	unlock, err := x.lockCaches(ctx, r)
	if err != nil {
		return err
	}
	defer unlock()
	hidden, crashed, err := x.attempt(ctx, r, title)
	if crashed != "" {
		prefix, _, _ := strings.Cut(title, "] ")
		x.log.line(prefix + "] " + x.log.secrets.Replace(crashed) + "; the step runs once more")
		x.tainted = true // discard its changes with the machine
		hidden, _, err = x.attempt(ctx, r, title)
	}
	if err != nil {
		return err
	}
	d := &files.Delta{Out: out, Before: x.index, Hidden: files.Below(hidden), Base: x.tree}
	for _, m := range r.Mounts {
		d.Hold(m.Target)
	}
	for _, file := range ownFiles {
		d.Hold(file)
	}
	after, err := x.snapshot(ctx, d)
	if err != nil {
		return errors.Wrapf(err, "take a snapshot")
	}
	x.index = after
	return nil
}

// attempt runs a command in a machine with the files of the stage, and returns the paths to omit
// from its layer. crashed names the processes that crashed, if the command failed.
func (x *executor) attempt(ctx context.Context, r *run, title string) (hidden []string, crashed string, err error) {
	if err := x.ready(ctx, r, title); err != nil {
		return nil, "", err
	}
	cmd := Command{Args: r.Args, Dir: r.Dir, User: r.User, Env: maps.Clone(r.proxy)}
	if x.chain.img != nil {
		maps.Copy(cmd.Env, x.chain.img.Config.AddedEnv())
	}
	for _, kv := range r.Env {
		name, value, _ := strings.Cut(kv, "=")
		cmd.Env[name] = value
	}
	if hidden, err = x.mount(ctx, r, &cmd); err != nil {
		return nil, "", err
	}
	cmd.Crashed = func(what string) { crashed = what }
	if err = x.command(ctx, cmd, title); err == nil && len(r.Mounts) > 0 {
		err = x.machine.Unmount(ctx, bindDir, secretDir)
	}
	if crashed != "" && errors.KindOf(err) == errors.Invalid {
		err = errors.Remedy(errors.Newf(errors.Invalid, "%s\n%s", errors.Message(err), x.log.secrets.Replace(crashed)),
			"%s", errors.RemedyOf(err))
	}
	return hidden, crashed, err
}

// command runs a command with its time limit. Its error includes the last lines of the output.
func (x *executor) command(ctx context.Context, cmd Command, title string) error {
	limit := x.source.opts.Run
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		errors.Newf(errors.Timeout, "the command exceeded its time limit of %s", limit))
	defer cancel()
	prefix, _, _ := strings.Cut(title, "] ")
	out := x.log.output(prefix + "] ")
	cmd.Stdout = out
	code, err := x.machine.Run(ctx, cmd)
	tail := out.last()
	if tail != "" {
		tail = "\nIts last output was:\n" + tail
	}
	_, text, _ := strings.Cut(title, "] ")
	text = x.log.secrets.Replace(text)
	switch cause := context.Cause(ctx); {
	case cause != nil && errors.KindOf(cause) == errors.Timeout:
		return errors.Remedy(errors.Explainf(cause, errors.Timeout, "%s: %s%s", text, errors.Message(cause), tail),
			"see why it does not end, or make it faster")
	case cause != nil:
		return cause
	case err != nil:
		return errors.Wrapf(err, "run a command of a build")
	case code != 0:
		return errors.Remedy(errors.Newf(errors.Invalid, "%s: the command failed with exit code %d%s", text, code,
			tail), "correct the command; the steps before it are cached")
	}
	return nil
}

// lockCaches locks the cache mounts that only one build may use at a time.
func (x *executor) lockCaches(ctx context.Context, r *run) (func(), error) {
	var names []string
	for _, m := range r.Mounts {
		if m.Type == "cache" && m.Sharing != "" && m.Sharing != "shared" {
			names = append(names, "volume "+m.volume(x.owner))
		}
	}
	return x.lockAll(ctx, names)
}

// lockAll takes the locks of these names.
func (x *executor) lockAll(ctx context.Context, names []string) (func(), error) {
	slices.Sort(names) // to avoid a deadlock of two builds with the same mounts
	var unlocks []func()
	unlock := func() {
		for _, u := range unlocks {
			u()
		}
	}
	for _, name := range slices.Compact(names) {
		u, err := x.source.lock(ctx, name)
		if err != nil {
			unlock()
			return nil, err
		}
		unlocks = append(unlocks, u)
	}
	return unlock, nil
}

// ready provides a machine in the state of the stage with the volumes of r.
func (x *executor) ready(ctx context.Context, r *run, title string) error {
	setup := Setup{Network: cmp.Or(r.Network, "default"), Title: title}
	for _, m := range r.Mounts {
		if m.Type == "cache" {
			setup.Mounts = append(setup.Mounts, Mount{Volume: m.volume(x.owner), Path: m.Target, ReadOnly: m.ReadOnly})
			if m.Files != "" {
				continue // see fill
			}
			if err := x.cache.noteMount(x.owner, m, false); err != nil {
				return err
			}
		}
	}
	shape := fmt.Sprint(setup.Network, setup.Mounts)
	if x.machine != nil && shape == x.shape && !x.tainted {
		return x.catchUp(ctx)
	}
	if err := x.stop(ctx); err != nil {
		return err
	}
	id, layered, release, err := x.prepareRoot(ctx)
	if err != nil {
		return err
	}
	setup.Image = id
	err = x.startFilled(ctx, r, setup)
	release()
	if err != nil {
		return err
	}
	x.shape, x.tainted, x.index, x.pending = shape, false, files.Index{}, nil
	if layered {
		x.index, err = x.snapshot(ctx, &files.Delta{Before: files.Index{}})
	}
	return errors.Wrapf(err, "take a snapshot")
}

// prepareRoot returns the id of a root file system with the state of the stage. layered means that
// part of that state is in the machine's snapshot.
func (x *executor) prepareRoot(ctx context.Context) (id string, layered bool, release func(), err error) {
	c := x.chain
	if c.img != nil && len(c.layers) == 0 && x.images.Layer(*c.img) == "" {
		return c.img.ID, false, func() {}, nil
	}
	if root, ok := x.cache.root(c); ok {
		id, release := x.cache.prepare(Prepared{Root: root})
		return id, false, release, nil
	}
	if c.img != nil {
		if id, release, err = x.prepareLayer(c); id != "" || err != nil {
			return id, true, release, err
		}
	}
	unlock, err := x.source.lock(ctx, "root "+c.key+c.made)
	if err != nil {
		return "", false, nil, err
	}
	defer unlock()
	if err := x.cache.makeRoot(c, func(f *os.File) error {
		return files.Flatten(ctx, f, x.base(c),
			x.layerFiles(c))
	}); err != nil {
		return "", false, nil, err
	}
	id, release = x.cache.prepare(Prepared{Root: x.cache.rootName(c)})
	return id, false, release, nil
}

// prepareLayer returns the id of the stage's image with a single layer that has the state of the
// stage. The id is "" if the layers are too large.
func (x *executor) prepareLayer(c chain) (string, func(), error) {
	size := int64(0)
	for _, name := range x.layerFiles(c) {
		info, err := os.Stat(name)
		if err != nil {
			return "", nil, errors.Wrapf(err, "measure a layer")
		}
		size += info.Size()
	}
	if size > x.source.opts.Merged {
		return "", nil, nil
	}
	f, err := os.CreateTemp(x.temp, "layer-*.tar")
	if err != nil {
		return "", nil, tarfs.Explain(err, "a layer")
	}
	remove := func() { _ = os.Remove(f.Name()) } // the directory is removed after the build
	if err := errors.Join(files.Concat(f, x.layerFiles(c)), f.Close()); err != nil {
		remove()
		return "", nil, err
	}
	id, release := x.cache.prepare(Prepared{Root: x.base(c), Layer: f.Name()})
	return id, func() { release(); remove() }, nil
}
