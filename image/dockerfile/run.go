package dockerfile

import (
	"archive/tar"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/moby/buildkit/solver/pb"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/image/dockerfile/plan"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

// secrets is the directory, in the machine's memory, of the secrets of a RUN.
const secrets = "/dev/shm/.harvest-secrets"

// maxFetch is the maximum size of a file that ADD downloads.
const maxFetch = 8 << 30

// maxTrailer is the maximum output of curl after a file: one header line, which curl limits to 100
// KiB.
const maxTrailer = 128 << 10

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

// mount is a --mount of a RUN.
type mount struct {
	Type     string
	Target   string
	ID       string `json:",omitempty"`
	Sharing  string `json:",omitempty"`
	Env      string `json:",omitempty"`
	Size     int64  `json:",omitempty"` // of a tmpfs; 0: no limit of its own
	Mode     uint32
	UID, GID int
	ReadOnly bool
	Required bool

	from   *plan.Vertex // of a bind mount; nil: an empty directory
	source string       // the path in it
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

func (x *executor) mountOf(v *plan.Vertex, from *pb.Mount) (mount, error) {
	m := mount{Target: path.Clean(from.Dest), ReadOnly: from.Readonly, Mode: 0o755, source: from.Selector}
	if from.Input >= 0 {
		m.from = v.Inputs[from.Input]
	}
	switch from.MountType {
	case pb.MountType_CACHE:
		m.Type, m.ID = "cache", strings.TrimPrefix(from.CacheOpt.ID, "/")
		m.Sharing = strings.ToLower(from.CacheOpt.Sharing.String())
		return m, x.cacheOwner(&m)
	case pb.MountType_TMPFS:
		m.Type, m.Mode = "tmpfs", 0o1777
		if from.TmpfsOpt != nil {
			m.Size = from.TmpfsOpt.Size
		}
	case pb.MountType_SECRET:
		s := from.SecretOpt
		m.Type, m.ID, m.Required = "secret", s.ID, !s.Optional
		m.Mode, m.UID, m.GID = s.Mode&0o7777, int(s.Uid), int(s.Gid)
	default:
		m.Type = "bind"
	}
	return m, nil
}

// cacheOwner sets the owner and mode of a cache mount: those of the directory that it begins with.
func (x *executor) cacheOwner(m *mount) error {
	if m.from == nil {
		return nil
	}
	from, err := x.files(m.from)
	if err != nil {
		return err
	}
	if dir, _, err := from.lookup(m.source, true); err == nil && dir != nil {
		m.UID, m.GID, m.Mode = dir.uid, dir.gid, uint32(dir.mode)
	}
	m.from = nil
	return nil
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

// bound returns the file or directory of a bind mount.
func (b *build) bound(m mount) (*file, error) {
	if m.from == nil {
		return newDir(defaultMode), nil
	}
	from, err := b.files(m.from)
	if err != nil {
		return nil, err
	}
	f, _, err := from.lookup(m.source, true)
	if err == nil && f == nil {
		err = errors.Remedy(errors.Newf(errors.NotFound, "there is no %.200q to mount in %s", m.source, from.what),
			"correct the name, or see whether %s leaves it out", ignoreName)
	}
	return f, err
}

func (b *build) bindDigest(m mount) (string, error) {
	f, err := b.bound(m)
	if err != nil {
		return "", err
	}
	b.hashing.Lock()
	defer b.hashing.Unlock()
	return f.anyDigest()
}

// anyDigest is the hash of a file and its mode, or of a directory with everything below it.
func (f *file) anyDigest() (string, error) {
	if f.isDir() {
		return f.treeDigest()
	}
	sum, err := f.digest()
	return sum + strconv.FormatInt(f.mode, 8), err
}

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
	after, err := x.snapshot(ctx, &delta{out: out, before: x.index, hidden: hiddenBelow(hidden)})
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
	for _, kv := range r.Env {
		name, value, _ := strings.Cut(kv, "=")
		cmd.Env[name] = value
	}
	if hidden, err = x.mounts(ctx, r, &cmd); err != nil {
		return nil, "", err
	}
	cmd.Crashed = func(what string) { crashed = what }
	err = x.command(ctx, cmd, title)
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
		errors.Newf(errors.Timeout, "the command has taken longer than %s", limit))
	defer cancel()
	prefix, _, _ := strings.Cut(title, "] ")
	out := x.log.output(prefix + "] ")
	cmd.Stdout, cmd.Stderr = out, out
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
			names = append(names, "volume "+cacheVolume(x.owner, m.ID))
		}
	}
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

// cacheVolume returns the name of the volume of a cache mount. It differs for each account, so that
// none sees the files of another one.
func cacheVolume(owner, id string) string { return "build-cache-" + hash(owner, id)[:16] }

// ready provides a machine in the state of the stage with the volumes of r.
func (x *executor) ready(ctx context.Context, r *run, title string) error {
	setup := Setup{Network: cmp.Or(r.Network, "default"), Title: title}
	for _, m := range r.Mounts {
		if m.Type == "cache" {
			setup.Mounts = append(setup.Mounts, Mount{Volume: cacheVolume(x.owner, m.ID), Path: m.Target,
				ReadOnly: m.ReadOnly})
			if err := x.cache.noteMount(x.owner, m.ID); err != nil {
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
	x.machine, err = x.runner.Start(ctx, setup)
	release()
	if err != nil {
		return errors.Wrapf(err, "start the machine of a build")
	}
	x.shape, x.tainted, x.index, x.pending = shape, false, index{}, nil
	if layered {
		x.index, err = x.snapshot(ctx, &delta{before: index{}})
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
		return flatten(ctx, f, x.base(c),
			x.layerFiles(c))
	}); err != nil {
		return "", false, nil, err
	}
	id, release = x.cache.prepare(Prepared{Root: x.cache.rootName(c)})
	return id, false, release, nil
}

// prepareLayer returns the id of the stage's image with a single layer that has the state of the
// stage. The id is "" if the layers are too large or cannot be merged.
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
	ok, err := merge(f, x.layerFiles(c))
	if err = errors.Join(err, f.Close()); !ok || err != nil {
		remove()
		return "", nil, err
	}
	id, release := x.cache.prepare(Prepared{Root: x.base(c), Layer: f.Name()})
	return id, func() { release(); remove() }, nil
}

// mounts sets up the mounts and files of a RUN that are not in the image, and returns the paths to
// omit from the layer.
func (x *executor) mounts(ctx context.Context, r *run, cmd *Command) (hidden []string, err error) {
	for i, m := range r.Mounts {
		if m.Target != "" {
			hidden = append(hidden, m.Target)
		}
		switch m.Type {
		case "cache":
			err = x.ownCache(ctx, m)
		case "tmpfs":
			x.tainted = true
			err = x.bring(ctx, m.Target, newDir(0o1777))
		case "bind":
			if !strings.HasPrefix(m.Target, "/dev/") { // which is not part of the image
				x.tainted = true
			}
			var f *file
			if f, err = x.bound(m); err == nil {
				err = x.bring(ctx, m.Target, f)
			}
		case "secret":
			err = x.secret(ctx, m, i, cmd)
		}
		if err != nil {
			return nil, err
		}
	}
	return hidden, nil
}

// secret provides a secret to the command, in memory only.
func (x *executor) secret(ctx context.Context, m mount, i int, cmd *Command) error {
	value, ok := x.opts.Secrets[m.ID]
	if !ok {
		return nil // not an error unless required, as in BuildKit
	}
	x.tainted = true
	if m.Env != "" {
		if bytes.IndexByte(value, 0) >= 0 {
			return errors.Newf(errors.Invalid, "the secret %.100q contains a NUL byte and cannot be a variable", m.ID)
		}
		cmd.Env[m.Env] = string(value)
	}
	if m.Target == "" {
		return nil
	}
	at := path.Join(secrets, strconv.Itoa(i))
	f := &file{typ: tar.TypeReg, mode: int64(m.Mode), uid: m.UID, gid: m.GID, size: int64(len(value)),
		content: text(value)}
	if err := x.bring(ctx, at, f); err != nil {
		return err
	}
	return x.bring(ctx, m.Target, &file{typ: tar.TypeSymlink, mode: 0o777, link: at})
}

// ownCache sets the owner and mode of a cache mount's directory from the Dockerfile.
func (x *executor) ownCache(ctx context.Context, m mount) error {
	if m.UID == 0 && m.GID == 0 && m.Mode == 0o755 || m.ReadOnly {
		return nil
	}
	var out bytes.Buffer
	script := fmt.Sprintf(`chown %d:%d "$1" && chmod %o "$1"`, m.UID, m.GID, m.Mode)
	code, err := x.machine.Run(ctx, Command{Args: []string{"/bin/sh", "-c", script, "sh", m.Target}, User: "0",
		Dir: "/", Stdout: io.Discard, Stderr: &out})
	if err == nil && code != 0 {
		err = errors.Newf(errors.Invalid, "the cache mount at %s cannot have that owner and mode: %s", m.Target,
			clip(out.String()))
	}
	return err
}

// bring copies a file, or a directory with everything below it, to a path in the machine.
func (x *executor) bring(ctx context.Context, target string, f *file) error {
	dir, base := path.Split(target)
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		err := writeFile(tw, f.header(base), f)
		if err == nil {
			err = f.walk(base, func(name string, f *file) error { return writeFile(tw, f.header(name), f) })
		}
		if err == nil {
			err = tw.Close()
		}
		w.CloseWithError(err)
	}()
	err := x.machine.CopyIn(ctx, path.Clean(dir), r)
	r.CloseWithError(err)
	return errors.Wrapf(err, "copy %s into the machine", target)
}

// prepareFetch prepares the download of a file.
func (x *executor) prepareFetch(v *plan.Vertex) *work {
	source := v.Op.GetSource()
	sum, name := source.Attrs[pb.AttrHTTPChecksum], source.Attrs[pb.AttrHTTPFilename]
	return &work{x.key("fetch", source.Identifier, sum, name), func(ctx context.Context, out *os.File) error {
		f, err := x.fetch(ctx, source.Identifier, sum, v.Title)
		if err != nil {
			return err
		}
		l := newLayer(newTree(), x.temp)
		l.epoch = x.plan.Epoch
		if err := l.put(path.Join("/", cmp.Or(name, "__unnamed__")), f); err != nil {
			return err
		}
		return l.write(out)
	}}
}

// fetch downloads a file in a separate machine, so that it reaches only the addresses that
// sandboxes reach.
func (x *executor) fetch(ctx context.Context, url, sum, title string) (*file, error) {
	base, err := x.images.Build(ctx, image.Spec{Base: "base"}, image.BuildOptions{})
	if err != nil {
		return nil, errors.Wrapf(err, "prepare the machine that downloads")
	}
	m, err := x.runner.Start(ctx, Setup{Image: base.ID, Network: "default", Title: title})
	if err != nil {
		return nil, errors.Wrapf(err, "start the machine that downloads")
	}
	temp, err := os.CreateTemp(x.temp, "add-*")
	if err != nil {
		return nil, errors.Join(tarfs.Explain(err, "a download"), m.Close(context.WithoutCancel(ctx)))
	}
	x.later(temp)
	w := &limited{w: temp, left: maxFetch + maxTrailer}
	prefix, _, _ := strings.Cut(title, "] ")
	messages := x.log.output(prefix + "] ")
	limit, cancel := context.WithTimeout(ctx, x.source.opts.Run)
	defer cancel()
	code, err := m.Run(limit, Command{
		Args: []string{"curl", "--fail", "--silent", "--show-error", "--location", "--proto", "=http,https",
			"--max-filesize", strconv.Itoa(maxFetch),
			"--write-out", "\n%header{last-modified}", "--", url},
		Dir: "/", Env: map[string]string{}, Stdout: w, Stderr: messages,
	})
	err = errors.Join(err, m.Close(context.WithoutCancel(ctx)))
	switch tail := messages.last(); {
	case err != nil:
		return nil, errors.Wrapf(err, "download a file")
	case w.full:
		return nil, errors.Newf(errors.Exhausted, "%.200q has more than %d bytes", url, int64(maxFetch))
	case code != 0:
		return nil, errors.Remedy(errors.Newf(errors.Unavailable, "%.200q cannot be downloaded: %s", url,
			clip(tail)), "see whether sandboxes may reach it")
	}
	size, mtime, err := splitTrailer(temp, maxFetch+maxTrailer-w.left)
	if err != nil {
		return nil, err
	}
	if size > maxFetch {
		return nil, errors.Newf(errors.Exhausted, "%.200q has more than %d bytes", url, int64(maxFetch))
	}
	f := &file{typ: tar.TypeReg, mode: 0o600, size: size, content: section{temp, 0, size}, mtime: mtime}
	got, err := f.digest()
	if err == nil && sum != "" && "sha256:"+got != sum {
		err = errors.Remedy(errors.Newf(errors.Invalid, "%.200q has the checksum sha256:%s, not %s", url, got, sum),
			"find out why the file has changed, and correct --checksum if that is right")
	}
	return f, err
}

// splitTrailer finds the line with the Last-Modified header that curl wrote after a download of
// size bytes. It returns the size without that line. The time is zero if the header is missing or
// invalid, or in 1970.
func splitTrailer(r io.ReaderAt, size int64) (int64, time.Time, error) {
	tail := make([]byte, min(size, maxTrailer))
	if _, err := r.ReadAt(tail, size-int64(len(tail))); err != nil && err != io.EOF {
		return 0, time.Time{}, errors.Wrapf(err, "read a download")
	}
	i := bytes.LastIndexByte(tail, '\n')
	if i < 0 {
		return 0, time.Time{}, errors.Errorf("curl has not written the header Last-Modified after %d bytes", size)
	}
	mtime, err := http.ParseTime(strings.TrimSpace(string(tail[i+1:])))
	if err != nil || mtime.Unix() <= 0 {
		mtime = time.Time{}
	}
	return size - int64(len(tail)-i), mtime, nil
}

// limited writes up to a limit. It drops further data and sets full.
type limited struct {
	w    io.Writer
	left int64
	full bool
}

func (l *limited) Write(p []byte) (int, error) {
	if int64(len(p)) > l.left {
		l.full = true
		return 0, io.ErrShortWrite
	}
	l.left -= int64(len(p))
	return l.w.Write(p)
}
