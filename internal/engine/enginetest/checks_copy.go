package enginetest

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/enginetest/probe"
)

// mission: C1, A11

var copyChecks = []check{
	{"copy/round trip", "a tree goes in and comes out with its contents, modes, times and links", nil, checkRoundTrip},
	{"copy/seen inside", "commands see files that were copied in, and files that they write are copied out", nil,
		checkCopySeen},
	{"copy/one file", "a file is copied out as one entry with its name", nil, checkCopyFile},
	{"copy/over files", "copying in replaces files and joins directories", nil, checkCopyOver},
	{"copy/missing", "copying out a missing path is NotFound", nil, checkCopyMissing},
	{"copy/damaged", "a stream that is no archive, or is cut off, is Invalid", nil, checkCopyDamaged},
	{"copy/given up", "a copy that is given up, or whose reader is closed early, ends", nil, checkCopyGivenUp},
	{"copy/large", "a file of the harness's size goes in and out with bounded memory", nil, checkCopyLarge},
	{"copy/many files", "a tree of 2,000 files goes in and out", nil, checkCopyMany},
}

var escapeChecks = []check{
	{"escape/copy in",
		"an entry that would leave the directory is Invalid, is not written, and what came before it stays", nil,
		checkEscapes},
	{"escape/links inside", "links that stay below the directory, and links that are not followed, are no escape", nil,
		checkHarmlessLinks},
}

func tree() []tar.Header {
	deep := strings.Repeat("d/", 120)
	var parents []tar.Header
	for i := 2; i <= len(deep); i += 2 {
		parents = append(parents, probe.Directory(strings.TrimSuffix(deep[:i], "/"), 0o755))
	}
	return append([]tar.Header{
		probe.Directory("empty", 0o700),
		probe.Directory("sub", 0o755),
		probe.File("sub/script", "#!/bin/sh\n", 0o755),
		probe.File("sub/secret", "s", 0o600),
		probe.File("sub/read only", "r", 0o444),
		probe.File("sub/setuid", "u", 0o4755),
		probe.File("sub/nothing", "", 0o644),
		probe.File("sub/näïve 火 🌾.txt", "utf-8", 0o644),
		probe.File("sub/two\nlines", "newline", 0o644),
		probe.File("sub/-rf *", "dashes", 0o644),
		probe.File("sub/"+strings.Repeat("n", 250), "long name", 0o644),
		probe.File("sub/binary", "\x00\xff\x00"+strings.Repeat("z", 70000), 0o644),
		probe.Link("sub/relative", "script"),
		probe.Link("sub/absolute", "/etc/passwd"),
		probe.Link("sub/dangling", "not there"),
		probe.Link("sub/up", "../empty"),
	}, append(parents, probe.File(deep+"bottom", "deep", 0o640))...)
}

func checkRoundTrip(t *testing.T, s *suite) {
	dir := "/checks/" + probe.NewID() + "/made by the copy"
	want := tree()
	probe.Put(t, s.shared, dir, want...)
	got := probe.Get(t, s.shared, dir)
	for _, hdr := range want {
		name := strings.TrimSuffix(hdr.Name, "/")
		e, found := got[name]
		delete(got, name)
		switch {
		case !found:
			t.Errorf("%.60q did not come back", name)
		case e.Typeflag != hdr.Typeflag || e.Linkname != hdr.Linkname:
			t.Errorf("%.60q came back as type %q to %q", name, e.Typeflag, e.Linkname)
		case hdr.Typeflag != tar.TypeSymlink && e.Mode&0o7777 != hdr.Mode:
			t.Errorf("%.60q has the mode %o, want %o", name, e.Mode&0o7777, hdr.Mode)
		case e.ModTime.Unix() != probe.SomeTime.Unix():
			t.Errorf("%.60q has the time %v, want %v", name, e.ModTime, probe.SomeTime)
		case hdr.Typeflag == tar.TypeReg && e.Content != hdr.PAXRecords["HARVEST.content"]:
			t.Errorf("%.60q has %d bytes, want %d", name, len(e.Content), len(hdr.PAXRecords["HARVEST.content"]))
		}
	}
	for name := range got {
		t.Errorf("%.60q came back and was never sent", name)
	}
}

func checkCopySeen(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	probe.Put(t, s.shared, dir, tree()...)
	got := probe.Script(t, s.shared, dir,
		`cat sub/relative sub/secret "sub/näïve 火 🌾.txt"; stat -c ' %a %Y' sub/script; stat -c %a sub/secret empty; `+
			`readlink sub/dangling; ls empty; cat `+strings.Repeat("d/", 120)+"bottom")
	if want := fmt.Sprintf("#!/bin/sh\nsutf-8 755 %d\n600\n700\nnot there\ndeep", probe.SomeTime.Unix()); got != want {
		t.Errorf("inside it is %q, want %q", got, want)
	}
	probe.Script(t, s.shared, dir,
		`mkdir made; printf new >made/file; chmod 640 made/file; touch -d @1600000000 made/file; ln -s file `+
			`made/link; rm sub/secret; ln made/file made/hard`)
	out := probe.Get(t, s.shared, dir)
	f, l := out["made/file"], out["made/link"]
	if f.Typeflag == tar.TypeLink { // either name may be the file
		f = out["made/hard"]
	}
	if f.Content != "new" || f.Mode&0o7777 != 0o640 || f.ModTime.Unix() != 1600000000 || l.Linkname != "file" {
		t.Errorf("made inside, and come out as %+v and %+v", f, l)
	}
	if _, found := out["sub/secret"]; found {
		t.Error("a file that was removed inside came out")
	}
}

func checkCopyFile(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	probe.Put(t, s.shared, dir, tree()...)
	for _, name := range []string{"sub/näïve 火 🌾.txt", "sub/dangling", "sub/setuid"} {
		got := probe.Get(t, s.shared, path.Join(dir, name))
		if _, found := got[path.Base(name)]; len(got) != 1 || !found {
			t.Errorf("%q came out as %v", name, got)
		}
	}
	if got := probe.Get(t, s.shared, dir+"/empty"); len(got) != 0 {
		t.Errorf("an empty directory came out as %v", got)
	}
	if got := probe.Get(t, s.shared, dir+"/sub"); got["script"].Content != "#!/bin/sh\n" {
		t.Errorf("names are not relative to the directory: %v", got)
	}
}

func checkCopyOver(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	probe.Put(t, s.shared, dir, probe.Directory("sub", 0o755), probe.File("sub/a", "old a, which is longer", 0o644),
		probe.File("sub/b", "old b", 0o644))
	probe.Put(t, s.shared, dir, probe.Directory("sub", 0o700), probe.File("sub/a", "new a", 0o600))
	got := probe.Get(t, s.shared, dir)
	if got["sub/a"].Content != "new a" || got["sub/b"].Content != "old b" || got["sub"].Mode&0o777 != 0o700 ||
		got["sub/a"].Mode&0o777 != 0o600 {
		t.Errorf("it is %+v", got)
	}
	probe.Put(t, s.shared, dir+"/sub", probe.File("c", "c", 0o644))
	if got := probe.Get(t, s.shared, dir); got["sub/c"].Content != "c" || got["sub/b"].Content != "old b" {
		t.Errorf("it is %+v", got)
	}
}

func checkCopyMissing(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	probe.Put(t, s.shared, dir, probe.File("file", "x", 0o644))
	for _, name := range []string{dir + "/missing", "/no/such/thing", dir + "/missing/below"} {
		r, err := s.shared.CopyOut(probe.Patient(t), name)
		if err == nil {
			r.Close()
		}
		probe.WantKind(t, name, err, errors.NotFound)
	}
	err := s.shared.CopyIn(probe.Patient(t), dir+"/file", probe.Archive(t, probe.File("x", "x", 0o644)))
	probe.WantKind(t, "copy into a file", err, errors.Invalid)
}

func checkCopyDamaged(t *testing.T, s *suite) {
	whole := probe.Archive(t, probe.File("a", strings.Repeat("a", 3000), 0o644),
		probe.File("b", strings.Repeat("b", 3000), 0o644)).Bytes()
	for name, data := range map[string][]byte{
		"no archive":         bytes.Repeat([]byte("this is text\n"), 1000),
		"cut within a file":  whole[:2000],
		"cut within headers": whole[:600],
	} {
		err := s.shared.CopyIn(probe.Patient(t), probe.NewDir(t, s.shared), bytes.NewReader(data))
		probe.WantKind(t, name, err, errors.Invalid)
	}
}

func checkCopyGivenUp(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	probe.Script(t, s.shared, dir, `head -c 20000000 /dev/zero >big`)
	r, err := s.shared.CopyOut(probe.Patient(t), dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(r, make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	if err := r.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	probe.WantKind(t, "CopyIn with a canceled context", s.shared.CopyIn(canceled(t), dir, probe.Archive(t)),
		errors.Canceled)
	_, err = s.shared.CopyOut(canceled(t), dir)
	probe.WantKind(t, "CopyOut with a canceled context", err, errors.Canceled)
	probe.Start(t, s.shared, probe.Sh("echo works")).Expect(t, engine.Exit{}, "works\n")
}

// pattern is an infinite stream in which no two pages are equal: each is a number and random bytes. It is
// produced page by page, because the race detector checks each write.
type pattern struct {
	page []byte
	rest []byte
	next uint64
}

func newPattern() *pattern {
	p := &pattern{page: make([]byte, 4096)}
	for i := 8; i < len(p.page); i += 8 {
		binary.LittleEndian.PutUint64(p.page[i:], uint64(i)*0x9E3779B97F4A7C15)
	}
	return p
}

func (p *pattern) Read(b []byte) (n int, err error) {
	for n < len(b) {
		if len(p.rest) == 0 {
			binary.LittleEndian.PutUint64(p.page, p.next)
			p.next++
			p.rest = p.page
		}
		m := copy(b[n:], p.rest)
		p.rest = p.rest[m:]
		n += m
	}
	return n, nil
}

// large returns an archive with one file of size bytes of pattern.
func large(size int64) io.Reader {
	var head bytes.Buffer
	w := tar.NewWriter(&head)
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "large", Mode: 0o644, Size: size,
		ModTime: probe.SomeTime,
		Format:  tar.FormatPAX})
	if err != nil {
		panic(err) // a header of constants
	}
	padding := bytes.NewReader(make([]byte, (512-size%512)%512+1024))
	return io.MultiReader(&head, io.LimitReader(newPattern(), size), padding)
}

func checkCopyLarge(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	before, most := heap(), uint64(0)
	begin := time.Now()
	// The copy uses the whole disk, besides other checks.
	ctx, cancel := context.WithTimeout(t.Context(), 10*probe.Patience)
	defer cancel()
	if err := s.shared.CopyIn(ctx, dir, large(s.CopySize)); err != nil {
		t.Fatalf("CopyIn: %v", err)
	}
	in := time.Since(begin)
	most = max(most, heap())
	if got := strings.TrimSpace(probe.Script(t, s.shared, dir, "stat -c %s large")); got != fmt.Sprint(s.CopySize) {
		t.Errorf("inside it has %s bytes, want %d", got, s.CopySize)
	}
	begin = time.Now()
	r, err := s.shared.CopyOut(ctx, dir+"/large")
	if err != nil {
		t.Fatalf("CopyOut: %v", err)
	}
	defer r.Close()
	tr := tar.NewReader(r)
	hdr, err := tr.Next()
	if err != nil || hdr.Size != s.CopySize {
		t.Fatalf("the archive begins with %+v, %v", hdr, err)
	}
	want := newPattern()
	got, expected := make([]byte, 1<<20), make([]byte, 1<<20)
	for at := int64(0); at < s.CopySize; {
		n := min(s.CopySize-at, int64(len(got)))
		if _, err := io.ReadFull(tr, got[:n]); err != nil {
			t.Fatalf("read byte %d: %v", at, err)
		}
		if _, err := io.ReadFull(want, expected[:n]); err != nil || !bytes.Equal(got[:n], expected[:n]) {
			t.Fatalf("bytes %d to %d are wrong", at, at+n)
		}
		if at += n; at%(128<<20) == 0 {
			most = max(most, heap())
		}
	}
	t.Logf("%d MiB in %.1f s in, %.1f s out", s.CopySize>>20, in.Seconds(), time.Since(begin).Seconds())
	if most > before+64<<20 {
		t.Errorf("memory grew from %d to %d MiB", before>>20, most>>20)
	}
	probe.Script(t, s.shared, dir, "rm large")
}

func checkCopyMany(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	var entries []tar.Header
	for i := range 2000 {
		if i%100 == 0 {
			entries = append(entries, probe.Directory(fmt.Sprintf("d%d", i/100), 0o755))
		}
		entries = append(entries, probe.File(fmt.Sprintf("d%d/f%d", i/100, i), fmt.Sprint(i), 0o644))
	}
	probe.Put(t, s.shared, dir, entries...)
	got := probe.Get(t, s.shared, dir)
	if len(got) != 2020 || got["d19/f1999"].Content != "1999" || got["d0/f0"].Content != "0" {
		t.Errorf("%d entries came out, want 2020", len(got))
	}
}

func checkEscapes(t *testing.T, s *suite) {
	hard := func(name, target string) tar.Header {
		return tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: target, Mode: 0o644, ModTime: probe.SomeTime}
	}
	for name, entries := range map[string][]tar.Header{
		"dots":                {probe.File("../escaped", "x", 0o644)},
		"dots within":         {probe.File("a/../../escaped", "x", 0o644)},
		"a directory of dots": {probe.Directory("..", 0o777)},
		"a link of dots":      {probe.Link("../escaped", "x")},
		"through a link":      {probe.Link("l", ".."), probe.File("l/escaped", "x", 0o644)},
		"through two links": {probe.Directory("a", 0o755), probe.Link("a/b", ".."), probe.Link("c", "a/b/.."),
			probe.File("c/escaped", "x", 0o644)},
		"through absolute link": {probe.Link("l", "/checks"), probe.File("l/escaped", "x", 0o644)},
		"a directory in a link": {probe.Link("l", ".."), probe.Directory("l/escaped", 0o755)},
		"a hard link of dots":   {hard("h", "../outside"), probe.File("h", "overwritten", 0o644)},
		"a hard link out of it": {probe.Link("l", ".."), hard("h", "l/outside")},
	} {
		t.Run(name, func(t *testing.T) {
			outer := probe.NewDir(t, s.shared)
			probe.Put(t, s.shared, outer, probe.File("outside", "untouched", 0o644), probe.Directory("dir", 0o755))
			entries := append([]tar.Header{probe.File("before", "kept", 0o644)}, entries...)
			probe.WantKind(t, "CopyIn", s.shared.CopyIn(probe.Patient(t), outer+"/dir", probe.Archive(t, entries...)),
				errors.Invalid)
			got := probe.Get(t, s.shared, outer)
			if got["dir/before"].Content != "kept" {
				t.Error("what came before the entry is not there")
			}
			if got["outside"].Content != "untouched" {
				t.Error("a file outside was changed")
			}
			for name := range got {
				if name == "escaped" || path.Base(name) == "escaped" && !strings.HasPrefix(name, "dir/") {
					t.Errorf("%s was written", name)
				}
			}
		})
	}
	// Absolute names may be refused or treated as relative, but nothing may be written to them.
	outer := probe.NewDir(t, s.shared)
	err := s.shared.CopyIn(probe.Patient(t), outer+"/dir", probe.Archive(t, probe.File(outer+"/escaped", "x", 0o644)))
	if err != nil {
		probe.WantKind(t, "an absolute name", err, errors.Invalid)
	}
	if _, found := probe.Get(t, s.shared, outer)["escaped"]; found {
		t.Error("an absolute name was written to")
	}
}

func checkHarmlessLinks(t *testing.T, s *suite) {
	dir := probe.NewDir(t, s.shared)
	probe.Put(t, s.shared, dir, probe.Directory("real", 0o755), probe.Link("alias", "real"), probe.Link("far", "/etc"),
		probe.Link("up", "../.."),
		probe.File("alias/file", "x", 0o644))
	got := probe.Get(t, s.shared, dir)
	if got["real/file"].Content != "x" || got["far"].Linkname != "/etc" || got["up"].Linkname != "../.." {
		t.Errorf("it is %v", got)
	}
	probe.Put(t, s.shared, dir, probe.File("far", "now a file", 0o644)) // replaces the link and does not follow it
	if got := probe.Get(t, s.shared, dir); got["far"].Content != "now a file" {
		t.Errorf("it is %v", got)
	}
}
