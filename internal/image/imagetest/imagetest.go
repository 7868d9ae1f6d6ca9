// Package imagetest provides tests with the base image, which is built once a machine for all
// packages and runs.
package imagetest

import (
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/debian"
)

// Certificates is the directory of the machine's certificate authorities for test images.
const Certificates = "/usr/local/share/ca-certificates"

// Sources are the directories of the module with code that makes images, for testenv.Cache.
var Sources = []string{"internal/image", "internal/base/tarfs"}

// Library returns the library shared by all tests of this machine, with the base image built. Tests
// must not delete images from it.
func Library(t testing.TB) *image.Library {
	t.Helper()
	testenv.RequireTool(t, "mmdebstrap", "mmdebstrap")
	dir := testenv.Cache(t, "images", Sources...)
	l, err := image.OpenLibrary(dir,
		image.Sources{Named: map[string]image.Source{"base": debian.New(debian.Options{CertificateDir: Certificates})}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Build(t.Context(), image.Spec{Base: "base"}, image.BuildOptions{}); err != nil {
		t.Fatalf("build the base image: %v", err)
	}
	return l
}

// Base returns the base image of that library.
func Base(t testing.TB, l *image.Library) image.Image {
	t.Helper()
	img, err := l.Build(t.Context(), image.Spec{Base: "base"}, image.BuildOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return img
}
