package oci_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/oci"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

var _ image.Source = (*oci.Source)(nil)

// hub is a registry in this process, whose answers a test may change.
type hub struct {
	host     string
	real     http.Handler
	requests atomic.Int64

	mu    sync.Mutex
	fault func(w http.ResponseWriter, r *http.Request) bool // guarded by mu; true if it has answered
}

func newHub(t testing.TB) *hub {
	t.Helper()
	reg := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	h := &hub{real: reg}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.requests.Add(1)
		h.mu.Lock()
		fault := h.fault
		h.mu.Unlock()
		if fault == nil || !fault(w, r) {
			reg.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	h.host = strings.TrimPrefix(server.URL, "http://")
	return h
}

func (h *hub) change(fault func(w http.ResponseWriter, r *http.Request) bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fault = fault
}

// blobs makes a fault of requests for blobs only.
func blobsOnly(fault func(w http.ResponseWriter, r *http.Request) bool) func(w http.ResponseWriter,
	r *http.Request) bool {
	return func(w http.ResponseWriter, r *http.Request) bool {
		return strings.Contains(r.URL.Path, "/blobs/") && fault(w, r)
	}
}

func (h *hub) push(t testing.TB, tag string, img v1.Image) string {
	t.Helper()
	ref, err := name.ParseReference(h.host + "/" + tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, img); err != nil {
		t.Fatal(err)
	}
	return ref.Name()
}

func (h *hub) pushIndex(t testing.TB, tag string, index v1.ImageIndex) string {
	t.Helper()
	ref, err := name.ParseReference(h.host + "/" + tag)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.WriteIndex(ref, index); err != nil {
		t.Fatal(err)
	}
	return ref.Name()
}

var epoch = time.Unix(1_600_000_000, 0)

// tarOf makes a layer of "name" → content. A name that ends with "/" is a directory, content that begins with "->" a
// symbolic link.
func tarOf(t testing.TB, pairs ...string) []byte {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for i := 0; i < len(pairs); i += 2 {
		hdr := &tar.Header{Name: pairs[i], Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(pairs[i+1])),
			ModTime: epoch}
		content := pairs[i+1]
		if strings.HasSuffix(hdr.Name, "/") {
			hdr.Typeflag, hdr.Mode = tar.TypeDir, 0o755
		}
		if target, ok := strings.CutPrefix(content, "->"); ok {
			hdr.Typeflag, hdr.Linkname, hdr.Size, content = tar.TypeSymlink, target, 0, ""
		}
		if err := tw.WriteHeader(hdr); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func gzipped(t testing.TB, data []byte) []byte {
	t.Helper()
	var buf bytes.Buffer
	z, err := gzip.NewWriterLevel(&buf, gzip.BestSpeed)
	if err == nil {
		_, err = z.Write(data)
	}
	if err = errors.Join(err, z.Close()); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func zstded(t testing.TB, data []byte) []byte {
	t.Helper()
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	return z.EncodeAll(data, nil)
}

// part is a layer with the diff id of another content than its own bytes.
type part struct {
	v1.Layer
	diffID v1.Hash
}

func (p part) DiffID() (v1.Hash, error) { return p.diffID, nil }

func layerOf(t testing.TB, stored, plain []byte, media types.MediaType) v1.Layer {
	t.Helper()
	diffID, _, err := v1.SHA256(bytes.NewReader(plain))
	if err != nil {
		t.Fatal(err)
	}
	return part{static.NewLayer(stored, media), diffID}
}

// imageOf makes an image for this machine of layers as tar streams, compressed with gzip.
func imageOf(t testing.TB, config v1.Config, tars ...[]byte) v1.Image {
	t.Helper()
	var layers []v1.Layer
	for _, data := range tars {
		layers = append(layers, layerOf(t, gzipped(t, data), data, types.OCILayer))
	}
	return imageOfLayers(t, config, runtime.GOARCH, layers...)
}

func imageOfLayers(t testing.TB, config v1.Config, arch string, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.ConfigFile(mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1),
		types.OCIConfigJSON),
		&v1.ConfigFile{OS: "linux", Architecture: arch, Config: config, RootFS: v1.RootFS{Type: "layers"}})
	if err != nil {
		t.Fatal(err)
	}
	if img, err = mutate.AppendLayers(img, layers...); err != nil {
		t.Fatal(err)
	}
	return img
}

// open returns a source that is in a hurry.
func open(t testing.TB, opts oci.Options) *oci.Source {
	t.Helper()
	if opts.Dir == "" {
		opts.Dir = filepath.Join(t.TempDir(), "blobs")
	}
	if opts.Transport == nil { // the registries of tests are on this machine
		local := oci.NewTransport(netguard.Rules{Loopback: true})
		opts.Transport = func(string) http.RoundTripper { return local }
	}
	s, err := oci.Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	s.Hurry(time.Millisecond, time.Minute)
	return s
}

// result is the result of a pull.
type result struct {
	image.Contents
	spec  image.Spec
	print string
	files map[string]string
	root  *os.File
	told  []image.Progress
}

func pull(t testing.TB, s *oci.Source, ref string, opts image.BuildOptions) (result, error) {
	t.Helper()
	return pullContext(t, t.Context(), s, image.Spec{Base: ref}, opts)
}

func pullContext(t testing.TB, ctx context.Context, s *oci.Source, spec image.Spec,
	opts image.BuildOptions) (got result, err error) {
	t.Helper()
	var print []byte
	if got.spec, print, err = s.Resolve(ctx, spec, opts); err != nil {
		return got, err
	}
	got.print = string(print)
	if got.root, err = os.Create(filepath.Join(t.TempDir(), "root.erofs")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { got.root.Close() })
	progress := opts.Progress
	opts.Log = func(string) {}
	opts.Progress = func(p image.Progress) {
		got.told = append(got.told, p)
		if progress != nil {
			progress(p)
		}
	}
	if got.Contents, err = s.Build(ctx, got.spec, opts, image.Output{Root: got.root, Temp: t.TempDir()}); err != nil {
		return got, err
	}
	got.files = filesOf(t, got.root)
	return got, nil
}

func filesOf(t testing.TB, root *os.File) map[string]string {
	t.Helper()
	r, err := rootfs.OpenReader(root)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	err = r.Walk(".", func(hdr *tar.Header, content io.Reader) error {
		if content != nil {
			data, err := io.ReadAll(content)
			files[hdr.Name] = string(data)
			return err
		}
		files[hdr.Name] = hdr.Linkname
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func expect(t testing.TB, what string, err error, want errors.Kind) {
	t.Helper()
	if errors.KindOf(err) != want {
		t.Errorf("%s: got %v, want %q", what, err, want)
	}
	if want != "" && want != errors.Canceled && errors.RemedyOf(err) == "" {
		t.Errorf("%s: no remedy in %v", what, err)
	}
}

// mission: B2
func TestPull(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	config := v1.Config{
		Env: []string{"PATH=/bin", "A=b=c", "bad"}, User: "1000:1000", WorkingDir: "/w", Entrypoint: []string{"/e"},
		Cmd: []string{"c"}, Shell: []string{"/bin/bash", "-c"},
		ExposedPorts: map[string]struct{}{"80/tcp": {}, "53/udp": {}}, Volumes: map[string]struct{}{"/data": {}},
		Labels: map[string]string{"l": "m"}, StopSignal: "SIGINT",
		Healthcheck: &v1.HealthConfig{Test: []string{"CMD", "true"}, Interval: time.Second},
	}
	one := tarOf(t, "etc/os-release", "ID=testian\nVERSION_ID=\"7\"\n", "d/a", "1", "d/b", "2")
	two, three := tarOf(t, "d/.wh.a", "", "d/c", "3"), tarOf(t, "link", "->d/c")
	img := imageOfLayers(t, config, runtime.GOARCH, layerOf(t, gzipped(t, one), one, types.OCILayer),
		layerOf(t, zstded(t, two), two, types.OCILayerZStd), layerOf(t, three, three, types.OCIUncompressedLayer))
	ref := h.push(t, "team/app:1", img)
	s := open(t, oci.Options{})
	got, err := pull(t, s, ref, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"./": "", "d/": "", "d/b": "2", "d/c": "3", "etc/": "",
		"etc/os-release": "ID=testian\nVERSION_ID=\"7\"\n", "link": "d/c"}
	if diff := cmp.Diff(want, got.files); diff != "" {
		t.Error(diff)
	}
	wantConfig := image.Config{
		Env: map[string]string{"PATH": "/bin", "A": "b=c"}, User: "1000:1000", Dir: "/w", Entrypoint: []string{"/e"},
		Cmd: []string{"c"}, Shell: []string{"/bin/bash", "-c"},
		Ports: []string{"53/udp", "80/tcp"}, Volumes: []string{"/data"}, Labels: map[string]string{"l": "m"},
		StopSignal:  "SIGINT",
		Healthcheck: []byte(`{"Test":["CMD","true"],"Interval":1000000000}`),
	}
	if diff := cmp.Diff(wantConfig, got.Config); diff != "" {
		t.Error(diff)
	}
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if got.spec.Base != h.host+"/team/app@"+digest.String() || got.spec.Platform != "linux/"+runtime.GOARCH {
		t.Errorf("got the spec %+v", got.spec)
	}
	if diff := cmp.Diff([]image.Part{{Name: "testian", Version: "7"},
		{Name: h.host + "/team/app", Version: digest.String()}}, got.Parts); diff != "" {
		t.Error(diff)
	}
	last := got.told[len(got.told)-1]
	if last.Step != "unpack" || last.Done < 0.9 || !strings.Contains(last.Message, "B of ") {
		t.Errorf("the last progress is %+v", last)
	}

	before := h.requests.Load()
	again, err := pull(t, s, h.host+"/team/app@"+digest.String(), image.BuildOptions{})
	if err != nil || h.requests.Load() != before {
		t.Errorf("%d requests for an image by digest that is there already, %v", h.requests.Load()-before, err)
	}
	if a, b := read(t, got.root), read(t, again.root); !bytes.Equal(a, b) {
		t.Error("the same manifest became two images")
	}

	second := h.push(t, "team/other", imageOf(t, v1.Config{}, one, tarOf(t, "e", "4")))
	var blobs atomic.Int64
	h.change(blobsOnly(func(http.ResponseWriter, *http.Request) bool { blobs.Add(1); return false }))
	if _, err := pull(t, s, second, image.BuildOptions{}); err != nil || blobs.Load() != 2 {
		t.Errorf("%d blobs were fetched, want the configuration and the layer that is not shared; %v",
			blobs.Load(), err)
	}
}

func read(t testing.TB, f *os.File) []byte {
	t.Helper()
	data, err := os.ReadFile(f.Name())
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// mission: B2
func TestPlatforms(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	other := "s390x"
	mine, theirs := imageOf(t, v1.Config{}, tarOf(t, "mine", "")),
		imageOfLayers(t, v1.Config{}, other, static.NewLayer(tarOf(t, "theirs", ""), types.OCIUncompressedLayer))
	add := func(index v1.ImageIndex, img v1.Image, os, arch string) v1.ImageIndex {
		return mutate.AppendManifests(index,
			mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: os,
				Architecture: arch}}})
	}
	both := h.pushIndex(t, "both", add(add(add(empty.Index, theirs, "unknown", "unknown"), theirs, "linux", other),
		mine, "linux", runtime.GOARCH))
	only := h.pushIndex(t, "only", add(empty.Index, theirs, "linux", other))
	lone := h.push(t, "lone", theirs)
	s := open(t, oci.Options{})
	if got, err := pull(t, s, both, image.BuildOptions{}); err != nil || len(got.files) != 2 {
		t.Errorf("got %v, %v", got.files, err)
	}
	for _, ref := range []string{only, lone} {
		_, err := pull(t, s, ref, image.BuildOptions{})
		expect(t, ref, err, errors.Unsupported)
		if !strings.Contains(errors.Message(err), other) {
			t.Errorf("it does not say what there is: %s", errors.Message(err))
		}
	}
	_, err := pullContext(t, t.Context(), s, image.Spec{Base: both, Platform: "linux/" + other}, image.BuildOptions{})
	expect(t, "another platform", err, errors.Unsupported)
	if _, err := pullContext(t, t.Context(), s, image.Spec{Base: both, Platform: "linux/" + runtime.GOARCH},
		image.BuildOptions{}); err != nil {
		t.Error(err)
	}
}

func TestWhatIsNoImage(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	s := open(t, oci.Options{})
	for _, ref := range []string{"UPPER", "a b", "", "x:", h.host + "/x@sha256:12"} {
		_, err := pull(t, s, ref, image.BuildOptions{})
		expect(t, ref, err, errors.Invalid)
	}
	_, err := pull(t, s, h.host+"/x@sha512:"+strings.Repeat("0", 128), image.BuildOptions{})
	if kind := errors.KindOf(err); kind != errors.Unsupported && kind != errors.Invalid {
		t.Errorf("another digest: %v", err)
	}
	chart := mutate.ConfigMediaType(imageOf(t, v1.Config{}, tarOf(t, "x", "")),
		"application/vnd.cncf.helm.config.v1+json")
	_, err = pull(t, s, h.push(t, "chart", chart), image.BuildOptions{})
	expect(t, "a chart", err, errors.Unsupported)
	for what, text := range map[string]string{"schema 1": `{"schemaVersion":1}`, "no JSON": `<html>`,
		"a loop": `{"schemaVersion":2,"manifests":[]}`, "much": strings.Repeat(" ", 5<<20)} {
		h.change(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			io.WriteString(w, text)
			return true
		})
		_, err := pull(t, s, h.host+"/odd", image.BuildOptions{})
		if kind := errors.KindOf(err); kind != errors.Unsupported && kind != errors.Invalid {
			t.Errorf("%s: got %v", what, err)
		}
	}
}

// mission: B2
func TestRegistryFaults(t *testing.T) {
	t.Parallel()
	big := tarOf(t, "big", strings.Repeat("0123456789abcdef", 40_000))
	status := func(code int, header ...string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, _ *http.Request) bool {
			for i := 0; i < len(header); i += 2 {
				w.Header().Set(header[i], header[i+1])
			}
			w.WriteHeader(code)
			fmt.Fprint(w, "no")
			return true
		}
	}
	first := func(n int64, fault func(http.ResponseWriter, *http.Request) bool) func(http.ResponseWriter,
		*http.Request) bool {
		var count atomic.Int64
		return func(w http.ResponseWriter, r *http.Request) bool { return count.Add(1) <= n && fault(w, r) }
	}
	cut := func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", "1000000")
		w.Write([]byte("half a layer"))
		panic(http.ErrAbortHandler)
	}
	var hubs sync.Map // by host
	swap := func(w http.ResponseWriter, r *http.Request) bool {
		if r.URL.Path == "/v2/" {
			return false
		}
		h, _ := hubs.Load(r.Host)
		rec := httptest.NewRecorder()
		h.(*hub).real.ServeHTTP(rec, r)
		body := rec.Body.Bytes()
		for i, c := range body {
			if c == 'e' {
				body[i] = 'f'
			}
		}
		w.Write(body)
		return true
	}
	for what, test := range map[string]struct {
		fault func(http.ResponseWriter, *http.Request) bool
		want  errors.Kind
		says  string
	}{
		"401": {status(401), errors.Unauthenticated, "credentials"},
		"403": {status(403), errors.Denied, ""},
		"404": {func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path != "/v2/" &&
				status(404)(w, r)
		}, errors.NotFound, "has no image"},
		"429 for ever": {status(429), errors.Unavailable, "too many requests"},
		"429 and a long time": {func(w http.ResponseWriter, r *http.Request) bool {
			return r.URL.Path != "/v2/" && status(429, "Retry-After", "86400")(w, r)
		}, errors.Unavailable, "too many requests"},
		"429, then not":              {first(3, status(429, "Retry-After", "0")), "", ""},
		"429 until a date, then not": {first(2, status(429, "Retry-After", "Wed, 21 Oct 2015 07:28:00 GMT")), "", ""},
		"500 for ever":               {status(500), errors.Unavailable, "failed (status 500)"},
		"503, then not":              {first(4, status(503)), "", ""},
		"a teapot":                   {status(418), errors.Unavailable, "418"},
		"500 for blobs":              {blobsOnly(status(500)), errors.Unavailable, ""},
		"cut again and again": {blobsOnly(func(w http.ResponseWriter,
			r *http.Request) bool {
			panic(http.ErrAbortHandler)
		}), errors.Unavailable, ""},
		"half a layer, of another one": {blobsOnly(first(1, cut)), "", ""},
		"the wrong content": {blobsOnly(func(w http.ResponseWriter,
			r *http.Request) bool {
			return status(200)(w, r)
		}), errors.Unavailable, "only a part"},
		"another content": {blobsOnly(swap), errors.Unavailable, "another content"},
		"more than announced": {blobsOnly(func(w http.ResponseWriter,
			r *http.Request) bool {
			w.Write(make([]byte, 1<<20))
			return true
		}), errors.Unavailable, "more bytes"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			h := newHub(t)
			hubs.Store(h.host, h)
			ref := h.push(t, "app", imageOf(t, v1.Config{}, big))
			s := open(t, oci.Options{})
			h.change(test.fault)
			_, err := pull(t, s, ref, image.BuildOptions{})
			expect(t, what, err, test.want)
			if err != nil && !strings.Contains(errors.Message(err), test.says) {
				t.Errorf("it says %q", errors.Message(err))
			}
			h.change(nil)
			if got, err := pull(t, s, ref, image.BuildOptions{}); err != nil || len(got.files) != 2 {
				t.Errorf("after the fault: %v", err)
			}
		})
	}
}

func TestAnotherManifest(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	img := imageOf(t, v1.Config{}, tarOf(t, "a", "1"))
	h.push(t, "app", img)
	digest, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	h.change(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/manifests/") {
			return false
		}
		io.WriteString(w, `{"schemaVersion":2}`)
		return true
	})
	_, err = pull(t, open(t, oci.Options{}), h.host+"/app@"+digest.String(), image.BuildOptions{})
	expect(t, "does not match the digest", err, errors.Unavailable)
}

// TestResume checks that an interrupted layer download resumes where it ended, also in a later pull.
func TestResume(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	noise := make([]byte, 3<<20)
	for i := range noise {
		noise[i] = byte(i * i >> 7)
	}
	data := tarOf(t, "big", string(noise))
	img := imageOfLayers(t, v1.Config{}, runtime.GOARCH, layerOf(t, data, data, types.OCIUncompressedLayer))
	ref := h.push(t, "app", img)
	s := open(t, oci.Options{})
	var asked []string
	var mu sync.Mutex
	serve := func(limit int, ranges bool) func(w http.ResponseWriter, r *http.Request) bool {
		return blobsOnly(func(w http.ResponseWriter, r *http.Request) bool {
			layers, err := img.Layers()
			if err != nil {
				panic(err)
			}
			digest, _ := layers[0].Digest()
			if !strings.HasSuffix(r.URL.Path, digest.String()) {
				return false
			}
			mu.Lock()
			asked = append(asked, r.Header.Get("Range"))
			mu.Unlock()
			var from int
			fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from)
			if !ranges {
				from = 0
			}
			w.Header().Set("Content-Length", fmt.Sprint(len(data)-from))
			if from > 0 {
				w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(data)-1, len(data)))
				w.WriteHeader(http.StatusPartialContent)
			}
			w.Write(data[from:min(len(data), from+limit)])
			if from+limit < len(data) {
				w.(http.Flusher).Flush()
				panic(http.ErrAbortHandler)
			}
			return true
		})
	}
	h.change(serve(1<<20, true))
	if got, err := pull(t, s, ref, image.BuildOptions{}); err != nil || got.files["big"] != string(noise) {
		t.Errorf("got %v", err)
	}
	if len(asked) < 3 || asked[0] != "" || !strings.HasPrefix(asked[1], "bytes=") {
		t.Errorf("asked for %q", asked)
	}

	s, asked = open(t, oci.Options{}), nil
	ctx, cancel := context.WithCancel(t.Context())
	h.change(serve(1<<20, true))
	_, err := pullContext(t, ctx, s, image.Spec{Base: ref},
		image.BuildOptions{Progress: func(p image.Progress) { cancel() }})
	expect(t, "cancelled", err, errors.Canceled)
	h.change(serve(1<<30, false)) // and a registry that knows no ranges sends it all again
	if got, err := pull(t, s, ref, image.BuildOptions{}); err != nil || got.files["big"] != string(noise) {
		t.Errorf("got %v", err)
	}
}

func TestStalledRegistry(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	ref := h.push(t, "app", imageOf(t, v1.Config{}, tarOf(t, "a", "1")))
	s := open(t, oci.Options{})
	s.Hurry(time.Millisecond, 50*time.Millisecond)
	h.change(blobsOnly(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Length", "100000")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
		return true
	}))
	_, err := pull(t, s, ref, image.BuildOptions{})
	if errors.KindOf(err) != errors.Unavailable || !strings.Contains(errors.Message(err), "stopped sending data") {
		t.Errorf("got %v", err)
	}
}

// mission: B2, F3
func TestCredentials(t *testing.T) {
	h := newHub(t)
	ref := h.push(t, "private", imageOf(t, v1.Config{}, tarOf(t, "a", "1")))
	h.change(func(w http.ResponseWriter, r *http.Request) bool {
		if user, password, ok := r.BasicAuth(); ok && user == "u" && password == "p4ssw0rd" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	t.Setenv("HOME", t.TempDir())
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	s := open(t, oci.Options{})
	_, err := pull(t, s, ref, image.BuildOptions{})
	expect(t, "nobody", err, errors.Unauthenticated)
	with := func(c image.Credential) image.BuildOptions {
		return image.BuildOptions{Credentials: func(_ context.Context, registry string) (image.Credential, error) {
			if registry != h.host {
				t.Errorf("asked for %q", registry)
			}
			return c, nil
		}}
	}
	_, err = pull(t, s, ref, with(image.Credential{User: "u", Password: "wr0ng"}))
	expect(t, "a wrong password", err, errors.Unauthenticated)
	if strings.Contains(fmt.Sprintf("%+v", err), "wr0ng") {
		t.Error("the error tells the password")
	}
	if _, err := pull(t, s, ref, with(image.Credential{User: "u", Password: "p4ssw0rd"})); err != nil {
		t.Error(err)
	}
	refuse := errors.Newf(errors.Denied, "locked")
	_, err = pull(t, s, ref, image.BuildOptions{Credentials: func(context.Context, string) (image.Credential,
		error) {
		return image.Credential{}, refuse
	}})
	if !errors.Is(err, refuse) {
		t.Errorf("got %v", err)
	}

	config := fmt.Sprintf(`{"auths":{%q:{"username":"u","password":"p4ssw0rd"}}}`, h.host)
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(config),
		0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := pull(t, open(t, oci.Options{}), ref, with(image.Credential{})); err != nil {
		t.Errorf("with Docker's configuration: %v", err)
	}
	if err := os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(`{"auths":`),
		0o600); err != nil {
		t.Fatal(err)
	}
	_, err = pull(t, open(t, oci.Options{}), ref, image.BuildOptions{})
	expect(t, "a damaged Docker configuration", err, errors.Unauthenticated)
}

func TestMirrors(t *testing.T) {
	t.Parallel()
	mirror, hub := newHub(t), newHub(t)
	img := imageOf(t, v1.Config{}, tarOf(t, "a", "1"))
	mirror.push(t, "cache/library/app:1", img)
	s := open(t, oci.Options{Mirrors: map[string][]string{"docker.io": {mirror.host + "/cache"},
		hub.host: {mirror.host}}})
	if _, err := pull(t, s, "app:1", image.BuildOptions{}); err != nil { // Docker Hub itself gets no request
		t.Error(err)
	}
	ref := hub.push(t, "only/here", img)
	mirror.change(func(w http.ResponseWriter,
		r *http.Request) bool {
		w.WriteHeader(http.StatusForbidden)
		return true
	})
	if _, err := pull(t, open(t, oci.Options{Mirrors: map[string][]string{hub.host: {mirror.host}}}), ref,
		image.BuildOptions{}); err != nil {
		t.Errorf("the mirror does not work, the registry does: %v", err)
	}
	_, err := pull(t, open(t, oci.Options{Mirrors: map[string][]string{hub.host: {"not a host"}}}), ref,
		image.BuildOptions{})
	expect(t, "a mirror that cannot be", err, errors.Invalid)
}

func TestTransportSecurity(t *testing.T) {
	t.Parallel()
	_, err := pull(t, open(t, oci.Options{}), "harvest-test.invalid/x", image.BuildOptions{})
	expect(t, "no such host", err, errors.Unavailable)
	plain := httptest.NewServer(http.NotFoundHandler())
	plain.Close()
	_, err = pull(t, open(t, oci.Options{}), strings.TrimPrefix(plain.URL, "http://")+"/x", image.BuildOptions{})
	expect(t, "nobody there", err, errors.Unavailable)
}

// mission: B2
func TestBadLayers(t *testing.T) {
	t.Parallel()
	good := tarOf(t, "a", "1")
	bomb := func() []byte { // 10 GB of zeros in some MB: one compressed part, again and again
		const size, part = 10 << 30, 256 << 20
		var head bytes.Buffer
		if err := tar.NewWriter(&head).WriteHeader(&tar.Header{Name: "bomb", Typeflag: tar.TypeReg,
			Size: size}); err != nil {
			t.Fatal(err)
		}
		return append(gzipped(t, head.Bytes()), bytes.Repeat(gzipped(t, make([]byte, part)), size/part)...)
	}()
	many := make([]string, 0, 2000)
	for i := range 1000 {
		many = append(many, fmt.Sprint(i), "")
	}
	for what, test := range map[string]struct {
		layer v1.Layer
		want  errors.Kind
	}{
		"a bomb": {layerOf(t, bomb, bomb, types.OCILayer), errors.Exhausted},
		"many files": {layerOf(t, tarOf(t, many...), tarOf(t, many...), types.OCIUncompressedLayer),
			errors.Exhausted},
		"another diff id": {layerOf(t, gzipped(t, good), []byte("other"), types.OCILayer), errors.Invalid},
		"half gzip":       {layerOf(t, gzipped(t, good)[:20], good, types.OCILayer), errors.Invalid},
		"half a tar":      {layerOf(t, good[:600], good[:600], types.OCIUncompressedLayer), errors.Invalid},
		"half zstd":       {layerOf(t, zstded(t, good)[:20], good, types.OCILayerZStd), errors.Invalid},
		"no archive": {layerOf(t, []byte("nothing"), []byte("nothing"), types.OCIUncompressedLayer),
			errors.Invalid},
	} {
		h := newHub(t)
		ref := h.push(t, "app", imageOfLayers(t, v1.Config{}, runtime.GOARCH, test.layer))
		_, err := pull(t, open(t, oci.Options{MaxBytes: 1 << 30, MaxFiles: 900}), ref, image.BuildOptions{})
		if errors.KindOf(err) != test.want {
			t.Errorf("%s: got %v, want %s", what, err, test.want)
		}
		if test.want == errors.Exhausted && !strings.Contains(errors.RemedyOf(err), "image_limits") {
			t.Errorf("%s: the remedy is %q", what, errors.RemedyOf(err))
		}
	}
	h := newHub(t)
	_, err := pull(t, open(t, oci.Options{MaxBytes: 10}), h.push(t, "app", imageOf(t, v1.Config{}, good)),
		image.BuildOptions{})
	expect(t, "layers that are too large as they come", err, errors.Exhausted)
}
