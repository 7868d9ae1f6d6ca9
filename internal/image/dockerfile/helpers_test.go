package dockerfile

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/mounts"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// quiet discards the log of a build.
var quiet = image.BuildOptions{Log: func(string) {}, Progress: func(image.Progress) {}}

// chroots is a Runner whose machines are directories. It isolates nothing, and is therefore fast.
type chroots struct {
	t     testing.TB
	lib   *library
	cache *Cache

	mu      sync.Mutex
	started []Setup        // guarded by mu
	open    map[string]int // guarded by mu
	most    int            // guarded by mu; machines at once
	fail    func(op string) error
}

type chroot struct {
	c      *chroots
	root   string
	before map[string]string
	mounts []Mount
	hidden []hiding
	made   []string
}

// hiding is a mounted path, where its own files are meanwhile ("" for none), and the volume that gets the files of the
// mount.
type hiding struct{ at, aside, volume string }

// Mount puts files into place by copying and renaming.
func (m *chroot) Mount(_ context.Context, all []mounts.Mount) error {
	for i, to := range all {
		h := hiding{at: filepath.Join(m.root, to.Path)}
		if _, err := os.Lstat(h.at); err == nil {
			h.aside = fmt.Sprint(m.root, "-aside-", i)
			if err := os.Rename(h.at, h.aside); err != nil {
				return err
			}
		}
		m.make(filepath.Dir(h.at))
		m.hidden = append(m.hidden, h)
		if to.From == "" {
			if err := os.Mkdir(h.at, 0o1777); err != nil {
				return err
			}
			continue
		}
		if strings.HasPrefix(to.From, cacheDir) {
			m.hidden[len(m.hidden)-1].volume = filepath.Join(m.root, to.From)
		}
		if out, err := exec.Command("cp", "-a", filepath.Join(m.root, to.From), h.at).CombinedOutput(); err != nil {
			return fmt.Errorf("%s", out)
		}
	}
	return nil
}

func (m *chroot) make(dir string) {
	if _, err := os.Lstat(dir); err == nil {
		return
	}
	m.make(filepath.Dir(dir))
	_ = os.Mkdir(dir, 0o755)
	m.made = append(m.made, dir)
}

func (m *chroot) Unmount(_ context.Context, files ...string) error {
	for _, h := range slices.Backward(m.hidden) {
		if h.volume != "" {
			for _, dir := range slices.Backward(m.made) {
				if strings.HasPrefix(dir, h.at+"/") {
					_ = os.Remove(dir)
				}
			}
			if out, err := exec.Command("cp", "-a", "--remove-destination", h.at+"/.",
				h.volume).CombinedOutput(); err != nil {
				return fmt.Errorf("%s", out)
			}
		}
		if err := os.RemoveAll(h.at); err != nil {
			return err
		}
		if h.aside != "" {
			if err := os.Rename(h.aside, h.at); err != nil {
				return err
			}
		}
	}
	for _, dir := range slices.Backward(m.made) {
		_ = os.Remove(dir)
	}
	m.hidden, m.made = nil, nil
	for _, name := range files {
		if err := os.RemoveAll(filepath.Join(m.root, name)); err != nil {
			return err
		}
	}
	return nil
}

func (c *chroots) starts() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.started)
}

func (c *chroots) failing(op string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail == nil {
		return nil
	}
	return c.fail(op)
}

func (c *chroots) Start(_ context.Context, setup Setup) (Machine, error) {
	if err := c.failing("start"); err != nil {
		return nil, err
	}
	name, layer := c.lib.root(image.Image{ID: setup.Image}), ""
	if c.cache.Owns(setup.Image) {
		p, err := c.cache.Prepared(setup.Image)
		if err != nil {
			return nil, err
		}
		name, layer = p.Root, p.Layer
	}
	root, err := os.MkdirTemp(c.lib.dir, "machine-")
	if err != nil {
		return nil, err
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	r, err := rootfs.OpenReader(f)
	if err != nil {
		return nil, err
	}
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(r.WriteTar(context.Background(), pw, nil)) }()
	if err := unpack(root, "/", pr); err != nil {
		return nil, err
	}
	for _, dir := range []string{"dev/shm", "dev/pipes"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return nil, err
	}
	m := &chroot{c: c, root: root, mounts: setup.Mounts}
	m.before = m.list() // without the mount points of volumes, as in a sandbox
	if err := m.mount(); err != nil {
		return nil, err
	}
	if layer != "" {
		if err := m.fill(layer); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.started = append(c.started, setup)
	if c.open == nil {
		c.open = map[string]int{}
	}
	c.open[root]++
	c.most = max(c.most, len(c.open))
	return m, nil
}

// fill applies a layer, entry by entry.
func (m *chroot) fill(layer string) error {
	f, err := os.Open(layer)
	if err != nil {
		return err
	}
	defer f.Close()
	tr := tar.NewReader(f)
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		dir, base := filepath.Split(filepath.Join(m.root, hdr.Name))
		if base == files.Opaque {
			entries, _ := os.ReadDir(dir)
			for _, e := range entries {
				_ = os.RemoveAll(filepath.Join(dir, e.Name()))
			}
			continue
		}
		if gone, ok := strings.CutPrefix(base, files.Whiteout); ok {
			_ = os.RemoveAll(dir + gone)
			continue
		}
		if hdr.Typeflag != tar.TypeDir {
			_ = os.RemoveAll(filepath.Join(dir, base))
		}
		var b bytes.Buffer
		tw := tar.NewWriter(&b)
		_ = tw.WriteHeader(hdr)
		_, _ = io.Copy(tw, tr)
		_ = tw.Close()
		if err := unpack(m.root, "/", &b); err != nil {
			return err
		}
	}
}

func unpack(root, dir string, r io.Reader) error {
	top, err := os.OpenRoot(root)
	if err != nil {
		return err
	}
	defer top.Close()
	// A process that is started meanwhile would inherit programs that are open for writing, which cannot be executed.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	return tarfs.Unpack(top, dir, r, tarfs.Options{Owners: true, SetID: true})
}

// mount puts volumes into place by copying: they are copied back at the end.
func (m *chroot) mount() error {
	for _, v := range m.mounts {
		at := filepath.Join(m.root, v.Path)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return err
		}
		if err := os.MkdirAll(m.volume(v), 0o755); err != nil {
			return err
		}
		if out, err := exec.Command("cp", "-a", m.volume(v)+"/.", at).CombinedOutput(); err != nil {
			return fmt.Errorf("%s", out)
		}
	}
	return nil
}

func (m *chroot) volume(v Mount) string { return filepath.Join(m.c.lib.dir, "volumes", v.Volume) }

func (m *chroot) Run(ctx context.Context, cmd Command) (int, error) {
	if err := m.c.failing("run"); err != nil {
		return 0, err
	}
	args := append([]string{"--userspec=" + m.user(cmd.User), m.root, "/bin/env", "-i", "-C", cmd.Dir,
		"PATH=/bin"}, nil...)
	for name, value := range cmd.Env {
		args = append(args, name+"="+value)
	}
	c := exec.CommandContext(ctx, "chroot", append(args, cmd.Args...)...)
	c.Stdout, c.Stderr = cmd.Stdout, cmd.Stdout
	if cmd.Stderr != nil { // two streams have no order: this one comes late
		var late bytes.Buffer
		c.Stderr = &late
		defer func() { _, _ = cmd.Stderr.Write(late.Bytes()) }()
	}
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	err := c.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		return exit.ExitCode(), nil
	}
	return 0, err
}

// user resolves names by the machine's own files, as chroot does by the host's.
func (m *chroot) user(name string) string {
	if name == "" {
		return "0:0"
	}
	b, _ := os.ReadFile(filepath.Join(m.root, "etc/passwd"))
	for line := range strings.Lines(string(b)) {
		if fields := strings.Split(line, ":"); fields[0] == name {
			return fields[2] + ":" + fields[3]
		}
	}
	if !strings.Contains(name, ":") {
		name += ":0"
	}
	return "+" + strings.Replace(name, ":", ":+", 1)
}

func (m *chroot) CopyIn(_ context.Context, dir string, r io.Reader) error {
	if err := m.c.failing("copy"); err != nil {
		return err
	}
	if err := unpack(m.root, dir, r); err != nil {
		return err
	}
	return m.c.failing("copied")
}

// list describes every file.
func (m *chroot) list() map[string]string {
	all := map[string]string{}
	_ = filepath.WalkDir(m.root, func(p string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(strings.TrimPrefix(p, m.root), "/")
		if err != nil || name == "" {
			return nil
		}
		if name == "dev" {
			return fs.SkipDir
		}
		info, err := d.Info()
		if err == nil {
			st := info.Sys().(*syscall.Stat_t)
			all[name] = fmt.Sprint(info.Mode(), st.Uid, st.Gid, st.Ino, st.Ctim, info.Size())
		}
		if slices.ContainsFunc(m.mounts, func(v Mount) bool { return "/"+name == v.Path }) {
			return fs.SkipDir
		}
		return nil
	})
	return all
}

// Snapshot packs all files except unchanged ones. The files of mounts must be gone.
func (m *chroot) Snapshot(_ context.Context, w io.Writer) error {
	if err := m.c.failing("snapshot"); err != nil {
		return err
	}
	for _, dir := range []string{bindDir, secretDir} {
		if _, err := os.Lstat(filepath.Join(m.root, dir)); !errors.IsNotExist(err) {
			m.c.t.Errorf("%s is left in a machine: %v", dir, err)
		}
	}
	now := m.list()
	root, err := os.OpenRoot(m.root)
	if err != nil {
		return err
	}
	defer root.Close()
	pr, pw := io.Pipe()
	go func() { pw.CloseWithError(tarfs.Pack(root, "/", pw)) }()
	defer pr.Close()
	in, out := tarfs.NewReader(pr), tar.NewWriter(w)
	for {
		hdr, err := in.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		name := strings.TrimSuffix(hdr.Name, "/")
		if was, ok := m.before[name]; now[name] == "" || ok && was == now[name] {
			continue
		}
		if err := out.WriteHeader(hdr); err != nil {
			return err
		}
		if _, err := io.Copy(out, in); err != nil {
			return err
		}
	}
	for name := range m.before {
		if now[name] == "" && (filepath.Dir(name) == "." || now[filepath.Dir(name)] != "") {
			if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg,
				Name: filepath.Join(filepath.Dir(name), files.Whiteout+filepath.Base(name))}); err != nil {
				return err
			}
		}
	}
	return out.Close()
}

func (m *chroot) Close(context.Context) error {
	if _, err := os.Stat(m.root); err != nil {
		return nil
	}
	for _, v := range m.mounts {
		if out, err := exec.Command("cp", "-a", filepath.Join(m.root, v.Path)+"/.",
			m.volume(v)).CombinedOutput(); err != nil {
			return fmt.Errorf("%s", out)
		}
	}
	m.c.mu.Lock()
	delete(m.c.open, m.root)
	m.c.mu.Unlock()
	for _, h := range m.hidden {
		_ = os.RemoveAll(h.aside)
	}
	return os.RemoveAll(m.root)
}

// library is an image library with small images.
type library struct {
	image.Builder // for unused methods
	t             testing.TB
	dir           string
	onRoot        atomic.Pointer[func()] // called at the next request for an image's file

	mu     sync.Mutex
	images map[string]image.Image // guarded by mu; by name
	uses   int                    // guarded by mu
	builds []image.Spec           // guarded by mu
}

func (l *library) Build(_ context.Context, spec image.Spec, _ image.BuildOptions) (image.Image, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.builds = append(l.builds, spec)
	img, ok := l.images[spec.Base]
	if !ok {
		return img, errors.Newf(errors.NotFound, "there is no image %q", spec.Base)
	}
	return img, nil
}

func (l *library) Root(img image.Image) string {
	if f := l.onRoot.Swap(nil); f != nil {
		(*f)()
	}
	return l.root(img)
}

func (l *library) root(img image.Image) string { return filepath.Join(l.dir, img.ID+".erofs") }

func (l *library) Layer(image.Image) string { return "" }

func (l *library) Use(string, string) (func(), error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.uses++
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.uses--
	}, nil
}

// add makes an image of a tar stream.
func (l *library) add(name string, config image.Config, fill func(tw *tar.Writer)) {
	l.t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	fill(tw)
	if err := tw.Close(); err != nil {
		l.t.Fatal(err)
	}
	img := image.Image{ID: "img_" + hash(name)[:16], Digest: "sha256:" + hash(name), Config: config,
		Built: time.Unix(1, 0), Parts: []image.Part{{Name: name}}}
	f, err := os.Create(l.Root(img))
	if err != nil {
		l.t.Fatal(err)
	}
	defer f.Close()
	w := rootfs.NewWriter(f, rootfs.Options{})
	if err := w.AddTar(&b, nil); err != nil {
		l.t.Fatal(err)
	}
	if _, err := w.Close(); err != nil {
		l.t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.images[name] = img
}

// tarred is an archive written by fill.
func tarred(fill func(tw *tar.Writer)) []byte {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	fill(tw)
	_ = tw.Close()
	return b.Bytes()
}

func dirEntry(tw *tar.Writer, name string, mode int64) {
	_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: mode})
}

func fileEntry(tw *tar.Writer, name, data string, mode int64) {
	_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(data))})
	_, _ = io.WriteString(tw, data)
}

// programs are the host's, with the libraries that they need.
var programs = []string{"sh", "env", "cat", "ls", "mkdir", "rm", "cp", "mv", "chmod", "chown", "ln", "touch", "id",
	"sleep", "stat", "head", "pwd", "rmdir"}

// tiny puts a small system into an image.
func tiny(t testing.TB) func(tw *tar.Writer) {
	return func(tw *tar.Writer) {
		for _, dir := range []string{"bin", "dev", "etc", "lib", "tmp", "usr", "usr/lib", "var"} {
			dirEntry(tw, dir, 0o755)
		}
		dirEntry(tw, "tmp", 0o1777)
		_ = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: "var/run", Linkname: "/tmp", Mode: 0o777})
		fileEntry(tw, "etc/passwd", "root:x:0:0:root:/:/bin/sh\napp:x:1000:1001:app:/:/bin/sh\n", 0o644)
		fileEntry(tw, "etc/group", "root:x:0:\nstaff:x:50:\napp:x:1001:\n", 0o644)
		for _, name := range programs {
			p, err := exec.LookPath(name)
			if err != nil {
				t.Fatal(err)
			}
			program(t, tw, p)
		}
	}
}

// program puts one of the host's programs into an image, with its libraries.
func program(t testing.TB, tw *tar.Writer, p string) {
	t.Helper()
	add := func(from, to string) {
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		fileEntry(tw, to, string(data), 0o755)
	}
	add(p, "bin/"+filepath.Base(p))
	out, _ := exec.Command("ldd", p).Output()
	for _, word := range strings.Fields(string(out)) {
		if strings.HasPrefix(word, "/") {
			add(word, strings.TrimPrefix(word, "/"))
		}
	}
}

// bench is everything that a build needs.
type bench struct {
	t      testing.TB
	dir    string
	lib    *library
	cache  *Cache
	runner *chroots
	source *Source
	log    []string
	root   string // of the last build
	n      int
}

func newBench(t testing.TB, opts Options) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can change a program's root directory")
	}
	b := &bench{t: t, dir: t.TempDir()}
	b.lib = &library{t: t, dir: filepath.Join(b.dir, "images"), images: map[string]image.Image{}}
	if err := os.Mkdir(b.lib.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	b.lib.add("tiny", image.Config{Env: map[string]string{"PATH": "/bin", "FROM_IMAGE": "yes"}, Dir: "/",
		Labels: map[string]string{"a": "1"}}, tiny(t))
	var err error
	if b.cache, err = OpenCache(filepath.Join(b.dir, "cache"), 1<<40); err != nil {
		t.Fatal(err)
	}
	b.runner = &chroots{t: t, lib: b.lib, cache: b.cache}
	opts.Cache = b.cache
	b.source = New(opts)
	b.source.Connect(b.lib, b.runner)
	t.Cleanup(func() {
		b.runner.mu.Lock()
		defer b.runner.mu.Unlock()
		if len(b.runner.open) > 0 {
			t.Errorf("%d machines are left behind", len(b.runner.open))
		}
		if b.lib.uses != 0 {
			t.Errorf("%d images are still in use", b.lib.uses)
		}
		left, _ := filepath.Glob(filepath.Join(b.cache.dir, "*.new"))
		if len(left) > 0 {
			t.Errorf("the cache holds %v", left)
		}
	})
	return b
}

// built is an image that was built.
type built struct {
	t *testing.T
	*files.Tree
	config image.Config
	spec   image.Spec
	print  string
}

// context makes a build context of files, by name. A name that ends with "/" is a directory, and "->" begins a link's
// target.
func (b *bench) context(files map[string]string) string {
	b.t.Helper()
	b.n++
	dir := filepath.Join(b.dir, fmt.Sprint("context", b.n))
	for name, data := range files {
		full := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			b.t.Fatal(err)
		}
		var err error
		switch target, isLink := strings.CutPrefix(data, "->"); {
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(full, 0o755)
		case isLink:
			err = os.Symlink(target, full)
		default:
			err = os.WriteFile(full, []byte(data), 0o644)
		}
		if err != nil {
			b.t.Fatal(err)
		}
	}
	return dir
}

// try builds, and returns the error.
func (b *bench) try(t *testing.T, spec image.Spec, opts image.BuildOptions) (*built, error) {
	t.Helper()
	return b.tryCtx(t.Context(), t, spec, opts)
}

func (b *bench) tryCtx(ctx context.Context, t *testing.T, spec image.Spec, opts image.BuildOptions) (*built, error) {
	t.Helper()
	if opts.Log == nil {
		b.log = nil
		opts.Log = func(line string) { b.log = append(b.log, line) }
	}
	if opts.Progress == nil {
		opts.Progress = quiet.Progress
	}
	resolved, print, err := b.source.Resolve(ctx, spec, opts)
	if err != nil {
		return nil, err
	}
	temp := t.TempDir()
	root, err := os.CreateTemp(b.dir, "root-")
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	contents, err := b.source.Build(ctx, resolved, opts, image.Output{Root: root, Temp: temp})
	if err != nil {
		return nil, err
	}
	if contents.Root != "" {
		if err := os.Rename(contents.Root, root.Name()); err != nil {
			t.Fatal(err)
		}
	}
	b.root = root.Name()
	all := files.NewTree()
	if err := all.AddImage(root.Name()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { all.Close() })
	return &built{t, all, contents.Config, resolved, string(print)}, nil
}

// build builds a Dockerfile that must do.
func (b *bench) build(t *testing.T, text string, opts image.BuildOptions) *built {
	t.Helper()
	return b.spec(t, image.Spec{Dockerfile: text}, opts)
}

func (b *bench) spec(t *testing.T, spec image.Spec, opts image.BuildOptions) *built {
	t.Helper()
	img, err := b.try(t, spec, opts)
	if err != nil {
		t.Fatalf("%v\n%s", err, strings.Join(b.log, "\n"))
	}
	return img
}

// want checks files: their content, "->target" for links, "dir", or "" for missing ones. After "|" follow mode, uid and
// gid.
func (i *built) want(files map[string]string) {
	i.t.Helper()
	for name, text := range files {
		content, rest, hasRest := strings.Cut(text, "|")
		f, _, err := i.Lookup(name, false)
		if err != nil {
			i.t.Errorf("%s: %v", name, err)
			continue
		}
		got := ""
		switch {
		case f == nil:
		case f.IsDir():
			got = "dir"
		case f.Type == tar.TypeSymlink:
			got = "->" + f.Link
		default:
			got = i.Read(name)
		}
		if got != content {
			i.t.Errorf("%s: got %.300q, want %.300q", name, got, content)
		}
		if f != nil && hasRest {
			if got := fmt.Sprintf("%o %d %d", f.Mode, f.UID, f.GID); got != rest {
				i.t.Errorf("%s: got %s, want %s", name, got, rest)
			}
		}
	}
}

func (c *chroots) refuse(fail func(op string) error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fail = fail
}

func (c *chroots) Volumes(context.Context) ([]Volume, error) {
	if err := c.failing("volumes"); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(c.lib.dir, "volumes"))
	if err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	var all []Volume
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			return nil, err
		}
		all = append(all, Volume{e.Name(), 4096, info.ModTime()})
	}
	return all, nil
}

func (c *chroots) RemoveVolume(_ context.Context, name string) error {
	if err := c.failing("volume"); err != nil {
		return err
	}
	return os.RemoveAll(filepath.Join(c.lib.dir, "volumes", name))
}
