package devcontainer_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/fstest"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/remote"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
	"github.com/RelevanceAI/harvest/internal/image"
)

// good are the files of a feature.
var good = map[string]string{devcontainer.FeatureFile: `{"id": "good", "version": "1.0.0"}`, "install.sh": "true\n"}

func fetch(t *testing.T, f *devcontainer.Fetcher, reference string) (*devcontainer.Feature, error) {
	t.Helper()
	r, err := devcontainer.ParseReference(reference)
	if err != nil {
		t.Fatal(err)
	}
	f.Dir = t.TempDir()
	if f.Transport == nil {
		f.Transport = http.DefaultTransport
	}
	feature, err := f.Feature(t.Context(), r)
	if left, _ := os.ReadDir(f.Dir); err != nil && len(left) > 0 {
		t.Errorf("%s: files of a failed feature are left", reference)
	}
	return feature, err
}

func TestFetchFromRegistry(t *testing.T) {
	t.Parallel()
	var manifests atomic.Int32
	inner := registry.New(registry.Logger(quiet))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/manifests/") {
			manifests.Add(1)
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://") + "/acme/features/good"
	push(t, at, "", archiveOf(t, good), "1", "latest")
	f := &devcontainer.Fetcher{}
	feature, err := fetch(t, f, at+":1")
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, filepath.Join(f.Dir, feature.Dir, "install.sh"))
	if feature.ID != "good" || feature.Reference.Tag != "1" || !strings.HasPrefix(feature.Digest, "sha256:") ||
		string(text) != "true\n" {
		t.Errorf("%+v, %q", feature, text)
	}
	before := manifests.Load()
	again, err := f.Feature(t.Context(), feature.Reference)
	if err != nil || again.Dir != feature.Dir || manifests.Load() != before {
		t.Errorf("%+v, %v: fetched twice", again, err)
	}
	// The lock file's digest counts, even if the tag is another object now.
	push(t, at, "", archiveOf(t, map[string]string{"x": ""}), "1")
	locked, err := fetch(t, &devcontainer.Fetcher{Lock: devcontainer.Lock{at + ":1": feature.Digest}}, at+":1")
	if err != nil || locked.Digest != feature.Digest {
		t.Errorf("%+v, %v", locked, err)
	}
	byDigest, err := fetch(t, &devcontainer.Fetcher{}, at+"@"+feature.Digest)
	if err != nil || byDigest.Digest != feature.Digest {
		t.Errorf("%+v, %v", byDigest, err)
	}
	_, err = fetch(t, &devcontainer.Fetcher{}, at+":1")
	wantError(t, err, errors.Invalid, "has no file devcontainer-feature.json")
	_, err = fetch(t, &devcontainer.Fetcher{}, at+":2")
	wantError(t, err, errors.NotFound, "does not exist")
}

func TestRegistryErrors(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(quiet)))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://") + "/acme/features/"
	ref, err := name.NewTag(at + "image:1")
	if err == nil {
		err = remote.Write(ref, empty.Image)
	}
	if err != nil {
		t.Fatal(err)
	}
	_, err = fetch(t, &devcontainer.Fetcher{}, at+"image:1")
	wantError(t, err, errors.Invalid, "not a feature")
	push(t, at+"text", "", []byte(strings.Repeat("not an archive ", 100)), "1")
	_, err = fetch(t, &devcontainer.Fetcher{}, at+"text:1")
	wantError(t, err, errors.Invalid, "damaged or unsafe")
	push(t, at+"zip", "", []byte("\x1f\x8bnot compressed"), "1")
	_, err = fetch(t, &devcontainer.Fetcher{}, at+"zip:1")
	wantError(t, err, errors.Invalid, "damaged or unsafe")
	push(t, at+"empty", "", nil, "1")
	_, err = fetch(t, &devcontainer.Fetcher{}, at+"empty:1")
	wantError(t, err, errors.Invalid, "damaged or unsafe")
	push(t, at+"good", "", archiveOf(t, good), "1")
	_, err = fetch(t, &devcontainer.Fetcher{MaxBytes: 1000}, at+"good:1")
	wantError(t, err, errors.Exhausted, "more than 1000 bytes")
	_, err = fetch(t, &devcontainer.Fetcher{MaxFiles: 1}, at+"good:1")
	wantError(t, err, errors.Exhausted, "or 1 files")
	invalid := map[string]string{devcontainer.FeatureFile: `{"id": 1}`, "install.sh": ""}
	push(t, at+"invalid", "", archiveOf(t, invalid), "1")
	_, err = fetch(t, &devcontainer.Fetcher{}, at+"invalid:1")
	wantError(t, err, errors.Invalid, at+`invalid:1/devcontainer-feature.json: line 1, column 8: "id" must be a string`)
	server.Close()
	_, err = fetch(t, &devcontainer.Fetcher{}, at+"good:1")
	wantError(t, err, errors.Unavailable, "cannot be fetched")
}

// Archives of others cannot write outside their directory, nor have descriptions outside.
func TestUnsafeArchives(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(registry.New(registry.Logger(quiet)))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://") + "/acme/features/"
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(`{"id": "secret"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for what, headers := range map[string][]tar.Header{
		"climbs": {{Name: "../../escaped", Mode: 0o644}},
		"follows": {{Name: "link", Linkname: filepath.Dir(secret), Typeflag: tar.TypeSymlink}, {Name: "link/new",
			Mode: 0o644}},
		"points": {{Name: devcontainer.FeatureFile, Linkname: secret, Typeflag: tar.TypeSymlink},
			{Name: "install.sh"}},
		"device":   {{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}},
		"hardlink": {{Name: "passwd", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}},
	} {
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		for _, h := range headers {
			if err := w.WriteHeader(&h); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		push(t, at+what, "", b.Bytes(), "1")
		_, err := fetch(t, &devcontainer.Fetcher{}, at+what+":1")
		wantError(t, err, errors.Invalid, "feature "+at+what)
	}
	if _, err := os.Stat(filepath.Join(filepath.Dir(secret), "new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an archive wrote outside: %v", err)
	}
}

func TestCredentials(t *testing.T) {
	t.Parallel()
	inner := registry.New(registry.Logger(quiet))
	var status atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if _, password, _ := r.BasicAuth(); password != "good" {
			w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		if code := int(status.Load()); code != 0 && strings.Contains(r.URL.Path, "/manifests/") {
			w.WriteHeader(code)
			return
		}
		inner.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	at := strings.TrimPrefix(server.URL, "http://") + "/acme/features/good:1"
	with := func(c image.Credential, err error) *devcontainer.Fetcher {
		return &devcontainer.Fetcher{Credentials: func(_ context.Context, host string) (image.Credential, error) {
			if "http://"+host != server.URL {
				t.Errorf("asked for the credentials of %s", host)
			}
			return c, err
		}}
	}
	_, err := fetch(t, with(image.Credential{}, nil), at)
	wantError(t, err, errors.Unauthenticated, "needs credentials")
	_, err = fetch(t, with(image.Credential{Anonymous: true}, nil), at)
	wantError(t, err, errors.Unauthenticated, "needs credentials")
	_, err = fetch(t, with(image.Credential{}, errors.Newf(errors.NotFound, "no secret")), at)
	if errors.KindOf(err) != errors.NotFound || errors.Message(err) != "no secret" {
		t.Errorf("%v", err)
	}
	for code, kind := range map[int]errors.Kind{http.StatusNotFound: errors.NotFound,
		http.StatusForbidden: errors.Denied,
		http.StatusTeapot:    errors.Unavailable, http.StatusTooManyRequests: errors.Unavailable} {
		status.Store(int32(code))
		_, err = fetch(t, with(image.Credential{User: "u", Password: "good"}, nil), at)
		wantError(t, err, kind, "feature "+at)
	}
}

func TestFetchStopsWithContext(t *testing.T) {
	t.Parallel()
	r, err := devcontainer.ParseReference("localhost:1/a/b:1")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	f := &devcontainer.Fetcher{Dir: t.TempDir(), Transport: http.DefaultTransport}
	if _, err := f.Feature(ctx, r); errors.KindOf(err) != errors.Canceled {
		t.Errorf("%v", err)
	}
}

func TestFetchArchive(t *testing.T) {
	t.Parallel()
	archive := archiveOf(t, good)
	var packed bytes.Buffer
	w := gzip.NewWriter(&packed)
	if _, err := w.Write(archive); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/plain.tgz":
			_, _ = w.Write(archive)
		case "/packed.tgz":
			_, _ = w.Write(packed.Bytes())
		case "/cut.tgz":
			_, _ = w.Write(packed.Bytes()[:packed.Len()-20])
		case "/changed.tgz":
			changed := bytes.Clone(packed.Bytes())
			changed[len(changed)-6] ^= 1
			_, _ = w.Write(changed)
		case "/aside.tgz":
			http.Redirect(w, r, "http://"+r.Host+"/plain.tgz", http.StatusFound)
		default:
			http.NotFound(w, r)
		}
	}))
	t.Cleanup(server.Close)
	fetcher := func() *devcontainer.Fetcher { return &devcontainer.Fetcher{Transport: server.Client().Transport} }
	for _, file := range []string{"plain", "packed"} {
		f := fetcher()
		feature, err := fetch(t, f, server.URL+"/"+file+".tgz")
		if err != nil || feature.ID != "good" || len(read(t, filepath.Join(f.Dir, feature.Dir, "install.sh"))) != 5 {
			t.Errorf("%+v, %v", feature, err)
		}
	}
	sum := sha256.Sum256(packed.Bytes())
	f := fetcher()
	f.Lock = devcontainer.Lock{server.URL + "/packed.tgz": "sha256:" + hex.EncodeToString(sum[:]),
		server.URL + "/plain.tgz": "sha256:" + hex.EncodeToString(sum[:])}
	if _, err := fetch(t, f, server.URL+"/packed.tgz"); err != nil {
		t.Error(err)
	}
	_, err := fetch(t, f, server.URL+"/plain.tgz")
	wantError(t, err, errors.Invalid, "not "+fmt.Sprintf("sha256:%x", sum)+" of the lock file")
	for file, kind := range map[string]errors.Kind{"none": errors.NotFound, "cut": errors.Invalid,
		"changed": errors.Invalid,
		"aside":   errors.Denied} {
		_, err := fetch(t, fetcher(), server.URL+"/"+file+".tgz")
		if errors.KindOf(err) != kind || !strings.Contains(errors.Message(err), "feature "+server.URL) {
			t.Errorf("%s: %v (%s)", file, err, errors.KindOf(err))
		}
	}
	// Members of the server do not reach its own network.
	guarded := fetcher()
	guarded.Transport = netguard.Rules{}.NewTransport(http.DefaultTransport.(*http.Transport).Clone())
	_, err = fetch(t, guarded, server.URL+"/plain.tgz")
	if errors.KindOf(err) != errors.Denied {
		t.Errorf("%v", err)
	}
}

func TestLocalFeatures(t *testing.T) {
	t.Parallel()
	repository := fstest.MapFS{
		".devcontainer/good/devcontainer-feature.json": {Data: []byte(good[devcontainer.FeatureFile])},
		".devcontainer/good/install.sh":                {Data: []byte("true\n")},
		".devcontainer/good/lib/a.sh":                  {Data: []byte("a")},
		".devcontainer/bare/devcontainer-feature.json": {Data: []byte(`{"id": "bare"}`)},
		".devcontainer/link/install.sh":                {Mode: fs.ModeSymlink, Data: []byte("/etc/passwd")},
		"elsewhere/devcontainer-feature.json":          {Data: []byte(`{"id": "elsewhere"}`)},
	}
	fetcher := func(config string) *devcontainer.Fetcher {
		return &devcontainer.Fetcher{Repository: repository, Config: config}
	}
	for config, reference := range map[string]string{file: "./good", ".devcontainer/api/devcontainer.json": "../good",
		".devcontainer.json": "./.devcontainer/good"} {
		f := fetcher(config)
		feature, err := fetch(t, f, reference)
		if err != nil || feature.ID != "good" || feature.Digest != "" ||
			string(read(t, filepath.Join(f.Dir, feature.Dir, "lib", "a.sh"))) != "a" {
			t.Errorf("%s: %+v, %v", config, feature, err)
		}
	}
	for reference, c := range map[string]struct {
		kind errors.Kind
		says string
	}{
		"./none": {errors.NotFound, "no directory .devcontainer/none"}, "../elsewhere": {errors.Invalid,
			"not in the directory"},
		"../../etc": {errors.Invalid, "not in the directory"}, "./bare": {errors.Invalid, "no file install.sh"},
		"./link": {errors.Invalid, "not a regular file"},
	} {
		_, err := fetch(t, fetcher(file), reference)
		wantError(t, err, c.kind, c.says)
	}
	outside := t.TempDir()
	testenv.WriteFile(t, filepath.Join(outside, devcontainer.FeatureFile), []byte(good[devcontainer.FeatureFile]))
	testenv.WriteFile(t, filepath.Join(outside, "install.sh"), nil)
	inside := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(inside, ".devcontainer"), 0o755),
		os.Symlink(outside, filepath.Join(inside, ".devcontainer", "link"))); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(inside)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	_, err = fetch(t, &devcontainer.Fetcher{Repository: root.FS(), Config: file}, "./link")
	wantError(t, err, errors.NotFound, "no directory .devcontainer/link")
	_, err = fetch(t, &devcontainer.Fetcher{Repository: root.FS(), Config: file}, "./link/.")
	wantError(t, err, errors.NotFound, "no directory .devcontainer/link")
	small := fetcher(file)
	small.MaxBytes = 20
	_, err = fetch(t, small, "./good")
	wantError(t, err, errors.Exhausted, "more than 20 bytes")
	few := fetcher(file)
	few.MaxFiles = 2
	_, err = fetch(t, few, "./good")
	wantError(t, err, errors.Exhausted, "2 files")
	_, err = fetch(t, &devcontainer.Fetcher{}, "./good")
	wantError(t, err, errors.Invalid, "not in the directory")
}
