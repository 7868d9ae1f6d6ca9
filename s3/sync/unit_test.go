package sync

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/minio/crc64nvme"
	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/s3/tree"
)

func TestKeys(t *testing.T) {
	for path, key := range map[string]string{
		"a":                 "a",
		"a/b c+d":           "a/b c+d",
		"\u00fc":            "\u00fc",
		"\xff":              "%~FF",
		"a\nb":              "a%~0Ab",
		".harvest":          "%~2Eharvest",
		".harvest/x":        "%~2Eharvest/x",
		".harvester":        ".harvester",
		"x/.harvest":        "x/.harvest",
		"%41":               "%41",
		"%~41":              "%~25~41",
		"\u00e9/\xe9":       "\u00e9/%~E9",
		"\uffff":            "%~EF%~BF%~BF",
		"\U0001f600 smiley": "\U0001f600 smiley",
	} {
		if got := tree.EncodePath(path); got != key {
			t.Errorf("EncodePath(%q) = %q, want %q", path, got, key)
		}
		if got, ok := tree.DecodeKey(key); !ok || got != path {
			t.Errorf("DecodeKey(%q) = %q, %v", key, got, ok)
		}
	}
	for _, key := range []string{"", "/", "/a", "a//b", "a/../b", "..", ".", "./a", "a/.", "a\x00b", "%~zz", "%~41",
		"%~", strings.Repeat("n", 256), ".harvest/x", "a/"} {
		if path, ok := tree.DecodeKey(key); ok && tree.EncodePath(path) != key {
			t.Errorf("DecodeKey(%q) = %q", key, path)
		} else if ok && key != "%~" {
			t.Errorf("DecodeKey(%q) = %q, want none", key, path)
		}
	}
}

func FuzzKeys(f *testing.F) {
	for _, s := range []string{"a", "a/b", "\xff\n", "%~41", ".harvest/x", "../x", "a//b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if tree.ValidPath(s) {
			if got, ok := tree.DecodeKey(tree.EncodePath(s)); !ok || got != s {
				t.Errorf("%q became %q and then %q, %v", s, tree.EncodePath(s), got, ok)
			}
		}
		if path, ok := tree.DecodeKey(s); ok && (!tree.ValidPath(path) || tree.EncodePath(path) != s) {
			t.Errorf("the key %q became the path %q", s, path)
		}
	})
}

func TestCombine(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		b := make([]byte, r.IntN(5000))
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		cut := 0
		if len(b) > 0 {
			cut = r.IntN(len(b) + 1)
		}
		got := combineCRC(crc64nvme.Checksum(b[:cut]), crc64nvme.Checksum(b[cut:]), int64(len(b)-cut))
		if want := crc64nvme.Checksum(b); got != want {
			t.Fatalf("%d and %d bytes: %x, want %x", cut, len(b)-cut, got, want)
		}
	}
}

func someEntries() []*tree.Entry {
	return []*tree.Entry{
		{Path: "a", Kind: tree.File, Mode: 0o644, UID: 1, GID: 2, ModTime: tree.Nano(-5), Size: 7, ETag: "e", CRC: 0,
			HasCRC: true, Inode: 9, Change: 10},
		{Path: "a-b", Kind: tree.Symlink, Mode: 0o777, Target: "../x"},
		{Path: "a", Kind: tree.Dir, Mode: 0o700},
		{Path: "a/b\xff", Kind: tree.File, Link: "a/a", Xattrs: map[string]string{"user.x": "\x00\x01"}},
		{Path: "s", Kind: tree.File, Size: 1 << 40, Extents: []tree.Extent{{Offset: 5, Length: 6},
			{Offset: 100, Length: 1}}, Key: tree.Hidden("sparse", "s")},
		{Path: "t", Kind: tree.File, Size: 1 << 30, Extents: []tree.Extent{}},
	}
}

func manifestOf(t testing.TB, local bool, entries ...*tree.Entry) []byte {
	var b bytes.Buffer
	w, err := newManifestWriter(&b, 1, local)
	for i := 0; err == nil && i < len(entries); i++ {
		err = w.add(entries[i])
	}
	if err == nil {
		err = w.close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func readAll(raw []byte) (all []*tree.Entry, last error) {
	for e, err := range readManifest(bytes.NewReader(raw)) {
		if err != nil {
			return all, err
		}
		all = append(all, e)
	}
	return all, nil
}

func TestManifest(t *testing.T) {
	want := someEntries()
	for _, local := range []bool{false, true} {
		raw := manifestOf(t, local, want...)
		got, err := readAll(raw)
		if err != nil || len(got) != len(want) {
			t.Fatalf("%d entries, %v", len(got), err)
		}
		for i, e := range got {
			if !e.SameRecord(want[i]) || e.Path != want[i].Path || e.Target != want[i].Target ||
				(e.Extents == nil) != (want[i].Extents == nil) {
				t.Errorf("%+v came back as %+v", want[i], e)
			}
			if inode := e.Inode != 0; inode != (local && want[i].Inode != 0) {
				t.Errorf("local %v: the inode is %d", local, e.Inode)
			}
		}
		for cut := range len(raw) - 1 {
			if _, err := readAll(raw[:cut]); err == nil {
				t.Fatalf("a manifest of %d bytes was whole after %d", len(raw), cut)
			}
		}
	}
	var b bytes.Buffer
	w, err := newManifestWriter(&b, 1, false)
	if err != nil || w.add(want[0]) != nil || w.flush() != nil {
		t.Fatal(err)
	}
	if got, err := readAll(b.Bytes()); len(got) != 1 || !errors.Is(err, errTorn) {
		t.Errorf("a torn manifest gave %d entries and %v", len(got), err)
	}
	if err := w.add(want[0]); err == nil {
		t.Error("an entry was written twice")
	}
}

func TestManifestOfOthers(t *testing.T) {
	if _, err := readAll([]byte("something else")); errors.KindOf(err) != errors.Invalid {
		t.Errorf("something else: %v", err)
	}
	var b bytes.Buffer
	w, err := newManifestWriter(&b, 1, false)
	if err != nil {
		t.Fatal(err)
	}
	b.Reset()
	w.z.Reset(&b)
	w.b.Reset(w.z)
	if err := errors.Join(w.enc.Encode(header{manifestFormat, manifestVersion + 1, 0}), w.close()); err != nil {
		t.Fatal(err)
	}
	if _, err := readAll(b.Bytes()); errors.KindOf(err) != errors.Unsupported || errors.RemedyOf(err) == "" {
		t.Errorf("a newer version: %v", err)
	}
	// A small manifest that claims a large size does not cause a large allocation.
	b.Reset()
	w.z.Reset(&b)
	w.b.Reset(w.z)
	_ = w.enc.Encode(header{manifestFormat, manifestVersion, 0})
	_, _ = w.b.Write([]byte{0xa1, 0x01, 0x5b, 0, 0, 0, 1, 0, 0, 0, 0}) // a path of 4 GiB
	for range 100 {
		_, _ = w.b.Write(make([]byte, 1<<20))
	}
	_ = w.close()
	if _, err := readAll(b.Bytes()); err == nil {
		t.Error("an entry of 4 GiB was read")
	}
}

func FuzzManifest(f *testing.F) {
	f.Add(manifestOf(f, true, someEntries()...))
	f.Add(manifestOf(f, false))
	f.Add([]byte("x"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		last := ""
		n := 0
		for e, err := range readManifest(bytes.NewReader(raw)) {
			if err != nil {
				return
			}
			if !tree.ValidPath(e.Path) && e.Path != "" {
				t.Fatalf("%q came out of a manifest", e.Path)
			}
			if n > 0 && tree.CompareKeys(last, e.Order()) >= 0 {
				t.Fatalf("%q after %q", e.Order(), last)
			}
			if e.Key != "" && !strings.HasPrefix(e.Key, tree.Reserved+"/") {
				t.Fatalf("%q has the key %q", e.Path, e.Key)
			}
			last = e.Order()
			n++
		}
	})
}

func TestDecide(t *testing.T) {
	file := func(size int64, inode uint64) *tree.Entry {
		return &tree.Entry{Path: "f", Kind: tree.File, Size: size, ModTime: tree.Nano(size), Inode: inode, Change: size,
			ETag: "e" + string(rune('0'+size))}
	}
	dir := &tree.Entry{Path: "f", Kind: tree.Dir, Mode: 0o755}
	for _, c := range []struct {
		name                string
		p                   policy
		local, base, remote *tree.Entry
		want                Op
	}{
		{"up new", policy{dir: Up}, file(1, 1), nil, nil, Upload},
		{"up same inode", policy{dir: Up}, file(1, 1), file(1, 1), file(1, 1), Keep},
		{"up unknown inode", policy{dir: Up}, file(1, 1), nil, file(1, 0), UpdateRemote},
		{"up changed", policy{dir: Up}, file(2, 1), file(1, 1), file(1, 1), Upload},
		{"up only there", policy{dir: Up}, nil, nil, file(1, 0), Keep},
		{"up only there, mirror", policy{dir: Up, mirror: true}, nil, nil, file(1, 0), DeleteRemote},
		{"up contents", policy{dir: Up, checked: true}, file(1, 1), file(1, 1), file(1, 1), UpdateRemote},
		{"down new", policy{dir: Down}, nil, nil, file(1, 0), Download},
		{"down only here", policy{dir: Down}, file(1, 1), nil, nil, Keep},
		{"down only here, mirror", policy{dir: Down, mirror: true}, file(1, 1), nil, nil, DeleteLocal},
		{"down changed", policy{dir: Down}, file(1, 1), file(1, 1), file(2, 0), Download},
		{"down directory", policy{dir: Down}, dir, nil, dir, Keep},
		{"both nothing", policy{dir: Both}, file(1, 1), file(1, 1), file(1, 1), Keep},
		{"both here", policy{dir: Both}, file(2, 1), file(1, 1), file(1, 1), Upload},
		{"both there", policy{dir: Both}, file(1, 1), file(1, 1), file(2, 0), Download},
		{"both deleted here", policy{dir: Both}, nil, file(1, 1), file(1, 1), DeleteRemote},
		{"both deleted there", policy{dir: Both}, file(1, 1), file(1, 1), nil, DeleteLocal},
		{"both never here", policy{dir: Both}, nil, file(1, 0), file(1, 0), Download},
		{"both new here", policy{dir: Both}, file(1, 1), nil, nil, Upload},
		{"both deleted here, changed there", policy{dir: Both}, nil, file(1, 1), file(2, 0), Download},
		{"both changed here, deleted there", policy{dir: Both}, file(2, 1), file(1, 1), nil, Upload},
		{"both changed, local", policy{dir: Both, conflict: KeepLocal}, file(2, 1), file(1, 1), file(3, 0), Upload},
		{"both changed, remote", policy{dir: Both, conflict: KeepRemote}, file(2, 1), file(1, 1), file(3, 0), Download},
		{"both changed, newer", policy{dir: Both, conflict: KeepNewer}, file(4, 1), file(1, 1), file(3, 0), Upload},
		{"both changed, both", policy{dir: Both, conflict: KeepBoth}, file(2, 1), file(1, 1), file(3, 0), Upload},
		{"both directories", policy{dir: Both}, &tree.Entry{Path: "f", Kind: tree.Dir, Mode: 0o700}, nil, dir,
			UpdateRemote},
	} {
		if got := decide(c.p, c.local, c.base, c.remote, nil); got.Op != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.Op, c.want)
		}
	}
	a := decide(policy{dir: Both, conflict: KeepBoth, stamp: time.Unix(0, 0)}, file(2, 1), file(1, 1), file(3, 0), nil)
	if a.copyTo != "f.conflict-19700101T000000Z" || a.Conflict != keptBoth+a.copyTo {
		t.Errorf("the copy is %q: %q", a.copyTo, a.Conflict)
	}
}

// FuzzDecide checks that no plan loses content of one side only, for any state of the three sides.
func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), uint8(0))
	f.Fuzz(func(t *testing.T, bits uint64, how uint8) {
		entry := func(b uint64) *tree.Entry {
			if b&1 == 0 {
				return nil
			}
			e := &tree.Entry{Path: "f", Kind: tree.Kind(b>>1&1) + 1, ModTime: tree.Nano(int64(b >> 4 & 3)),
				Inode: b >> 6 & 3, Change: int64(b >> 8 & 3), ETag: string(rune('a' + b>>10&3))}
			if e.Kind == tree.File {
				e.Size = int64(b >> 2 & 3)
			}
			return e
		}
		local, base, remote := entry(bits), entry(bits>>16), entry(bits>>32)
		p := policy{dir: []Direction{Up, Down, Both}[how%3], mirror: how&4 != 0, checked: how&8 != 0,
			conflict: []Conflicts{KeepBoth, KeepNewer, KeepLocal, KeepRemote}[how>>4&3]}
		a := decide(p, local, base, remote, nil)
		switch {
		case a.Op == DeleteLocal && (remote != nil || local == nil):
			t.Errorf("deletes the volume's, and the bucket has one: %+v", a)
		case a.Op == DeleteRemote && (local != nil || remote == nil):
			t.Errorf("deletes the bucket's, and the volume has one: %+v", a)
		case (a.Op == DeleteLocal || a.Op == DeleteRemote) && !p.mirror && (p.dir != Both || base == nil):
			t.Errorf("deletes what nobody deleted: %+v", a)
		case (a.Op == Upload || a.Op == UpdateRemote) && (local == nil || p.dir == Down):
			t.Errorf("uploads nothing, or against the direction: %+v", a)
		case (a.Op == Download || a.Op == UpdateLocal) && (remote == nil || p.dir == Up):
			t.Errorf("downloads nothing, or against the direction: %+v", a)
		case local != nil && remote == nil && p.dir != Down && a.Op == Keep:
			if base == nil {
				t.Errorf("does not upload what only the volume has: %+v", a)
			}
		}
	})
}

func TestMetadataOfOthers(t *testing.T) {
	for _, c := range []struct {
		permissions, mode string
		want              uint32
		ok                bool
	}{
		{"0100644", "", 0o100644, true}, {"", "0100755", 0o100755, true}, {"", "100755", 0o100755, true},
		{"", "33261", 0o100755, true},
		{"", "40755", 0o40755, true}, {"", "41471", 0o120777, true}, {"", "644", 0o644, true}, {"", "", 0, false},
		{"x", "y", 0, false}, {"09", "33188", 0o100644, true},
	} {
		if got, ok := parseMode(c.permissions, c.mode); got != c.want || ok != c.ok {
			t.Errorf("parseMode(%q, %q) = %o, %v, want %o", c.permissions, c.mode, got, ok, c.want)
		}
	}
}

// TestHeaders checks that the headers keep the form that other tools read.
// mission: 3.2, D2
func TestHeaders(t *testing.T) {
	header := func(mode, uid, gid, mtime, ns, content string) http.Header {
		return http.Header{"X-Amz-Meta-Mode": {mode}, "X-Amz-Meta-Uid": {uid}, "X-Amz-Meta-Gid": {gid},
			"X-Amz-Meta-Mtime":            {mtime},
			"X-Amz-Meta-File-Permissions": {mode}, "X-Amz-Meta-File-Owner": {uid}, "X-Amz-Meta-File-Group": {gid},
			"X-Amz-Meta-File-Mtime": {ns}, "Content-Type": {content}}
	}
	const bytes = "application/octet-stream"
	for _, c := range []struct {
		e    tree.Entry
		want http.Header
	}{
		{tree.Entry{Kind: tree.File, Mode: 0o644, UID: 1000, GID: 100, ModTime: tree.Nano(1709210096123456789)},
			header("0100644", "1000", "100", "1709210096.123456789", "1709210096123456789ns", bytes)},
		{tree.Entry{Kind: tree.File, Mode: 0o4711, UID: 1<<32 - 1, ModTime: tree.Nano(1709210096000000001)},
			header("0104711", "4294967295", "0", "1709210096.000000001", "1709210096000000001ns", bytes)},
		{tree.Entry{Kind: tree.File}, header("0100000", "0", "0", "0.000000000", "0ns", bytes)},
		{tree.Entry{Kind: tree.Symlink, Mode: 0o777, Target: "x", ModTime: tree.Nano(1.5e9)},
			header("0120777", "0", "0", "1.500000000", "1500000000ns", bytes)},
		{tree.Entry{Kind: tree.Dir, Mode: 0o755, GID: 4321, ModTime: tree.Nano(1e9)},
			header("040755", "0", "4321", "1.000000000", "1000000000ns", "application/x-directory")},
		{tree.Entry{Kind: tree.Dir, Mode: 0o1777}, header("041777", "0", "0", "0.000000000", "0ns",
			"application/x-directory")},
	} {
		if got := metaHeader(&c.e); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v has\n%v, want\n%v", c.e, got, c.want)
		}
		read := tree.Entry{Kind: tree.File}
		if describe(&read, c.want); read.Mode != c.e.Mode || read.UID != c.e.UID || read.GID != c.e.GID ||
			read.ModTime != c.e.ModTime || (read.Kind == tree.Symlink) != (c.e.Kind == tree.Symlink) {
			t.Errorf("%v is read as %+v", c.want, read)
		}
	}
}

// TestSplit checks that for every file size, the number and size of the parts stay within S3's limits, and that the
// parts together are the file. The parts in memory at a time fit into the limit: up to 625 GiB as several bodies,
// beyond that as a single one.
// mission: 2.4, D1
func TestSplit(t *testing.T) {
	const mib, gib, tib = 1 << 20, 1 << 30, 1 << 40
	for _, c := range []struct{ size, part, memory int64 }{
		{1, 1, 4 << 10},
		{partSize, partSize, partSize},
		{partSize + 1, partSize, partSize},
		{100 * gib, partSize, partSize},
		{maxParts * partSize, partSize, partSize},
		{maxParts*partSize + 1, 2 * partSize, 32 * mib},
		{160 * gib, 32 * mib, 32 * mib},
		{200 * gib, 32 * mib, 32 * mib},
		{625 * gib, 64 * mib, maxInFlight},
		{625*gib + 1, 128 * mib, maxInFlight},
		{5 * tib, 1 * gib, maxInFlight},
	} {
		for how, parts := range map[string][]part{"up": split(c.size), "down": cutUp(c.size, partSize)} {
			at, largest := int64(0), int64(0)
			for i, p := range parts {
				if p.number != int32(i+1) || p.at != at || p.length <= 0 {
					t.Fatalf("%d bytes %s: part %d is %+v after %d bytes", c.size, how, i, p, at)
				}
				at += p.length
				largest = max(largest, p.length)
			}
			if at != c.size {
				t.Errorf("%d bytes %s: the parts have %d", c.size, how, at)
			}
			if how == "down" {
				if largest > partSize {
					t.Errorf("%d bytes down: %d at a time", c.size, largest)
				}
				continue
			}
			if len(parts) > maxParts || largest > 5*gib || largest != c.part || weight(largest) != c.memory ||
				c.size <= 625*gib && largest > maxInFlight {
				t.Errorf("%d bytes up: %d parts of %d, which count as %d in memory", c.size, len(parts), largest,
					weight(largest))
			}
		}
	}
	if parts := split(0); len(parts) != 0 {
		t.Errorf("nothing has the parts %v", parts)
	}
}

// TestVeryLargeDown checks that a very large file is downloaded in parts no larger than those of any other file.
// mission: 2.4, D1
func TestVeryLargeDown(t *testing.T) {
	t.Parallel()
	loc := location(t)
	a := between(t, &loc)
	var mu sync.Mutex
	var ranges []string
	a.reset(func(_ int, w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		ranges = append(ranges, r.Header.Get("Range"))
		return xmlFault(w, http.StatusForbidden, "AccessDenied")
	})
	r := &run{b: openBucket(t, loc), t: openTree(t, t.TempDir()), sem: semaphore.NewWeighted(maxInFlight),
		room: maxInFlight}
	defer r.buffers.close()
	w, err := r.t.Create("f")
	must(t, err)
	defer w.Discard()
	if _, err := r.fetchParts(t.Context(), w, &tree.Entry{Path: "f", Kind: tree.File, Size: 5 << 40, ETag: "e"},
		"f"); errors.KindOf(err) != errors.Denied {
		t.Errorf("it was fetched: %v", err)
	}
	mu.Lock()
	defer mu.Unlock()
	for _, text := range ranges {
		var from, to int64
		if n, err := fmt.Sscanf(text, "bytes=%d-%d", &from, &to); n != 2 || err != nil || to-from+1 != partSize {
			t.Errorf("asked for %s", text)
		}
	}
	if len(ranges) == 0 || r.buffers.held > maxInFlight {
		t.Errorf("%d parts, with %d bytes of memory", len(ranges), r.buffers.held)
	}
}

func TestExtentsOfParts(t *testing.T) {
	e := &tree.Entry{Size: 100, Extents: []tree.Extent{{Offset: 10, Length: 5}, {Offset: 50, Length: 10},
		{Offset: 90, Length: 10}}}
	file := make([]byte, 100)
	body := []byte("abcdefghijklmnopqrstuvwxy")
	w := sliceFile(file)
	for at := 0; at < len(body); at += 7 {
		if err := tree.WriteContent(w, e, body[at:min(at+7, len(body))], int64(at)); err != nil {
			t.Fatal(err)
		}
	}
	if got := string(file[10:15]) + string(file[50:60]) + string(file[90:]); got != string(body) {
		t.Errorf("written %q", got)
	}
	got := make([]byte, 9)
	if err := tree.ReadContent(w, e, got, 3); err != nil || string(got) != string(body[3:12]) {
		t.Errorf("read %q, %v", got, err)
	}
}

// sliceFile is memory as a file.
type sliceFile []byte

func (f sliceFile) WriteAt(p []byte, at int64) (int, error) { return copy(f[at:], p), nil }
func (f sliceFile) ReadAt(p []byte, at int64) (int, error)  { return copy(p, f[at:]), nil }

func TestBadLocations(t *testing.T) {
	good := Location{Bucket: "b", Endpoint: "http://127.0.0.1:9"}
	for name, change := range map[string]func(*Location){
		"no bucket":      func(l *Location) { l.Bucket = "" },
		"bucket":         func(l *Location) { l.Bucket = "a/b" },
		"prefix":         func(l *Location) { l.Prefix = "a/../b" },
		"long prefix":    func(l *Location) { l.Prefix = strings.Repeat("a/", 300) },
		"endpoint":       func(l *Location) { l.Endpoint = "ftp://x" },
		"user":           func(l *Location) { l.Endpoint = "http://user:pw@x" },
		"half a key":     func(l *Location) { l.AccessKeyID = "x" },
		"no certificate": func(l *Location) { l.CA = []byte("x") },
		"proxy":          func(l *Location) { l.Proxy = "nothing" },
	} {
		l := good
		change(&l)
		if _, err := Open(t.Context(), l); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, o := range []Options{{}, {Direction: "sideways"}, {Direction: Up, Conflicts: "no"},
		{Direction: Up, Only: "../x"}} {
		if err := o.check(); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

func TestListed(t *testing.T) {
	keys := []string{"../up", "a", "a//b", "a/b", "a/c/d", "b/", "b/c", "x", "x/y"}
	slices.Sort(keys)
	var got []string
	for it, err := range listed(func(yield func(object, error) bool) {
		for _, k := range keys {
			if !yield(object{key: k}, nil) {
				return
			}
		}
	}) {
		if err != nil {
			t.Fatal(err)
		}
		if it.err != nil {
			got = append(got, "bad "+it.key)
		} else {
			got = append(got, it.Kind.String()+" "+it.Path)
		}
	}
	want := []string{"bad ../up", "file a", "bad a//b", "directory a", "file a/b", "directory a/c", "file a/c/d",
		"directory b", "file b/c", "file x", "directory x", "file x/y"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
