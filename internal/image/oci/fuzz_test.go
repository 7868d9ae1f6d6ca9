package oci_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/oci"
	"github.com/RelevanceAI/harvest/internal/image/rootfs"
)

// shelf is a registry that has one manifest, under whatever tag, and blobs by digest.
type shelf struct {
	manifest []byte
	blobs    map[string][]byte
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func (s *shelf) RoundTrip(r *http.Request) (*http.Response, error) {
	resp := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Request: r, ProtoMajor: 1, ProtoMinor: 1}
	body := s.manifest
	switch last := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]; {
	case strings.Contains(r.URL.Path, "/blobs/"):
		body = s.blobs[last]
	case r.URL.Path == "/v2/":
		body = []byte{}
	case strings.HasPrefix(last, "sha256:") && last != digestOf(s.manifest):
		body = nil
	}
	if body == nil {
		resp.StatusCode = http.StatusNotFound
	}
	resp.Status, resp.ContentLength, resp.Body = strconv.Itoa(resp.StatusCode), int64(len(body)),
		io.NopCloser(bytes.NewReader(body))
	return resp, nil
}

// FuzzPull makes a registry send any manifest, configuration and layer, with digests and sizes that are right if the
// manifest names them by their placeholder: the result is a readable image or a refusal.
func FuzzPull(f *testing.F) {
	const manifest = `{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json",$CONFIG},` +
		`"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar",$LAYER}]}`
	const config = `{"os":"linux","config":{"Env":["A=b","c"],"ExposedPorts":{"80":{}},` +
		`"Healthcheck":{"Test":["NONE"]}},"rootfs":{"type":"layers","diff_ids":["$PLAIN"]}}`
	plain := tarOf(f, "etc/", "", "etc/os-release", "ID=x\nVERSION_ID=1\n", "link", "->etc", ".wh.gone", "")
	f.Add(manifest, config, plain)
	f.Add(manifest, config, gzipped(f, plain))
	f.Add(manifest, config, zstded(f, plain))
	f.Add(`{"schemaVersion":2,"manifests":[{"digest":"sha256:00","platform":{"os":"linux","architecture":"amd64"}}]}`,
		"", []byte{})
	f.Add(`{"schemaVersion":1}`, "", []byte{})
	f.Add(`{"schemaVersion":2,"config":{"mediaType":"application/vnd.oci.image.config.v1+json",$CONFIG},"layers":[]}`,
		`{"rootfs":{"diff_ids":[]}}`, []byte{})
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, manifest, config string, layer []byte) {
		config = strings.ReplaceAll(config, "$PLAIN", digestOf(plain))
		manifest = strings.ReplaceAll(manifest, "$CONFIG",
			fmt.Sprintf(`"digest":%q,"size":%d`, digestOf([]byte(config)), len(config)))
		manifest = strings.ReplaceAll(manifest, "$LAYER",
			fmt.Sprintf(`"digest":%q,"size":%d`, digestOf(layer), len(layer)))
		s := &shelf{[]byte(manifest), map[string][]byte{digestOf([]byte(config)): []byte(config),
			digestOf(layer): layer}}
		blobs, err := os.MkdirTemp(dir, "blobs-")
		if err != nil {
			t.Fatal(err)
		}
		defer os.RemoveAll(blobs)
		source, err := oci.Open(oci.Options{Dir: blobs, Transport: func(string) http.RoundTripper { return s },
			MaxBytes: 1 << 20, MaxFiles: 1000})
		if err != nil {
			t.Fatal(err)
		}
		source.Hurry(time.Microsecond, time.Minute)
		opts := image.BuildOptions{Progress: func(image.Progress) {},
			Credentials: func(context.Context, string) (image.Credential, error) {
				return image.Credential{Anonymous: true}, nil
			}}
		spec, _, err := source.Resolve(t.Context(), image.Spec{Base: "registry.example.org/a:b"}, opts)
		if err != nil {
			expectRefusal(t, err)
			return
		}
		root, err := os.Create(blobs + "/root")
		if err != nil {
			t.Fatal(err)
		}
		defer root.Close()
		if _, err := source.Build(t.Context(), spec, opts, image.Output{Root: root, Temp: blobs}); err != nil {
			expectRefusal(t, err)
			return
		}
		r, err := rootfs.OpenReader(root)
		if err == nil {
			err = r.Walk(".", func(*tar.Header, io.Reader) error { return nil })
		}
		if err != nil {
			t.Errorf("an image that was made cannot be read: %v", err)
		}
	})
}

// expectRefusal fails unless an error describes the problem.
func expectRefusal(t *testing.T, err error) {
	t.Helper()
	switch errors.KindOf(err) {
	case errors.Invalid, errors.Unsupported, errors.Exhausted, errors.NotFound, errors.Unavailable:
		return
	}
	t.Errorf("got %v", err)
}

// FuzzReference reads names of images that a user could write.
func FuzzReference(f *testing.F) {
	for _, text := range []string{"debian", "ghcr.io/a/b:c", "localhost:5000/x@sha256:" + strings.Repeat("a", 64),
		"[::1]:80/x", "a//b", "a:b:c", "@", ""} {
		f.Add(text)
	}
	source, err := oci.Open(oci.Options{Dir: f.TempDir(),
		Transport: func(string) http.RoundTripper { return &shelf{blobs: map[string][]byte{}} }})
	if err != nil {
		f.Fatal(err)
	}
	source.Hurry(time.Microsecond, time.Minute)
	opts := image.BuildOptions{Credentials: func(context.Context, string) (image.Credential,
		error) {
		return image.Credential{Anonymous: true}, nil
	}}
	f.Fuzz(func(t *testing.T, text string) {
		if _, _, err := source.Resolve(t.Context(), image.Spec{Base: text}, opts); err == nil {
			t.Errorf("%q is an image", text)
		} else {
			expectRefusal(t, err)
		}
	})
}
