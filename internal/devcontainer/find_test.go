package devcontainer_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

func TestFind(t *testing.T) {
	t.Parallel()
	own := []string{".devcontainer.json", ".devcontainer/devcontainer.json"}
	named := []string{".devcontainer/web/devcontainer.json", ".devcontainer/api/devcontainer.json"}
	others := []string{"devcontainer.json", "sub/.devcontainer.json", "sub/.devcontainer/devcontainer.json",
		".devcontainer/a/b/devcontainer.json", ".devcontainer/devcontainer.json.bak", ".devcontainer/api/other.json"}
	for _, c := range []struct {
		name  string
		files []string
		ask   string
		want  string // path
		kind  errors.Kind
		says  string
	}{
		{name: "none", files: others, kind: errors.NotFound, says: "no devcontainer.json"},
		{name: "directory first", files: own, want: ".devcontainer/devcontainer.json"},
		{name: "file of the root", files: own[:1], want: ".devcontainer.json"},
		{name: "the only named one", files: named[:1], want: named[0]},
		{name: "own before named ones", files: append(slices.Clone(named), own[0]), want: own[0]},
		{name: "by name", files: append(slices.Clone(named), own...), ask: "api", want: named[1]},
		{name: "by path", files: append(slices.Clone(named), own...), ask: "./" + named[0], want: named[0]},
		{name: "a name is needed", files: named, kind: errors.Invalid, says: "api, web"},
		{name: "unknown name", files: append(slices.Clone(named), own[1]), ask: "ap", kind: errors.NotFound,
			says: ".devcontainer/devcontainer.json, api, web"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			found, err := devcontainer.Choose(devcontainer.Find(c.files), c.ask)
			if c.kind != "" {
				wantError(t, err, c.kind, c.says)
				return
			}
			if err != nil || found.Path != c.want {
				t.Errorf("%+v, %v, want %s", found, err, c.want)
			}
		})
	}
}

// wantError checks the kind of an error, a part of its message, and that it has a remedy.
func wantError(t *testing.T, err error, kind errors.Kind, says string) {
	t.Helper()
	if errors.KindOf(err) != kind || !strings.Contains(errors.Message(err), says) {
		t.Errorf("error %v (%s: %q), want %s with %q", err, errors.KindOf(err), errors.Message(err), kind, says)
	}
	if err != nil && errors.RemedyOf(err) == "" {
		t.Errorf("error %q has no remedy", errors.Message(err))
	}
}
