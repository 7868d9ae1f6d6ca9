package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/enginetest"
	modalengine "github.com/RelevanceAI/harvest/engine/modal"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/testenv"
)

// newModalWithBase is a server that speaks Modal's protocol and has the base image, which is all that the engine modal needs.
func newModalWithBase(t *testing.T) *modalHarvest {
	t.Helper()
	if testing.Short() {
		t.Skip("gVisor is left out with -short: run it without")
	}
	h := &modalHarvest{t: t, program: testenv.Binary(t)}
	dir := testenv.DataDir(t)
	images := filepath.Join(dir, "images")
	if err := os.MkdirAll(images, 0o700); err != nil {
		t.Fatal(err)
	}
	library := imagetest.Library(t)
	shareImage(t, filepath.Dir(library.Root(imagetest.Base(t, library))), images, "base")
	h.environ = append(modalServerEnv(dir), "HARVEST_OUTPUT_BYTES=16MiB")
	h.start()
	t.Cleanup(h.stop)
	h.modal = h.env()
	return h
}

// leftOfModal are checks of the suite that the engine modal does not run here.
var leftOfModal = map[string]string{
	"system/host name": "Modal names its hosts itself, and the engine says so",
}

// The conformance suite of engines against the engine modal, through the official SDK and gRPC, with our own server in Modal's place.
//
// mission: A3 A4 8.1
func TestModalEngine(t *testing.T) {
	h := newModalWithBase(t)
	for _, pair := range h.modal {
		name, value, _ := strings.Cut(pair, "=")
		t.Setenv(name, value)
	}
	t.Setenv("MODAL_CONFIG_PATH", filepath.Join(t.TempDir(), "none.toml"))
	enginetest.Run(t, enginetest.Harness{
		Open: func(t *testing.T, dir string) engine.Engine {
			e, err := modalengine.Open(t.Context(), modalengine.Options{Dir: dir, Executable: h.program, Image: "base", OutputBytes: 16 << 20})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := e.Images().Build(t.Context(), image.Spec{Base: "base"}, image.BuildOptions{}); err != nil {
				t.Fatal(err)
			}
			return e
		},
		Creates: 3, CopySize: 32 << 20, Left: leftOfModal,
	})
}
