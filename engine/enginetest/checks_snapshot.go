package enginetest

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
)

var snapshots = needs(func(c engine.Capabilities) bool { return c.Snapshot }, "the engine announces no Snapshotter")

// mission: A10
var snapshotChecks = []check{
	{"SnapshotKeepsAll", "a sandbox made from a snapshot has the same files: every kind, mode, owner, time, attribute and hard link", both(snapshots, users), checkSnapshotKeepsAll},
}

// snapshot takes a snapshot of sb, which has the image parent, and returns its image, which is deleted when t ends.
func (s *suite) snapshot(t *testing.T, sb engine.Sandbox, parent, path string) image.Image {
	t.Helper()
	images := s.engine.Images().(image.Snapshotter)
	from, err := s.engine.Images().Find(patient(t), parent)
	if err != nil {
		t.Fatalf("Find %s: %v", parent, err)
	}
	img, err := images.Snapshot(patient(t), from, image.SnapshotOptions{Sandbox: sb.Handle().ID, Path: path}, func(w io.Writer) error {
		return sb.(engine.Snapshotter).Snapshot(patient(t), path, w)
	})
	if err != nil {
		t.Fatalf("Snapshot: %v", err)
	}
	t.Cleanup(func() {
		if err := s.engine.Images().Delete(context.Background(), img.ID); err != nil && !errors.Is(err, errors.NotFound) {
			t.Errorf("Delete %s: %v", img.ID, err)
		}
	})
	return img
}

// manifest is a program that prints all that matters of the file trees it is given, one file on each line.
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
        for n in sorted(os.listdir(p)): walk(os.path.join(p, n))
first = {}
for root in sys.argv[1:]: walk(os.fsencode(root))
`

// trees returns the manifest of trees in a sandbox.
func trees(t *testing.T, sb engine.Sandbox, roots ...string) string {
	t.Helper()
	return output(t, sb, engine.Command{Args: append([]string{"python3", "-c", manifest}, roots...), User: "root"})
}

// same compares manifests and shows the first lines that differ.
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

// zoo makes every kind of file in /zoo, and changes what the image has.
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
put('owned'); os.chown('owned', 1234567, 7654321)
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
os.unlink('/etc/hostname') if os.path.lexists('/etc/hostname') else None
os.makedirs('/etc/hostname/dir')
os.chmod('/usr/bin/env', 0o700); os.chown('/etc/passwd', 0, 42)
with open('/etc/shells', 'a') as f: f.write('/bin/mine\n')
os.utime('/etc/shells', ns=(7, 1111111111222222222))
os.symlink('python3', '/usr/bin/snake'); os.chmod('/', 0o751)
`

func checkSnapshotKeepsAll(t *testing.T, s *suite) {
	first := s.create(t, engine.Spec{})
	output(t, first, engine.Command{Args: []string{"python3", "-c", zoo}, User: "root"})
	// A socket is of no use without who listens.
	script(t, first, "/", "test -S /zoo/socket && rm /zoo/socket && touch -d @1600000000.123456789 /zoo")
	roots := []string{"/zoo", "/etc", "/usr/share", "/usr/bin", "/usr/lib/python3", "/root", "/var/lib/dpkg"}
	want := trees(t, first, roots...)
	img := s.snapshot(t, first, s.image, "")
	second := s.create(t, engine.Spec{Image: img.ID})
	same(t, trees(t, second, roots...), want)
	if got := script(t, second, "/", "stat -c %a / && test ! -e /etc/debian_version && du -k /zoo/sparse /zoo/hole | cut -f1 | tr '\\n' ' '"); !strings.HasPrefix(got, "751\n") {
		t.Errorf("the root directory: %s", got)
	}
	same(t, trees(t, first, roots...), want) // the first one goes on as it was
	// A snapshot of a snapshot is one layer over the same root.
	script(t, second, "/zoo", "rm -r closed sticky plain && echo more > more && mkdir /etc/debian_version")
	want = trees(t, second, roots...)
	again := s.snapshot(t, second, img.ID, "")
	third := s.create(t, engine.Spec{Image: again.ID})
	same(t, trees(t, third, roots...), want)
	if n := len(again.Snapshot.Lineage); n != 2 || again.Spec.Parent != img.ID {
		t.Errorf("the lineage of a snapshot of a snapshot is %+v, its parent %s", again.Snapshot.Lineage, again.Spec.Parent)
	}
	var one, two bytes.Buffer
	for _, b := range []*bytes.Buffer{&one, &two} {
		if err := third.(engine.Snapshotter).Snapshot(patient(t), "", b); err != nil {
			t.Fatalf("Snapshot: %v", err)
		}
	}
	if !bytes.Equal(one.Bytes(), two.Bytes()) {
		t.Errorf("two snapshots of the same files differ")
	}
}
