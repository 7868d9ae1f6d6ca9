package volsync

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"io/fs"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/fxamacker/cbor/v2"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// snapshot describes a tree independently of the code under test: one line for each path.
func snapshot(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	inodes := map[uint64]string{}
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		if rel == "." {
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		st := info.Sys().(*syscall.Stat_t)
		line := fmt.Sprintf("%v uid %d gid %d", info.Mode(), st.Uid, st.Gid)
		line += fmt.Sprintf(" mtime %d", info.ModTime().UnixNano())
		switch {
		case info.Mode().IsRegular():
			content, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" size %d sha %x", info.Size(), sha256.Sum256(content))
			if st.Nlink > 1 {
				if first, ok := inodes[st.Ino]; ok {
					line += " link to " + first
				} else {
					inodes[st.Ino] = rel
				}
			}
			buf := make([]byte, 4096)
			if n, err := unix.Llistxattr(path, buf); err == nil && n > 0 {
				names := strings.Split(strings.TrimSuffix(string(buf[:n]), "\x00"), "\x00")
				slices.Sort(names)
				for _, name := range names {
					value := make([]byte, 4096)
					n, _ := unix.Lgetxattr(path, name, value)
					line += fmt.Sprintf(" %s=%q", name, value[:n])
				}
			}
		case info.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			line += " -> " + target
		}
		all[rel] = line
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func sameTrees(t *testing.T, a, b string) {
	t.Helper()
	got, want := snapshot(t, b), snapshot(t, a)
	for _, path := range slices.Sorted(maps.Keys(want)) {
		if got[path] != want[path] {
			t.Errorf("%q:\n  have %s\n  want %s", path, got[path], want[path])
		}
	}
	for _, path := range slices.Sorted(maps.Keys(got)) {
		if _, ok := want[path]; !ok {
			t.Errorf("%q should not be there: %s", path, got[path])
		}
	}
}

var someTime = time.Date(2024, 2, 29, 12, 34, 56, 123456789, time.UTC)

// write makes a file, with the directories above it.
func write(t *testing.T, dir, path, content string) {
	t.Helper()
	full := filepath.Join(dir, path)
	if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// richTree has one of everything.
func richTree(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, dir, "readme.md", "# hello\n")
	write(t, dir, "empty", "")
	write(t, dir, "src/main.go", "package main\n")
	write(t, dir, "src/deep/er/file", strings.Repeat("x", 70_000))
	write(t, dir, "a-b", "1")
	write(t, dir, "a/b", "2")
	write(t, dir, "a0", "3")
	write(t, dir, "name with spaces & ünï+code %41 %~41 ?#.txt", "4")
	write(t, dir, "bad\xff\xfeutf8", "5")
	write(t, dir, "new\nline\x01", "6")
	write(t, dir, "e\u0301", "nfd")
	write(t, dir, "\u00e9", "nfc")
	write(t, dir, "CASE", "upper")
	write(t, dir, "case", "lower")
	write(t, dir, ".harvest/own", "a directory of the volume's own")
	write(t, dir, ".harvester", "not reserved")
	write(t, dir, "run.sh", "#!/bin/sh\n")
	write(t, dir, strings.Repeat("long/", 60)+strings.Repeat("n", 200), "300 levels")
	write(t, dir, strings.Repeat("very-long-name-of-a-directory/", 40)+"x", "a key of 1200 bytes")
	big := make([]byte, 20<<20)
	for i := range big {
		big[i] = byte(i * 7 >> 3)
	}
	write(t, dir, "big.bin", string(big))
	must(t, os.Chmod(filepath.Join(dir, "run.sh"), 0o755))
	must(t, os.Mkdir(filepath.Join(dir, "hollow"), 0o700))
	must(t, os.Mkdir(filepath.Join(dir, "hollow/within"), 0o755))
	must(t, os.Symlink("src/main.go", filepath.Join(dir, "link")))
	must(t, os.Symlink("/etc/shadow", filepath.Join(dir, "outside")))
	must(t, os.Symlink("loop", filepath.Join(dir, "loop")))
	must(t, os.Symlink("nowhere/at all", filepath.Join(dir, "src/dangling")))
	must(t, os.Link(filepath.Join(dir, "readme.md"), filepath.Join(dir, "src/readme-too")))
	must(t, os.Link(filepath.Join(dir, "readme.md"), filepath.Join(dir, "zz")))
	must(t, unix.Setxattr(filepath.Join(dir, "empty"), "user.colour", []byte("blue\x00"), 0))
	if os.Geteuid() == 0 {
		must(t, os.Chown(filepath.Join(dir, "a/b"), 1234, 4321))
		must(t, os.Lchown(filepath.Join(dir, "link"), 1234, 4321))
	}
	must(t, os.Chmod(filepath.Join(dir, "case"), 0o4711))
	sparse, err := os.Create(filepath.Join(dir, "sparse"))
	must(t, err)
	_, err = sparse.WriteAt([]byte("in the middle"), 100<<20)
	must(t, err)
	must(t, sparse.Truncate(200<<20))
	must(t, sparse.Close())
	age(t, dir)
	return dir
}

// age gives each entry of a tree a distinct time.
func age(t *testing.T, dir string) {
	t.Helper()
	var paths []string
	must(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		paths = append(paths, path)
		return err
	}))
	for i := len(paths) - 1; i >= 0; i-- {
		at := unix.NsecToTimespec(someTime.Add(time.Duration(i) * time.Hour).UnixNano())
		must(t, unix.UtimesNanoAt(unix.AT_FDCWD, paths[i], []unix.Timespec{at, at}, unix.AT_SYMLINK_NOFOLLOW))
	}
}

func mustSync(t *testing.T, dir string, b *object.Bucket, o Options) Stats {
	t.Helper()
	stats, err := Sync(t.Context(), openTree(t, dir), b, o)
	if err != nil {
		t.Fatalf("Sync %s: %v", o.Direction, err)
	}
	for _, f := range stats.Failures {
		t.Errorf("Sync %s: %q: %s", o.Direction, f.Path, f.Reason)
	}
	return stats
}

// asked counts the requests that reach a server through it, and may answer some of them itself.
type asked struct {
	*httptest.Server
	mu    sync.Mutex
	calls []string                                                 // guarded by mu; method and path
	fault func(n int, w http.ResponseWriter, r *http.Request) bool // guarded by mu; true if it answered
}

// between puts a proxy before the server of loc.
func between(t *testing.T, loc *s3.Location) *asked {
	t.Helper()
	target, err := url.Parse(loc.Endpoint)
	must(t, err)
	a := &asked{}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = &http.Transport{MaxIdleConnsPerHost: 200}
	proxy.ErrorLog = log.New(io.Discard, "", 0)
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a.mu.Lock()
		a.calls = append(a.calls, r.Method+" "+r.URL.EscapedPath())
		n, fault := len(a.calls), a.fault
		a.mu.Unlock()
		r = r.WithContext(context.WithValue(r.Context(), proxyKey{}, proxy))
		if fault == nil || !fault(n, w, r) {
			proxy.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(a.Close)
	loc.Endpoint = a.URL
	return a
}

type proxyKey struct{}

// proxyOf is the way on for a request that reached a proxy.
func proxyOf(r *http.Request) http.Handler { return r.Context().Value(proxyKey{}).(http.Handler) }

// reset discards the recorded requests and installs the faults from now on.
func (a *asked) reset(fault func(n int, w http.ResponseWriter, r *http.Request) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.calls, a.fault = nil, fault
}

func (a *asked) seen() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.calls)
}

// xmlFault answers with an error of S3.
func xmlFault(w http.ResponseWriter, status int, code string) bool {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	fmt.Fprintf(w, "<?xml version=\"1.0\"?><Error><Code>%s</Code><Message>m</Message></Error>", code)
	return true
}

// sdkHTTP is shared: each client of its own would keep an idle connection.
var sdkHTTP = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 16}}

// sdkOf returns the SDK's client for the server of b, for requests that Bucket does not have.
func sdkOf(b *object.Bucket) *sdk.Client {
	loc := b.Location()
	return sdk.New(sdk.Options{HTTPClient: sdkHTTP, Region: loc.Region, BaseEndpoint: &loc.Endpoint,
		UsePathStyle:               loc.PathStyle,
		Credentials:                credentials.NewStaticCredentialsProvider(loc.AccessKeyID, loc.SecretAccessKey, ""),
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired})
}

// entriesFile returns a manifest of another version or with entries that no writer would write.
func entriesFile(t *testing.T, version int, entries ...*tree.Entry) []byte {
	t.Helper()
	var out bytes.Buffer
	z, err := zstd.NewWriter(&out)
	must(t, err)
	enc := cbor.NewEncoder(z)
	must(t, enc.Encode(map[int]any{1: "harvest-manifest", 2: version}))
	for _, e := range entries {
		must(t, enc.Encode(manifest.NewRecord(e, false)))
	}
	must(t, enc.Encode(manifest.Record{Count: int64(len(entries))}))
	must(t, z.Close())
	return out.Bytes()
}

// entriesOf returns a manifest of entries.
func entriesOf(t *testing.T, local bool, entries ...*tree.Entry) []byte {
	var b bytes.Buffer
	w, err := manifest.NewWriter(&b, 1, local)
	for i := 0; err == nil && i < len(entries); i++ {
		err = w.Add(entries[i])
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// begun finds an upload to key that is neither complete nor aborted.
func begun(ctx context.Context, b *object.Bucket, key string) string {
	out, err := sdkOf(b).ListMultipartUploads(ctx,
		&sdk.ListMultipartUploadsInput{Bucket: aws.String(b.Location().Bucket),
			Prefix: &key})
	if err != nil {
		return ""
	}
	for _, u := range out.Uploads {
		if aws.ToString(u.Key) == key {
			return aws.ToString(u.UploadId)
		}
	}
	return ""
}

// awaitObject waits until a bucket has an object.
func awaitObject(t *testing.T, b *object.Bucket, key string) {
	t.Helper()
	testenv.Eventually(t, "the object is stored", func() bool {
		_, err := b.Stat(t.Context(), key)
		return err == nil
	})
}
