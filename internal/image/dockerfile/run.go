package dockerfile

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"github.com/moby/buildkit/solver/pb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/plan"
)

// run is a RUN.
type run struct {
	*pb.ExecOp
	title   string
	proxy   map[string]string
	mounts  []mount
	noAgent bool // it has a mount of an SSH agent, and goes on without
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

// prepareRun prepares a RUN. Its key consists of the operation and the content of mounts, without their names in the
// graph.
func (x *executor) prepareRun(v *plan.Vertex) (*work, error) {
	op := v.Op.GetExec().CloneVT()
	r := &run{ExecOp: op, title: v.Title, proxy: proxies(op.Meta.ProxyEnv)}
	op.Meta.ProxyEnv = nil
	parts := []string{x.chain.key, "run"}
	for _, m := range op.Mounts {
		to := mount{Mount: m, source: m.Selector}
		if m.Input >= 0 {
			to.from = v.Inputs[m.Input]
		}
		m.Dest, m.Input, m.Selector = path.Clean(m.Dest), 0, ""
		if m.MountType == pb.MountType_SSH {
			r.noAgent = true
			continue
		}
		if m.Dest == "/" {
			continue
		}
		var err error
		switch m.MountType {
		case pb.MountType_CACHE:
			m.CacheOpt.ID = strings.TrimPrefix(m.CacheOpt.ID, "/")
			if err = x.cacheFiles(&to); to.files != "" {
				parts = append(parts, to.files)
			}
		case pb.MountType_BIND:
			var digest string
			digest, err = x.bindDigest(to)
			parts = append(parts, digest)
		case pb.MountType_SECRET:
			err = x.require(m.SecretOpt.ID, m.SecretOpt.Optional)
		}
		if err != nil {
			return nil, err
		}
		r.mounts = append(r.mounts, to)
	}
	for _, s := range op.Secretenv {
		if err := x.require(s.ID, s.Optional); err != nil {
			return nil, err
		}
	}
	how, err := op.MarshalVT()
	if err != nil {
		return nil, errors.Wrapf(err, "encode an operation")
	}
	return &work{hash(append(parts, string(how))...), func(ctx context.Context, out *os.File) error {
		return x.run(ctx, r, out)
	}}, nil
}

// require returns an error if a secret that a RUN needs is missing.
func (x *executor) require(id string, optional bool) error {
	if optional || x.opts.Secrets[id] != nil {
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "the build has no secret %.100q", id),
		"give it with --secret id=%s,src=FILE", id)
}

// run runs a command and writes its changes.
func (x *executor) run(ctx context.Context, r *run, out *os.File) error {
	unlock, err := x.lockCaches(ctx, r)
	if err != nil {
		return err
	}
	defer unlock()
	if r.noAgent {
		x.log.line(prefix(r.title) + "the command runs without an SSH agent")
	}
	crashed, err := x.attempt(ctx, r)
	if crashed != "" {
		x.log.line(prefix(r.title) + x.log.secrets.Replace(crashed) + "; the step runs once more")
		x.tainted = true // discard its changes with the machine
		_, err = x.attempt(ctx, r)
	}
	if err != nil {
		return err
	}
	after, err := x.snapshot(ctx, &files.Delta{Out: out, Before: x.index, Hidden: hidden})
	if err != nil {
		return errors.Wrapf(err, "take a snapshot")
	}
	x.index = after
	return nil
}

// attempt runs a command in a machine with the files of the stage. crashed names the processes that crashed, if the
// command failed.
func (x *executor) attempt(ctx context.Context, r *run) (crashed string, err error) {
	if err := x.ready(ctx, r); err != nil {
		return "", err
	}
	cmd := Command{Args: r.Meta.Args, Dir: cmp.Or(r.Meta.Cwd, "/"), User: r.Meta.User, Env: maps.Clone(r.proxy)}
	if x.chain.img != nil {
		maps.Copy(cmd.Env, x.chain.img.Config.AddedEnv())
	}
	for _, kv := range r.Meta.Env {
		name, value, _ := strings.Cut(kv, "=")
		cmd.Env[name] = value
	}
	if err = x.mount(ctx, r, &cmd); err != nil {
		return "", err
	}
	cmd.Crashed = func(what string) { crashed = what }
	if err = x.command(ctx, cmd, r.title); err == nil && len(r.mounts) > 0 {
		err = x.machine.Unmount(ctx, bindDir, secretDir)
	}
	if crashed != "" && errors.KindOf(err) == errors.Invalid {
		err = errors.Remedy(errors.Newf(errors.Invalid, "%s\n%s", errors.Message(err), x.log.secrets.Replace(crashed)),
			"%s", errors.RemedyOf(err))
	}
	return crashed, err
}

// command runs a command with its time limit. Its error includes the last lines of the output.
func (x *executor) command(ctx context.Context, cmd Command, title string) error {
	limit := x.source.opts.Run
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		errors.Newf(errors.Timeout, "the command exceeded its time limit of %s", limit))
	defer cancel()
	out := x.log.output(prefix(title))
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
	for _, m := range r.mounts {
		if m.MountType == pb.MountType_CACHE && m.CacheOpt.Sharing != pb.CacheSharingOpt_SHARED {
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
func (x *executor) ready(ctx context.Context, r *run) error {
	setup := Setup{Network: "default", Title: r.title}
	if r.Network == pb.NetMode_NONE {
		setup.Network = "none"
	}
	for _, m := range r.mounts {
		if m.MountType != pb.MountType_CACHE {
			continue
		}
		setup.Mounts = append(setup.Mounts, Mount{Volume: m.volume(x.owner), Path: cachePath(len(setup.Mounts)),
			ReadOnly: m.Readonly})
		if m.files == "" { // else see fill
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
	tree, err := x.tree()
	if err != nil {
		return err
	}
	setup.Bare = tree.Lacks("/tmp")
	var root Prepared
	release := func() {}
	if c := x.chain; c.img != nil && len(x.layerFiles(c)) == 0 {
		setup.Image = c.img.ID
	} else {
		if root, err = x.prepareRoot(ctx, c); err != nil {
			return err
		}
		setup.Image, release = x.cache.prepare(root)
	}
	err = x.startFilled(ctx, r, setup)
	release()
	_ = os.Remove(root.Layer) // if any; its directory is removed after the build
	if err != nil {
		return err
	}
	x.shape, x.tainted, x.pending = shape, false, nil
	return x.begin(ctx)
}

// begin takes the first snapshot of a machine: changes of its own are not those of a command. The directories of the
// kernel's file systems, which a machine makes, become part of an image that lacks them with its first RUN, as in
// BuildKit.
func (x *executor) begin(ctx context.Context) error {
	tree, err := x.tree()
	if err != nil {
		return err
	}
	x.index, err = x.snapshot(ctx, &files.Delta{Before: files.Index{}, Hidden: hidden})
	for _, dir := range []string{"dev", "proc", "sys"} {
		if tree.Lacks("/" + dir) {
			x.index.Forget(dir)
		}
	}
	return errors.Wrapf(err, "take a snapshot")
}

// prepareRoot returns a root file system with the state of the stage: that of its image with one layer, unless the
// layers are too large.
func (x *executor) prepareRoot(ctx context.Context, c chain) (Prepared, error) {
	_, ready := x.cache.root(c)
	size := int64(0)
	for _, name := range x.layerFiles(c) {
		info, err := os.Stat(name)
		if err != nil {
			return Prepared{}, errors.Wrapf(err, "measure a layer")
		}
		size += info.Size()
	}
	if ready || c.img == nil || size > x.source.opts.Merged {
		name, err := x.root(ctx, c)
		return Prepared{Root: name}, err
	}
	f, err := os.CreateTemp(x.temp, "layer-*.tar")
	if err != nil {
		return Prepared{}, tarfs.Explain(err, "a layer")
	}
	err = errors.Join(files.Concat(f, x.layerFiles(c)), f.Close())
	return Prepared{Root: x.base(c), Layer: f.Name()}, err
}
