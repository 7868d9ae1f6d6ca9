package image

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/internal/image/imagetest"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestBuildScripts builds images with the ordinary binary, into a separate library that begins with the base image.
func TestBuildScripts(t *testing.T) {
	t.Parallel()
	setup := host.GVisor(t)
	library := imagetest.Library(t)
	base := filepath.Dir(library.Root(imagetest.Base(t, library)))
	host.Scripts(t, "testdata/build", "gvisor", func(env *testscript.Env) error {
		if err := setup(env); err != nil {
			return err
		}
		images := filepath.Join(env.Getenv("HARVEST_DATA"), "images")
		if err := os.Remove(images); err != nil { // a link to the library that all share
			return err
		}
		if err := os.Mkdir(images, 0o700); err != nil {
			return err
		}
		return exec.CommandContext(t.Context(), "cp", "-a", base, images).Run()
	})
}
