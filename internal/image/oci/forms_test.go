package oci_test

import (
	"archive/tar"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/oci"
)

// TestIndexes pulls indexes in the forms that registries have: a manifest without platform beside attestations, and
// indexes of indexes.
//
// mission: B2
func TestIndexes(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	mine := imageOf(t, v1.Config{}, tarOf(t, "mine", ""))
	theirs := imageOfLayers(t, v1.Config{}, "s390x",
		static.NewLayer(tarOf(t, "theirs", ""), types.OCIUncompressedLayer))
	other := imageOf(t, v1.Config{}, tarOf(t, "other", ""))
	unknown := mutate.IndexAddendum{Add: other,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"}}}
	attestation := mutate.IndexAddendum{Add: other,
		Descriptor: v1.Descriptor{Annotations: map[string]string{"vnd.docker.reference.type": "attestation-manifest"}}}
	plain := func(what mutate.Appendable) mutate.IndexAddendum { return mutate.IndexAddendum{Add: what} }
	named := mutate.IndexAddendum{Add: mine,
		Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: runtime.GOARCH}}}
	loose := mutate.AppendManifests(empty.Index, attestation, unknown, plain(mine))
	for name, index := range map[string]v1.ImageIndex{
		"loose": loose, "nested": mutate.AppendManifests(empty.Index, plain(loose)),
		"several":              mutate.AppendManifests(empty.Index, plain(theirs), plain(mine)),
		"nested beside others": mutate.AppendManifests(empty.Index, plain(theirs), plain(loose), attestation),
		"loose before named":   mutate.AppendManifests(empty.Index, plain(other), named),
	} {
		got, err := pull(t, open(t, oci.Options{}), h.pushIndex(t, strings.ReplaceAll(name, " ", "-"), index),
			image.BuildOptions{})
		if _, ok := got.files["mine"]; !ok || err != nil {
			t.Errorf("%s: got %v, %v", name, got.files, err)
		}
	}
	var deep mutate.Appendable = mine
	for range 4 {
		deep = mutate.AppendManifests(empty.Index, plain(deep))
	}
	_, err := pull(t, open(t, oci.Options{}), h.pushIndex(t, "deep", deep.(v1.ImageIndex)), image.BuildOptions{})
	expect(t, "too many indexes in one another", err, errors.Invalid)
	named.Descriptor.Platform = &v1.Platform{OS: "linux", Architecture: "s390x"}
	_, err = pull(t, open(t, oci.Options{}), h.pushIndex(t, "foreign", mutate.AppendManifests(empty.Index, unknown,
		named)), image.BuildOptions{})
	if text := errors.Message(err); !strings.HasSuffix(text, "but for linux/s390x") {
		t.Errorf("the platforms of an image: got %q", text)
	}
}

// TestExportKeepsConfig checks that an export and a pull keep the whole configuration of an image.
//
// mission: B2
func TestExportKeepsConfig(t *testing.T) {
	t.Parallel()
	img := image.Image{Built: epoch, Config: image.Config{
		Env: map[string]string{"A": "b"}, User: "u", Dir: "/w", Entrypoint: []string{"e"}, Cmd: []string{"c"},
		Shell: []string{"s"}, Ports: []string{"80/tcp"}, Volumes: []string{"/v"}, Labels: map[string]string{"l": "m"},
		StopSignal: "SIGINT", Author: "me", OnBuild: []string{"RUN x"},
		Healthcheck: []byte(`{"Test":["CMD","true"],"Interval":1,"StartInterval":2000000000,"Retries":3}`),
		History:     []image.History{{Created: epoch.UTC(), By: "RUN y", Comment: "z", Empty: true}},
	}}
	h := newHub(t)
	got, err := pull(t, open(t, oci.Options{}), h.push(t, "a", imageOf(t, v1.Config{}, tarOf(t, "f", ""))),
		image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "a.tar")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := oci.Export(t.Context(), f, img, got.root, nil); err != nil {
		t.Fatal(err)
	}
	text := configIn(t, file)
	for _, want := range []string{`"OnBuild":["RUN x"]`, `"StartInterval":2000000000`, `"Retries":3`, `"author":"me"`,
		`"created_by":"RUN y"`, `"empty_layer":true`, `"80/tcp":{}`} {
		if !strings.Contains(text, want) {
			t.Errorf("the export lacks %s: %s", want, text)
		}
	}
	again, err := tarball.ImageFromPath(file, nil)
	if err != nil {
		t.Fatal(err)
	}
	got, err = pull(t, open(t, oci.Options{}), h.push(t, "again", again), image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	img.Config.History = append(img.Config.History, image.History{Created: epoch.UTC(), By: "harvest image export"})
	if diff := cmp.Diff(img.Config, got.Config); diff != "" {
		t.Errorf("the configuration after an export and a pull (-want +got):\n%s", diff)
	}
}

// configIn returns the configuration in an OCI archive.
func configIn(t testing.TB, file string) string {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for tr := tar.NewReader(f); ; {
		_, err := tr.Next()
		if err != nil {
			t.Fatalf("there is no configuration: %v", err)
		}
		if text, _ := io.ReadAll(io.LimitReader(tr, 1<<20)); strings.Contains(string(text), `"rootfs"`) {
			return string(text)
		}
	}
}

// TestEmptyLayers pulls an image with layers of no bytes, plain and compressed.
func TestEmptyLayers(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	one := tarOf(t, "a", "1")
	img := imageOfLayers(t, v1.Config{}, runtime.GOARCH, layerOf(t, nil, nil, types.OCIUncompressedLayer),
		layerOf(t, one, one, types.OCIUncompressedLayer), layerOf(t, gzipped(t, nil), nil, types.OCILayer))
	got, err := pull(t, open(t, oci.Options{}), h.push(t, "empty", img), image.BuildOptions{})
	if err != nil || got.files["a"] != "1" {
		t.Errorf("got %v, %v", got.files, err)
	}
}

// TestForeignPlatform pulls images for another platform, whose files a Dockerfile copies.
func TestForeignPlatform(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	mine := imageOf(t, v1.Config{}, tarOf(t, "mine", ""))
	theirs := imageOfLayers(t, v1.Config{OnBuild: []string{"RUN x"}}, "s390x",
		static.NewLayer(tarOf(t, "theirs", ""), types.OCIUncompressedLayer))
	var index v1.ImageIndex = empty.Index
	for arch, img := range map[string]v1.Image{runtime.GOARCH: mine, "s390x": theirs} {
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: arch}}})
	}
	both := h.pushIndex(t, "both", index)
	s := open(t, oci.Options{})
	got, err := pullContext(t, t.Context(), s, image.Spec{Base: both, Platform: "linux/s390x"},
		image.BuildOptions{Foreign: true})
	if err != nil || got.spec.Platform != "linux/s390x" || len(got.Config.OnBuild) != 1 {
		t.Fatalf("got %+v, %v", got.spec, err)
	}
	if _, ok := got.files["theirs"]; !ok {
		t.Errorf("got the files %v", got.files)
	}
	_, err = pullContext(t, t.Context(), s, image.Spec{Base: h.push(t, "lone", mine), Platform: "linux/s390x"},
		image.BuildOptions{Foreign: true})
	expect(t, "an image for this machine only", err, errors.Unsupported)
	arm := imageOfLayers(t, v1.Config{}, "arm64", static.NewLayer(tarOf(t, "arm", ""), types.OCIUncompressedLayer))
	ref := h.push(t, "arm", arm)
	for _, same := range []string{"linux/arm64", "linux/arm64/v8", "linux/aarch64", "arm64"} {
		got, err := pullContext(t, t.Context(), s, image.Spec{Base: ref, Platform: same},
			image.BuildOptions{Foreign: true})
		if err != nil || got.spec.Platform != "linux/arm64" {
			t.Errorf("%s: got %q, %v", same, got.spec.Platform, err)
		}
	}
	for _, same := range []string{runtime.GOARCH, "linux/x86_64", "linux/amd64/v2"} {
		if runtime.GOARCH != "amd64" && same != runtime.GOARCH {
			continue
		}
		if got, err := pullContext(t, t.Context(), s, image.Spec{Base: both, Platform: same},
			image.BuildOptions{}); err != nil || got.files["mine"] != "" {
			t.Errorf("%s: got %v, %v", same, got.files, err)
		}
	}
}
