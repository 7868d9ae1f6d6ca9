package wire

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// A checkpoint belongs to the gVisor that go.mod names.
func TestVersionOfGVisor(t *testing.T) {
	t.Parallel()
	b, err := os.ReadFile(filepath.Join("..", "..", "..", "..", "go.mod"))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(strings.Split(string(b), "\n"), func(line string) bool {
		words := strings.Fields(strings.TrimPrefix(line, "require"))
		return len(words) > 1 && words[0] == "gvisor.dev/gvisor" && words[1] == GVisor
	}) {
		t.Errorf("go.mod has another gVisor than %s", GVisor)
	}
}

func TestSavedThatMakesNoSense(t *testing.T) {
	t.Parallel()
	const files = `"Files":{"kernel":{"Size":1}}`
	for _, text := range []string{``, `{`, `{}`, `{"Ref":"r"}`, `{` + files + `}`,
		`{"Ref":"r","Started":-1,` + files + `}`,
		`{"Ref":"r",` + files + `,"Commands":[{"ID":"p1","PID":0,"Inside":1}]}`,
		`{"Ref":"r",` + files + `,"Commands":[{"ID":"p1","PID":1}]}`,
		`{"Ref":"r",` + files + `,"Commands":[{"PID":1,"Inside":1}]}`,
		`{"Ref":"r",` + files + `,"Commands":[{"ID":"p1","PID":1,"Inside":1},{"ID":"p2","PID":2,"Inside":2}]}`,
	} {
		if _, err := ParseSaved([]byte(text)); !errors.Is(err, errors.Invalid) {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := ParseSaved([]byte(`{"Ref":"r",` + files +
		`,"Commands":[{"ID":"p1","PID":3,"Inside":2,"Number":1}]}`)); err != nil {
		t.Error(err)
	}
	if _, err := ReadSaved(t.TempDir()); !errors.Is(err, errors.NotFound) {
		t.Errorf("nothing: %v", err)
	}
}
