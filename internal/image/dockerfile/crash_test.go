package dockerfile_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
)

// TestStepCrashes checks that a step in which a process crashes is repeated once, on the files from before it, and that
// the log says so.
//
// mission: B2
func TestStepCrashes(t *testing.T) {
	s := newSite(t)
	// The cache mount is all that the second attempt sees of the first one.
	once := `--mount=type=cache,id=crash,target=/c echo more >>/made; if mkdir /c/crashed; then python3 -c "import ctypes; ctypes.string_at(0)"; fi`
	img := s.build(image.Spec{Dockerfile: "FROM base\nRUN echo before >/before\nRUN " + once + "\nRUN echo after >/after\n"}, image.BuildOptions{})
	if got := s.run(img, "cat", "/before", "/made", "/after"); got != "before\nmore\nafter\n" {
		t.Errorf("the files have %q", got)
	}
	crashes := func(line string) bool {
		return strings.Contains(line, "died of SIGSEGV") && strings.Contains(line, "once more")
	}
	if n := len(slices.DeleteFunc(slices.Clone(s.log), func(line string) bool { return !crashes(line) })); n != 1 {
		t.Errorf("%d lines of the log name a crash: %q", n, s.log)
	}
	always := image.Spec{Dockerfile: "FROM base\nRUN kill -ABRT $$\n"}
	if _, err := s.shelf.Build(t.Context(), always, image.BuildOptions{}); errors.KindOf(err) != errors.Invalid ||
		!strings.Contains(errors.Message(err), "died of SIGABRT") {
		t.Errorf("a step that crashes always: %v", err)
	}
}
