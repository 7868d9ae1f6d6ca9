package volsync

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
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
	r := &run{b: openBucket(t, loc), t: openTree(t, t.TempDir()), sem: semaphore.NewWeighted(buffer.MaxInFlight),
		room: buffer.MaxInFlight}
	defer r.buffers.Close()
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
		if n, err := fmt.Sscanf(text, "bytes=%d-%d", &from, &to); n != 2 || err != nil || to-from+1 != buffer.PartSize {
			t.Errorf("asked for %s", text)
		}
	}
	if len(ranges) == 0 || r.buffers.Held() > buffer.MaxInFlight {
		t.Errorf("%d parts, with %d bytes of memory", len(ranges), r.buffers.Held())
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
	good := s3.Location{Bucket: "b", Endpoint: "http://127.0.0.1:9"}
	for name, change := range map[string]func(*s3.Location){
		"no bucket":      func(l *s3.Location) { l.Bucket = "" },
		"bucket":         func(l *s3.Location) { l.Bucket = "a/b" },
		"prefix":         func(l *s3.Location) { l.Prefix = "a/../b" },
		"long prefix":    func(l *s3.Location) { l.Prefix = strings.Repeat("a/", 300) },
		"endpoint":       func(l *s3.Location) { l.Endpoint = "ftp://x" },
		"user":           func(l *s3.Location) { l.Endpoint = "http://user:pw@x" },
		"half a key":     func(l *s3.Location) { l.AccessKeyID = "x" },
		"no certificate": func(l *s3.Location) { l.CA = []byte("x") },
		"proxy":          func(l *s3.Location) { l.Proxy = "nothing" },
	} {
		l := good
		change(&l)
		if _, err := object.Open(t.Context(), l); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, o := range []Options{{}, {Direction: "sideways"}, {Direction: plan.Up, Conflicts: "no"},
		{Direction: plan.Up, Only: "../x"}} {
		if err := o.check(); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%+v: %v", o, err)
		}
	}
}
