package kill

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestKilledBuildOnGVisor checks that a build whose server, sandbox and client are killed halfway leaves nothing
// incomplete, and that the next build resumes after the completed steps.
//
// mission: B2
// mission: A8
func TestKilledBuildOnGVisor(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	setup := host.GVisor(t)
	library := imagetest.Library(t)
	base := filepath.Dir(library.Root(imagetest.Base(t, library)))
	h := host.New(t, "gvisor", func(env *testscript.Env) error {
		if err := setup(env); err != nil {
			return err
		}
		images := filepath.Join(env.Getenv("HARVEST_DATA"), "images") // a link to the library that all share
		if err := errors.Join(os.Remove(images), os.Mkdir(images, 0o700)); err != nil {
			return err
		}
		host.ShareImage(t, base, images, "base")
		return nil
	})
	dir := t.TempDir()
	begin := func(last string) []string {
		name := filepath.Join(dir, "Dockerfile")
		if err := os.WriteFile(name, []byte("FROM base\nRUN echo one >/one\nRUN "+last+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		return []string{"image", "build", "-f", name, "-t", "killed"}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := h.Command(ctx, begin("echo it has begun; sleep 600")...)
	said, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	host.Expect(t, said, "] it has begun")
	testenv.Try(t, func() error { // the first step's layer is brought to the disk while the second one runs
		if kept, _ := filepath.Glob(filepath.Join(h.Data, "build-cache/*.json")); len(kept) == 0 {
			return errors.Newf(errors.Conflict, "the cache has no layer")
		}
		return nil
	})
	host.KillAll(t, h.Data)
	if err := cmd.Wait(); err == nil {
		t.Error("the client says that it has built the image")
	}
	if out := h.Must("image", "ls", "-o", "json"); strings.Contains(out, "killed") {
		t.Errorf("there is half an image: %s", out)
	}
	for _, pattern := range []string{"images/.new-*", "build-cache/*.new", "uploads/*", "sandboxes/*"} {
		testenv.Try(t, func() error {
			if left, _ := filepath.Glob(filepath.Join(h.Data, pattern)); len(left) > 0 {
				return errors.Newf(errors.Conflict, "left: %v", left)
			}
			return nil
		})
	}
	_, log, code := h.Run(begin("cat /one >/two")...)
	if code != 0 || !strings.Contains(log, "RUN echo one >/one: cached") {
		t.Errorf("afterwards: exit code %d, %s", code, log)
	}
	if out := h.Must("run", "--image", "killed", "--", "cat", "/two"); out != "one" {
		t.Errorf("the image has %q", out)
	}
}
