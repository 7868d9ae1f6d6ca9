package object

import (
	"context"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	smithy "github.com/aws/smithy-go"
	"github.com/minio/crc64nvme"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// TestLease checks that a transport that still reads a body after its caller has gone does not touch the caller's
// memory.
func TestLease(t *testing.T) {
	l := &lease{b: []byte("hello")}
	one, two := &leased{lease: l}, &leased{lease: l}
	buf := make([]byte, 3)
	if n, err := one.Read(buf); n != 3 || err != nil || string(buf) != "hel" {
		t.Errorf("%d, %v: %q", n, err, buf)
	}
	if all, err := io.ReadAll(two); string(all) != "hello" || err != nil || two.Close() != nil {
		t.Errorf("from the beginning: %q, %v", all, err)
	}
	l.end()
	if n, err := one.Read(buf); n != 0 || err == nil || errors.Is(err, io.EOF) {
		t.Errorf("after the end: %d, %v", n, err)
	}
}

// FuzzListed checks that any list and headers give a name directly below its directory, and metadata that files can
// have.
func FuzzListed(f *testing.F) {
	f.Add("d", "p/d/x", "0100644", "33188", "1.5", "5ns")
	f.Add("", "p/../x", "0120777", "", "-1", "ns")
	f.Add("d", "p/d//x", "99999999999", "41471", "1e9", "99999999999999999999ns")
	f.Fuzz(func(t *testing.T, dir, key, permissions, mode, mtime, fileMtime string) {
		b := &Bucket{prefix: "p/"}
		if path, ok := b.childPath(dir, key); ok && (!tree.ValidPath(path) || tree.Parent(path) != dir || path == dir) {
			t.Errorf("%q in %q is %q", key, dir, path)
		}
		e := &tree.Entry{Kind: tree.File, Mode: 0o644}
		Describe(e, http.Header{"X-Amz-Meta-File-Permissions": {permissions}, "X-Amz-Meta-Mode": {mode},
			"X-Amz-Meta-Mtime": {mtime}, "X-Amz-Meta-File-Mtime": {fileMtime}})
		if e.Mode > 0o7777 || e.Kind != tree.File && e.Kind != tree.Symlink {
			t.Errorf("it is %+v", e)
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
		got := CombineCRC(crc64nvme.Checksum(b[:cut]), crc64nvme.Checksum(b[cut:]), int64(len(b)-cut))
		if want := crc64nvme.Checksum(b); got != want {
			t.Fatalf("%d and %d bytes: %x, want %x", cut, len(b)-cut, got, want)
		}
	}
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
		if got := MetaHeader(&c.e); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%+v has\n%v, want\n%v", c.e, got, c.want)
		}
		read := tree.Entry{Kind: tree.File}
		if Describe(&read, c.want); read.Mode != c.e.Mode || read.UID != c.e.UID || read.GID != c.e.GID ||
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
		{buffer.PartSize, buffer.PartSize, buffer.PartSize},
		{buffer.PartSize + 1, buffer.PartSize, buffer.PartSize},
		{100 * gib, buffer.PartSize, buffer.PartSize},
		{maxParts * buffer.PartSize, buffer.PartSize, buffer.PartSize},
		{maxParts*buffer.PartSize + 1, 2 * buffer.PartSize, 32 * mib},
		{160 * gib, 32 * mib, 32 * mib},
		{200 * gib, 32 * mib, 32 * mib},
		{625 * gib, 64 * mib, buffer.MaxInFlight},
		{625*gib + 1, 128 * mib, buffer.MaxInFlight},
		{5 * tib, 1 * gib, buffer.MaxInFlight},
	} {
		for how, parts := range map[string][]part{"up": split(c.size), "down": CutUp(c.size, buffer.PartSize)} {
			at, largest := int64(0), int64(0)
			for i, p := range parts {
				if p.Number != int32(i+1) || p.At != at || p.Length <= 0 {
					t.Fatalf("%d bytes %s: part %d is %+v after %d bytes", c.size, how, i, p, at)
				}
				at += p.Length
				largest = max(largest, p.Length)
			}
			if at != c.size {
				t.Errorf("%d bytes %s: the parts have %d", c.size, how, at)
			}
			if how == "down" {
				if largest > buffer.PartSize {
					t.Errorf("%d bytes down: %d at a time", c.size, largest)
				}
				continue
			}
			if len(parts) > maxParts || largest > 5*gib || largest != c.part || buffer.Weight(largest) != c.memory ||
				c.size <= 625*gib && largest > buffer.MaxInFlight {
				t.Errorf("%d bytes up: %d parts of %d, which count as %d in memory", c.size, len(parts), largest,
					buffer.Weight(largest))
			}
		}
	}
	if parts := split(0); len(parts) != 0 {
		t.Errorf("nothing has the parts %v", parts)
	}
}

func FuzzDecodeListed(f *testing.F) {
	for _, s := range append([]string{"a b.txt", "a+b", "100%", "%41", "ä/ö ü+%.txt", "日本/語", "plain"}, "\x01",
		"\xff", "%", "%zz") {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key := url.QueryEscape(s)
		if err := decodeListed(&key); err != nil || key != s {
			t.Errorf("%q became %q, %v", s, key, err)
		}
		raw := s
		if err := decodeListed(&raw); err == nil && !strings.ContainsAny(s, "%+") && raw != s {
			t.Errorf("%q is no code, and became %q", s, raw)
		}
	})
}

// TestSmallThings checks odd arguments of small functions.
func TestSmallThings(t *testing.T) {
	parts := split(3 * maxParts * buffer.PartSize)
	if len(parts) > maxParts || parts[0].Length != 4*buffer.PartSize {
		t.Errorf("%d parts of %d", len(parts), parts[0].Length)
	}
	p := &part{Length: 3, Crc: 7}
	for s, want := range map[stored]bool{
		{size: 4}: false, {size: 3, crc: 7, hasCRC: true}: true, {size: 3, crc: 8, hasCRC: true}: false,
		{size: 3, ETag: "900150983cd24fb0d6963f7d28e17f72"}: true, {size: 3, ETag: "x"}: false,
	} {
		if s.Matches(p, []byte("abc")) != want {
			t.Errorf("%+v matches: %v", s, !want)
		}
	}
	for text, want := range map[string]int64{"": -1, "x": -1, "12": 12, "-1": -1, "99999999999999999999": -1} {
		if got := ContentLength(http.Header{"Content-Length": {text}}); got != want {
			t.Errorf("a length of %q is %d", text, got)
		}
	}
	e := &serverError{status: 400, code: "C", text: "t"}
	if e.ErrorMessage() != "t" || e.ErrorFault() != smithy.FaultUnknown || !strings.Contains(e.Error(), "400 C") {
		t.Errorf("an error: %v", e)
	}
	err := refusal(&http.Response{StatusCode: 400,
		Body: io.NopCloser(strings.NewReader(
			"<Error><Code>AuthorizationHeaderMalformed</Code><Region>r-1</Region></Error>"))})
	b := opened(t, s3.Location{Bucket: "b", Region: "r-2"})
	if got := b.Explain(err); !strings.Contains(errors.Message(got), "r-1, not in r-2") {
		t.Errorf("another region: %v", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := wait(ctx, time.Hour); errors.KindOf(err) != errors.Canceled || noCredentials(err) != err {
		t.Errorf("a wait that was given up: %v", err)
	}
}

// TestExplain checks the kinds of refusals, and that a silent server is asked again.
func TestExplain(t *testing.T) {
	b := opened(t, s3.Location{Bucket: "b", Region: "r-2"})
	if !Cut(errSilent) || b.String() != "s3://b/" {
		t.Errorf("a silent server of %s is not tried again", b)
	}
	for status, want := range map[int]errors.Kind{401: errors.Denied, 404: errors.NotFound, 307: errors.Invalid,
		429: errors.Unavailable, 418: errors.Invalid} {
		if got := b.Explain(&serverError{status: status, code: "Odd"}); errors.KindOf(got) != want {
			t.Errorf("%d: %v", status, got)
		}
	}
	for code, want := range map[string]errors.Kind{"InvalidToken": errors.Unauthenticated,
		"QuotaExceeded": errors.Exhausted, "NoSuchKey": errors.NotFound, "SlowDown": errors.Unavailable} {
		if got := b.Explain(&serverError{status: 400, code: code}); errors.KindOf(got) != want {
			t.Errorf("%s: %v", code, got)
		}
	}
	if got := b.Explain(&serverError{status: 301, code: "PermanentRedirect",
		region: "eu-north-1"}); !strings.Contains(errors.RemedyOf(got), "eu-north-1") {
		t.Errorf("another region: %v", got)
	}
}

// opened returns a bucket, which is closed at the end of the test.
func opened(t *testing.T, loc s3.Location) *Bucket {
	t.Helper()
	b, err := Open(t.Context(), loc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}
