package enginetest

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
	"github.com/RelevanceAI/harvest/internal/image"
)

var (
	snapshots = needs(engine.Capabilities.Snapshots, "the engine announces no snapshots")
	streams   = needs(func(c engine.Capabilities) bool { return c.Snapshot }, "the engine announces no Snapshotter")
	imagers   = needs(func(c engine.Capabilities) bool { return c.Imager }, "the engine announces no Imager")
)

// mission: A10
var snapshotChecks = []check{
	{"SnapshotKeepsAll",
		"a sandbox made from a snapshot has the same files: every kind, mode, owner, time, attribute and hard link",
		both(snapshots, users), checkSnapshotKeepsAll},
	{"SnapshotWhileWriting", "a snapshot taken while files are written is consistent, and the writer continues",
		snapshots, checkSnapshotWhileWriting},
	{"SnapshotTwoAtOnce", "two snapshots at once are both whole", streams, checkSnapshotTwoAtOnce},
	{"SnapshotOfDirectory", "a snapshot may be limited to a directory; files and mounts are refused", streams,
		checkSnapshotOfDirectory},
	{"SnapshotCanceled", "a canceled snapshot ends with an error, and the sandbox continues", streams,
		checkSnapshotCanceled},
	{"SnapshotReceiverFails", "an error of the receiver is returned, and the sandbox continues", streams,
		checkSnapshotReceiverFails},
	{"SnapshotDestroyed", "a sandbox can be destroyed while its snapshot is taken, which then fails", streams,
		checkSnapshotDestroyed},
	{"SnapshotClaimed", "a warm sandbox becomes one with the files of a snapshot", both(snapshots, warmth),
		checkSnapshotClaimed},
	{"SnapshotWithoutVolumes", "files on volumes are not part of a snapshot", both(snapshots, mounts),
		checkSnapshotWithoutVolumes},
	{"SnapshotTooLarge", "a snapshot that does not fit into the disk limit is refused with Exhausted",
		both(snapshots, limit("disk")), checkSnapshotTooLarge},
	{"SnapshotOutOfMemory", "Spec.KeepOnOOM: a snapshot can be taken after memory ran out",
		both(streams, limit("memory")), checkSnapshotOutOfMemory},
	{"SnapshotManyFiles", "50,000 changed files come back as they were", snapshots, checkSnapshotManyFiles},
	{"SnapshotImages",
		"an engine that makes images itself makes several at once, and none that was given up or of a sandbox that " +
			"has ended", imagers, checkSnapshotImages},
	{"SnapshotCycles", "files survive a chain of snapshots, each made in a sandbox from the one before", snapshots,
		checkSnapshotCycles},
}

// snapshot takes a snapshot of sb, whose image is parent, and returns the new image, which is deleted when t
// ends.
func (s *suite) snapshot(t *testing.T, sb engine.Sandbox, parent, path string) image.Image {
	t.Helper()
	img, err := s.trySnapshot(probe.Patient(t), sb, parent, path)
	if err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	t.Cleanup(func() {
		if err := s.engine.Images().Delete(context.Background(), img.ID); err != nil &&
			!errors.Is(err, errors.NotFound) {
			t.Errorf("Delete %s: %v", img.ID, err)
		}
	})
	return img
}

// trySnapshot takes a snapshot of sb in the way that the engine supports.
func (s *suite) trySnapshot(ctx context.Context, sb engine.Sandbox, parent, path string) (image.Image, error) {
	from, err := s.engine.Images().Find(ctx, parent)
	if err != nil {
		return image.Image{}, err
	}
	opts := image.SnapshotOptions{Sandbox: sb.Handle().ID, Path: path}
	if imager, ok := sb.(engine.Imager); ok {
		return imager.SnapshotImage(ctx, from, opts)
	}
	return s.engine.Images().(image.Snapshotter).Snapshot(ctx, from, opts, func(w io.Writer) error {
		return sb.(engine.Snapshotter).Snapshot(ctx, path, w)
	})
}

// manifest is a program that prints all relevant properties of file trees, one file per line.
const manifest = `
import os, stat, sys, hashlib
def line(p):
    st = os.lstat(p)
    kind = stat.S_IFMT(st.st_mode)
    what = b''
    if kind == stat.S_IFREG:
        h = hashlib.sha256()
        with open(p, 'rb') as f:
            while b := f.read(1 << 20): h.update(b)
        what = b'%d %s' % (st.st_size, h.hexdigest().encode())
    elif kind == stat.S_IFLNK: what = os.readlink(p)
    elif kind in (stat.S_IFCHR, stat.S_IFBLK): what = b'%d' % st.st_rdev
    attrs = sorted((k, os.getxattr(p, k, follow_symlinks=False)) for k in os.listxattr(p, follow_symlinks=False))
    same = first.setdefault((st.st_dev, st.st_ino), p) if kind != stat.S_IFDIR and st.st_nlink > 1 else b''
    print(ascii(p), oct(st.st_mode), st.st_uid, st.st_gid, st.st_mtime_ns, ascii(what), ascii(attrs), ascii(same))
def walk(p):
    line(p)
    if stat.S_ISDIR(os.lstat(p).st_mode) and not os.path.ismount(p):
        for n in sorted(os.listdir(p)):
            q = os.path.join(p, n)
            if q not in own: walk(q)
own = (b'/etc/hosts', b'/etc/resolv.conf', b'/etc/hostname', b'/etc/machine-id', b'/etc/mtab') # engines may give each sandbox its own
first = {}
for root in sys.argv[1:]: walk(os.fsencode(root))
`

// trees returns the manifest of trees in a sandbox.
func trees(t *testing.T, sb engine.Sandbox, roots ...string) string {
	t.Helper()
	return probe.Output(t, sb, engine.Command{Args: append([]string{"python3", "-c", manifest}, roots...),
		User: "root"})
}

// same compares manifests and reports the first lines that differ.
func same(t *testing.T, got, want string) {
	t.Helper()
	if got == want {
		return
	}
	a, b := strings.Split(got, "\n"), strings.Split(want, "\n")
	t.Errorf("the trees differ: %d and %d files", len(a), len(b))
	in := map[string]bool{}
	for _, line := range b {
		in[line] = true
	}
	shown := 0
	for _, line := range a {
		if !in[line] && shown < 20 {
			t.Errorf("got  %.300s", line)
			shown++
		}
		delete(in, line)
	}
	for _, line := range b {
		if in[line] && shown < 40 {
			t.Errorf("want %.300s", line)
			shown++
		}
	}
}

// zoo creates every kind of file in /zoo, and changes files of the image.
const zoo = `
import os, socket, ctypes
os.makedirs(b'/zoo/empty/deeper'); os.chdir('/zoo')
def put(name, content=b'x', mode=0o644):
    with open(name, 'wb') as f: f.write(content)
    os.chmod(name, mode)
put('plain'); put('setuid', b'#!', 0o4755); put('setgid', b'', 0o2711); put('none', b'secret', 0)
put(b'latin-\xe9\xff\xfe'); put(b'n' * 255); put('new\nline'); put('.wh.own', b'a name like a whiteout'); put('zero' , b'')
os.makedirs('/'.join(['d' * 100] * 20))
put('/'.join(['d' * 100] * 20) + '/deep')
put('owned')
try: os.chown('owned', 1234567, 7654321)
except OSError: os.chown('owned', 54321, 12345) # the engine has fewer users
os.mkdir('sticky'); os.chmod('sticky', 0o1777); os.mkdir('closed', 0o700); os.chown('closed', 1000, 1000)
put('closed/inner', b'y' * 100000)
os.symlink('plain', 'link'); os.symlink('/nowhere/' + 'x' * 3000, 'dangling'); os.symlink(b'\xff\xfe', 'odd'); os.lchown('link', 5, 6)
os.link('plain', 'hard'); os.link('plain', 'empty/hard'); os.link('link', 'hardlink')
os.mkfifo('fifo', 0o640)
s = socket.socket(socket.AF_UNIX); s.bind('socket'); s.close()
with open('sparse', 'wb') as f: f.truncate(300 << 20); f.seek(100 << 20); f.write(b'middle' * 1000); f.seek((200 << 20) + 12345); f.write(b'late')
with open('hole', 'wb') as f: f.truncate(100 << 20)
with open('tail', 'wb') as f: f.truncate(1 << 20); f.seek((1 << 20) - 3); f.write(b'end')
put('big', os.urandom(5 << 20))
put('attrs'); os.setxattr('attrs', 'user.text', b'value'); os.setxattr('attrs', 'user.binary', bytes(range(256)))
try: os.setxattr('attrs', 'trusted.mine', b'\xff\x00\x01')
except PermissionError: pass # not for this user
os.setxattr('empty', 'user.dir', b'of a directory')
put('caps', b'', 0o755); os.setxattr('caps', 'security.capability', bytes.fromhex('0100000200040000000000000000000000000000'))
for name, ns in (('plain', 1234567890123456789), ('big', 1), ('empty', 999999999), ('setuid', 4102444800000000001), ('none', -12 * 10**9)):
    os.utime(name, ns=(ns, ns))
os.utime('link', ns=(5, 1600000000987654321), follow_symlinks=False)
gone = open('gone', 'wb'); gone.write(b'open and deleted'); gone.flush(); os.unlink('gone')
# What the image has.
os.unlink('/etc/debian_version')
import shutil; shutil.rmtree('/usr/share/doc'); shutil.rmtree('/usr/lib/python3/dist-packages', ignore_errors=True)
os.makedirs('/usr/share/doc/mine'); put('/usr/share/doc/mine/file')
shutil.rmtree('/etc/apt'); put('/etc/apt', b'a file where a directory was')
os.unlink('/etc/issue')
os.makedirs('/etc/issue/dir')
os.chmod('/usr/bin/env', 0o700); os.chown('/etc/passwd', 0, 42)
with open('/etc/shells', 'a') as f: f.write('/bin/mine\n')
os.utime('/etc/shells', ns=(7, 1111111111222222222))
os.symlink('python3', '/usr/bin/snake'); os.chmod('/', 0o751)
`

func checkSnapshotKeepsAll(t *testing.T, s *suite) {
	first := s.create(t, engine.Spec{})
	probe.Output(t, first, engine.Command{Args: []string{"python3", "-c", zoo}, User: "root"})
	// A socket is useless without its listener.
	probe.Script(t, first, "/", "test -S /zoo/socket && rm /zoo/socket && touch -d @1600000000.123456789 /zoo")
	roots := []string{"/zoo", "/etc", "/usr/share/doc", "/usr/bin/env", "/usr/bin/snake", "/usr/bin/python3"}
	want := trees(t, first, roots...)
	img := s.snapshot(t, first, s.image, "")
	second := s.create(t, engine.Spec{Image: img.ID})
	same(t, trees(t, second, roots...), want)
	if got := probe.Script(t, second, "/",
		"stat -c %a / && test ! -e /etc/debian_version && du -k /zoo/sparse /zoo/hole | cut -f1 | tr '\\n' ' '"); !strings.HasPrefix(got, "751\n") {
		t.Errorf("the root directory: %s", got)
	}
	same(t, trees(t, first, roots...), want) // the first one is unchanged
	// A snapshot of a snapshot is one layer on the same root.
	probe.Script(t, second, "/zoo", "rm -r closed sticky plain && echo more > more && mkdir /etc/debian_version")
	want = trees(t, second, roots...)
	again := s.snapshot(t, second, img.ID, "")
	third := s.create(t, engine.Spec{Image: again.ID})
	same(t, trees(t, third, roots...), want)
	if n := len(again.Snapshot.Lineage); n != 2 || again.Spec.Parent != img.ID {
		t.Errorf("the lineage of a snapshot of a snapshot is %+v, its parent %s", again.Snapshot.Lineage,
			again.Spec.Parent)
	}
	if _, ok := third.(engine.Snapshotter); !ok {
		return
	}
	var one, two bytes.Buffer
	for _, b := range []*bytes.Buffer{&one, &two} {
		if err := third.(engine.Snapshotter).Snapshot(probe.Patient(t), "", b); err != nil {
			t.Fatalf("Snapshot: %v", err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Errorf("two snapshots of the same files differ")
	}
}

func checkSnapshotWhileWriting(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	writer := probe.Start(t, sb, probe.Sh(`n=0; while :; do n=$((n+1)); echo $n > /a; echo $n > /b; echo $n; done`))
	for _, text := range []string{"\n100\n", "\n300\n"} {
		writer.Stdout.Until(t, text)
		img := s.snapshot(t, sb, s.image, "")
		copied := s.create(t, engine.Spec{Image: img.ID})
		var a, b int
		if _, err := fmt.Sscan(probe.Script(t, copied, "/", "cat /a; echo; cat /b"), &a, &b); err != nil && a+b == 0 {
			t.Fatalf("the files of the snapshot: %v", err)
		}
		// Each file is truncated before it is written. The files written before it are complete.
		if a != 0 && b != 0 && a != b && a != b+1 {
			t.Errorf("the snapshot has /a of %d and /b of %d", a, b)
		}
	}
	_, moved := writer.Stdout.Change()
	<-moved // the writer continues
}

func checkSnapshotTwoAtOnce(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	probe.Script(t, sb, "/",
		"mkdir /two && head -c 10000000 /dev/urandom > /two/big && for i in 1 2 3; do echo $i > /two/$i; done")
	var streams [2]bytes.Buffer
	var g sync.WaitGroup
	for i := range streams {
		g.Go(func() {
			if err := sb.(engine.Snapshotter).Snapshot(probe.Patient(t), "", &streams[i]); err != nil {
				t.Errorf("Snapshot: %v", err)
			}
		})
	}
	g.Wait()
	if !bytes.Equal(streams[0].Bytes(), streams[1].Bytes()) || streams[0].Len() < 10000000 {
		t.Errorf("the snapshots have %d and %d bytes", streams[0].Len(), streams[1].Len())
	}
	if entries := probe.Untar(t, &streams[0]); entries["two/2"].Content != "2\n" {
		t.Errorf("two/2 in the snapshot is %q", entries["two/2"].Content)
	}
}

func checkSnapshotOfDirectory(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	probe.Script(t, sb, "/",
		"mkdir -p /here/below /elsewhere && echo 1 > /here/below/file && ln /here/below/file /elsewhere/first && "+
			"echo 2 > /elsewhere/file && ln -s /here /way")
	img := s.snapshot(t, sb, s.image, "/way/below")
	copied := s.create(t, engine.Spec{Image: img.ID})
	if got := probe.Script(t, copied, "/",
		"cat /here/below/file; ls -d /elsewhere /way 2>/dev/null | wc -l"); got != "1\n0\n" {
		t.Errorf("a snapshot of /here/below has %q", got)
	}
	for path, kind := range map[string]errors.Kind{"/nowhere": errors.NotFound, "/here/below/file": errors.Invalid,
		"/proc/self": errors.Invalid, "relative": errors.Invalid} {
		probe.WantKind(t, "Snapshot of "+path, sb.(engine.Snapshotter).Snapshot(probe.Patient(t), path, io.Discard),
			kind)
	}
}

func checkSnapshotImages(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	probe.Script(t, sb, "/", "mkdir /two && head -c 1000000 /dev/urandom > /two/big && sha256sum /two/big > /two/sum")
	var made [2]image.Image
	var g sync.WaitGroup
	for i := range made {
		g.Go(func() {
			var err error
			if made[i], err = s.trySnapshot(probe.Patient(t), sb, s.image, ""); err != nil {
				t.Errorf("Snapshot: %v", err)
			}
		})
	}
	g.Wait()
	for _, img := range made {
		if img.Snapshot == nil || len(img.Snapshot.Lineage) != 1 || img.Snapshot.Lineage[0].Image != s.image ||
			img.Spec.Parent != s.image {
			t.Fatalf("the image is %+v, its snapshot %+v", img, img.Snapshot)
		}
		copied := s.create(t, engine.Spec{Image: img.ID})
		probe.Script(t, copied, "/", "sha256sum -c /two/sum")
		if err := copied.Destroy(probe.Patient(t)); err != nil {
			t.Errorf("Destroy: %v", err)
		}
	}
	for _, img := range made {
		if err := s.engine.Images().Delete(probe.Patient(t), img.ID); err != nil {
			t.Errorf("Delete: %v", err)
		}
		_, err := s.engine.Images().Find(probe.Patient(t), img.ID)
		probe.WantKind(t, "Find of a deleted snapshot", err, errors.NotFound)
	}
	ctx, cancel := context.WithCancel(probe.Patient(t))
	cancel()
	from, err := s.engine.Images().Find(probe.Patient(t), s.image)
	if err != nil {
		t.Fatal(err)
	}
	_, err = sb.(engine.Imager).SnapshotImage(ctx, from, image.SnapshotOptions{})
	probe.WantKind(t, "a canceled SnapshotImage", err, errors.Canceled)
	probe.Start(t, sb, probe.Sh("echo on")).Expect(t, engine.Exit{}, "on\n")
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Fatalf("Destroy: %v", err)
	}
	_, err = s.trySnapshot(probe.Patient(t), sb, s.image, "")
	probe.WantKind(t, "SnapshotImage of a sandbox that was destroyed", err, errors.Conflict)
}

// stuck is a receiver that accepts only the first bytes, and then waits for the error to return.
type stuck struct {
	once  sync.Once
	begun chan struct{}
	end   chan error
}

func (w *stuck) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.begun) })
	if err := <-w.end; err != nil {
		return 0, err
	}
	return len(p), nil
}

// hold starts a snapshot that is larger than the buffers of connections. It returns the receiver and a channel
// for the error.
func hold(t *testing.T, sb engine.Sandbox, ctx context.Context) (*stuck, <-chan error) {
	t.Helper()
	probe.Script(t, sb, "/", "head -c 50000000 /dev/urandom > /large")
	w, done := &stuck{begun: make(chan struct{}), end: make(chan error, 1)}, make(chan error, 1)
	go func() { done <- sb.(engine.Snapshotter).Snapshot(ctx, "", w) }()
	<-w.begun
	return w, done
}

func checkSnapshotCanceled(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	ctx, cancel := context.WithCancel(probe.Patient(t))
	w, done := hold(t, sb, ctx)
	cancel()
	w.end <- context.Canceled
	probe.WantKind(t, "a canceled Snapshot", <-done, errors.Canceled)
	probe.Start(t, sb, probe.Sh("echo on")).Expect(t, engine.Exit{}, "on\n")
}

func checkSnapshotReceiverFails(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	w, done := hold(t, sb, probe.Patient(t))
	w.end <- errors.Newf(errors.Exhausted, "the disk is full")
	probe.WantKind(t, "Snapshot to a full disk", <-done, errors.Exhausted)
	probe.Start(t, sb, probe.Sh("echo on")).Expect(t, engine.Exit{}, "on\n")
}

func checkSnapshotDestroyed(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	w, done := hold(t, sb, probe.Patient(t))
	if err := sb.Destroy(probe.Patient(t)); err != nil {
		t.Errorf("Destroy: %v", err)
	}
	close(w.end)
	probe.WantKind(t, "Snapshot of a sandbox that is destroyed", <-done, errors.Conflict, errors.Unavailable)
	probe.WantKind(t, "Snapshot of a sandbox that was destroyed", sb.(engine.Snapshotter).Snapshot(probe.Patient(t), "",
		io.Discard), errors.Conflict)
}

func checkSnapshotClaimed(t *testing.T, s *suite) {
	first := s.create(t, engine.Spec{})
	probe.Script(t, first, "/",
		"useradd -u 4321 -m somebody 2>/dev/null || echo somebody:x:4321:4321::/:/bin/sh >> /etc/passwd; echo kept > "+
			"/kept")
	img := s.snapshot(t, first, s.image, "")
	for _, prepared := range []bool{false, true} {
		w, err := s.engine.(engine.Warmer).Warm(probe.Patient(t), engine.Limits{})
		if err != nil {
			t.Fatalf("Warm: %v", err)
		}
		if p, ok := w.(engine.Preparer); ok && prepared {
			if err := p.Prepare(probe.Patient(t), img.ID, warming); err != nil {
				t.Fatalf("Prepare: %v", err)
			}
		}
		sb, err := w.Claim(probe.Patient(t), s.spec(engine.Spec{Image: img.ID, User: "somebody"}))
		if err != nil {
			t.Fatalf("Claim: %v", err)
		}
		h := sb.Handle()
		t.Cleanup(func() { s.destroy(t, h, sb) })
		probe.Start(t, sb, probe.Sh("id -u; cat /kept")).Expect(t, engine.Exit{}, "4321\nkept\n")
		if s.engine.Capabilities().Isolated {
			if got := probe.Output(t, sb, probe.Sh("grep -c $(hostname) /etc/hosts")); got != "1\n" {
				t.Errorf("its name is %s times in /etc/hosts", got)
			}
		}
	}
}

func checkSnapshotWithoutVolumes(t *testing.T, s *suite) {
	name := strings.ToLower(probe.NewID())
	v, err := s.engine.Volumes().Create(probe.Patient(t), name)
	if err != nil {
		t.Fatalf("Create: %v", err)
	}
	sb := s.create(t, engine.Spec{Mounts: []engine.Mount{{Volume: name, Path: "/data/volume"}}})
	probe.Script(t, sb, "/", "echo there > /data/volume/file && echo here > /data/file")
	img := s.snapshot(t, sb, s.image, "")
	copied := s.create(t, engine.Spec{Image: img.ID})
	if got := probe.Script(t, copied, "/", "cat /data/file; ls /data/volume"); got != "here\n" {
		t.Errorf("the snapshot has %q", got)
	}
	_, err = s.trySnapshot(probe.Patient(t), sb, s.image, "/data/volume")
	// Unsupported is for engines without snapshots of directories.
	probe.WantKind(t, "Snapshot of a volume", err, errors.Invalid, errors.Unsupported)
	commit(t, v)
	// A sandbox with a volume gets the files of a snapshot, too.
	both := s.create(t, engine.Spec{Image: img.ID, Mounts: []engine.Mount{{Volume: name, Path: "/data/volume"}}})
	if got := probe.Script(t, both, "/", "cat /data/file /data/volume/file"); got != "here\nthere\n" {
		t.Errorf("a sandbox from the snapshot with the volume has %q", got)
	}
	t.Cleanup(func() { _ = s.engine.Volumes().Delete(context.Background(), name) })
}

func checkSnapshotTooLarge(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{})
	probe.Script(t, sb, "/", "head -c 20000000 /dev/urandom > /large")
	img := s.snapshot(t, sb, s.image, "")
	spec := s.spec(engine.Spec{Image: img.ID, Limits: engine.Limits{Disk: 10 << 20}})
	made, err := s.engine.Create(probe.Patient(t), spec)
	probe.WantKind(t, "Create with too little disk", err, errors.Exhausted)
	if err == nil {
		_ = made.Destroy(probe.Patient(t))
	}
	handles, err := s.engine.List(probe.Patient(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range handles {
		if h.ID == spec.ID {
			t.Errorf("%+v is left", h)
		}
	}
}

func checkSnapshotOutOfMemory(t *testing.T, s *suite) {
	sb := s.create(t, engine.Spec{KeepOnOOM: true, Limits: engine.Limits{Memory: 256 << 20}})
	probe.Script(t, sb, "/", "echo precious > /kept")
	hog := probe.Start(t, sb, engine.Command{Args: []string{"python3", "-c",
		"import time\na = []\nwhile True: a.append(b'x' * (5 << 20)); time.sleep(0.01)"}})
	if end, err := sb.Wait(probe.Patient(t)); err != nil || !end.OutOfMemory {
		t.Fatalf("the sandbox ended with %+v, %v", end, err)
	}
	_ = hog.End(t)
	img := s.snapshot(t, sb, s.image, "")
	copied := s.create(t, engine.Spec{Image: img.ID})
	probe.Start(t, copied, probe.Sh("cat /kept")).Expect(t, engine.Exit{}, "precious\n")
}

// many creates files in /many, and removes, changes and links some of them.
const many = `
import os, sys
n = int(sys.argv[1]); os.makedirs('/many', exist_ok=True)
for i in range(n):
    d = '/many/%03d' % (i // 500)
    if i % 500 == 0: os.mkdir(d, 0o750)
    p = '%s/%05d' % (d, i)
    with open(p, 'wb') as f: f.write(os.urandom(20) * (i % 300))
    os.chmod(p, 0o600 + i % 64); os.chown(p, i % 7, i % 11); 
    if i % 10 == 0: os.setxattr(p, 'user.n', b'%d\xff' % i)
    if i % 25 == 0: os.link(p, p + '.link')
    if i % 50 == 0: os.symlink('%d' % i, p + '.sym')
    os.utime(p, ns=(i, 1500000000 * 10**9 + i * 1234567))
`

func checkSnapshotManyFiles(t *testing.T, s *suite) {
	n := "50000"
	if testing.Short() {
		n = "2000"
	}
	sb := s.create(t, engine.Spec{})
	probe.Output(t, sb, engine.Command{Args: []string{"python3", "-c", many, n}})
	want := trees(t, sb, "/many")
	img := s.snapshot(t, sb, s.image, "")
	copied := s.create(t, engine.Spec{Image: img.ID})
	same(t, trees(t, copied, "/many"), want)
}

// cycle changes a tree a little: it adds, changes and removes files and directories.
const cycle = `
import os, sys, random, shutil
n = int(sys.argv[1]); r = random.Random(n); os.makedirs('/tree', exist_ok=True)
for k in range(20):
    d = '/tree/%d/%d' % (r.randrange(5), r.randrange(5))
    os.makedirs(d, exist_ok=True)
    with open('%s/%d' % (d, r.randrange(10)), 'wb') as f: f.write(r.randbytes(r.randrange(5000)))
d = '/tree/%d' % r.randrange(5)
if n % 3 == 0 and os.path.isdir(d):
    shutil.rmtree(d)
    if n % 2: os.mkdir(d)
p = sorted(os.listdir('/usr/share'))[n % 5]
shutil.rmtree('/usr/share/' + p) if n % 4 == 1 else None
`

func checkSnapshotCycles(t *testing.T, s *suite) {
	cycles := 20
	if testing.Short() {
		cycles = 3
	}
	look := func(sb engine.Sandbox) string {
		return trees(t, sb, "/tree") + probe.Script(t, sb, "/", "find /usr/share -printf '%p %m %U %T@\\n' | sort")
	}
	parent, want := s.image, ""
	for n := range cycles {
		sb := s.create(t, engine.Spec{Image: parent})
		if n > 0 {
			same(t, look(sb), want)
		}
		probe.Output(t, sb, engine.Command{Args: []string{"python3", "-c", cycle, fmt.Sprint(n)}})
		want = look(sb)
		parent = s.snapshot(t, sb, parent, "").ID
		if err := sb.Destroy(probe.Patient(t)); err != nil {
			t.Fatalf("Destroy: %v", err)
		}
		if t.Failed() {
			t.Fatalf("after %d snapshots", n)
		}
	}
}
