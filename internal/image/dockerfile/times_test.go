package dockerfile

import (
	"archive/tar"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
)

// dated has one instruction for each way to create files or directories whose time is not that of another file.
const dated = `FROM tiny AS from
COPY <<EOF /heredoc
text
EOF
FROM tiny
WORKDIR /code/dir
COPY <<EOF /implied/one/heredoc
text
EOF
COPY a /implied/two/a
COPY . /whole
ADD some.tar /unpacked/
COPY --from=from --chown=app /heredoc /implied/three/heredoc
COPY --parents sub/a /parents/
RUN mkdir /ran
`

// made has the names that dated creates, except those with the time of a file in the context.
var made = []string{
	"/code", "/code/dir", "/implied", "/implied/one", "/implied/one/heredoc", "/implied/two", "/implied/three",
	"/implied/three/heredoc", "/whole",
	"/unpacked", "/unpacked/no-entry", "/parents", "/ran",
}

func datedContext(b *bench, at time.Time) string {
	b.t.Helper()
	dir := b.context(map[string]string{"a": "A", "sub/a": "A"})
	f, err := os.Create(path.Join(dir, "some.tar"))
	if err != nil {
		b.t.Fatal(err)
	}
	defer f.Close()
	tw := tar.NewWriter(f)
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "no-entry/file", Mode: 0o644,
		ModTime: at}); err != nil {
		b.t.Fatal(err)
	}
	if err := tw.Close(); err != nil {
		b.t.Fatal(err)
	}
	for _, name := range []string{"a", "sub/a"} {
		if err := os.Chtimes(path.Join(dir, name), at, at); err != nil {
			b.t.Fatal(err)
		}
	}
	return dir
}

func (i *built) mtime(name string) time.Time {
	i.t.Helper()
	f, _, err := i.Lookup(name, false)
	if err != nil || f == nil {
		i.t.Fatalf("%s: %v, %v", name, f, err)
	}
	return f.ModTime
}

// Files that nothing else gives a time have that of the build, and not of 1970.
//
// mission: B2
func TestFilesHaveTheTimeOfTheBuild(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	old := time.Unix(1500000000, 0)
	begin := time.Now().Truncate(time.Second)
	img := b.build(t, dated, image.BuildOptions{Context: datedContext(b, old)})
	for _, name := range made {
		if at := img.mtime(name); at.Before(begin) || at.After(time.Now()) {
			t.Errorf("%s has the time %v; the build began at %v", name, at, begin)
		}
	}
	for _, name := range []string{"/implied/two/a", "/whole/a", "/unpacked/no-entry/file", "/parents/sub/a"} {
		if at := img.mtime(name); !at.Equal(old) {
			t.Errorf("%s has the time %v, want that of the file in the context, %v", name, at, old)
		}
	}
}

// TestSourceDateEpoch checks that these files have the time of SOURCE_DATE_EPOCH, and that a build with another value
// makes them again.
func TestSourceDateEpoch(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	old := time.Unix(1500000000, 0)
	for _, epoch := range []string{"1600000000", "0", "1600000001"} {
		spec := image.Spec{Dockerfile: dated, Args: map[string]string{"SOURCE_DATE_EPOCH": epoch}}
		img := b.spec(t, spec, image.BuildOptions{Context: datedContext(b, old)})
		seconds, err := strconv.ParseInt(epoch, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		want := time.Unix(seconds, 0)
		for _, name := range made[:len(made)-1] { // RUN has the clock
			if at := img.mtime(name); !at.Equal(want) {
				t.Errorf("%s has the time %v, want %v", name, at, want)
			}
		}
		if at := img.mtime("/whole/a"); !at.Equal(old) {
			t.Errorf("a file of the context has the time %v", at)
		}
	}
	for _, bad := range []string{"today", "-1", "999999999999999"} {
		_, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\n", Args: map[string]string{"SOURCE_DATE_EPOCH": bad}},
			image.BuildOptions{})
		if errors.KindOf(err) != errors.Invalid || errors.RemedyOf(err) == "" {
			t.Errorf("%s: got %v", bad, err)
		}
	}
}

// TestAddOfURLHasItsTime checks that ADD of a URL sets the file's Last-Modified, as with BuildKit, and the time of the
// build if the server sends none.
func TestAddOfURLHasItsTime(t *testing.T) {
	t.Parallel()
	curl, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("no curl: install the package curl")
	}
	b := newBench(t, Options{})
	b.lib.add("base", image.Config{}, func(tw *tar.Writer) { tiny(t)(tw); program(t, tw, curl) })
	at := time.Date(2020, 5, 17, 10, 20, 30, 0, time.UTC)
	mux := http.NewServeMux()
	mux.HandleFunc("/dated", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Last-Modified", at.Format(http.TimeFormat))
		_, _ = w.Write([]byte("one\ntwo\n"))
	})
	mux.HandleFunc("/moved", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Last-Modified", at.AddDate(1, 0, 0).Format(http.TimeFormat))
		http.Redirect(w, r, "/dated", http.StatusFound)
	})
	mux.HandleFunc("/undated", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("three")) })
	mux.HandleFunc("/empty", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("/strange", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Last-Modified", "Thu, 01 Jan 1970 00:00:00 GMT")
		_, _ = w.Write([]byte("four\n"))
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	begin := time.Now().Truncate(time.Second)
	img := b.build(t,
		strings.ReplaceAll("FROM tiny\nADD URL/dated /\nADD URL/moved /\nADD URL/undated /\nADD URL/empty /\nADD URL/strange /\n", "URL", s.URL), image.BuildOptions{})
	img.want(map[string]string{"/dated": "one\ntwo\n|600 0 0", "/moved": "one\ntwo\n", "/undated": "three",
		"/empty": "", "/strange": "four\n"})
	for _, name := range []string{"/dated", "/moved"} {
		if got := img.mtime(name); !got.Equal(at) {
			t.Errorf("%s has the time %v, want %v", name, got, at)
		}
	}
	for _, name := range []string{"/undated", "/empty", "/strange"} {
		if got := img.mtime(name); got.Before(begin) {
			t.Errorf("%s has the time %v; the build began at %v", name, got, begin)
		}
	}
}
