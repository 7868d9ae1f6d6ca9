package release

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
)

type packaged string

func (p packaged) Package() string { return string(p) }

// TestOf checks that only exact versions of agents with a package can be chosen.
func TestOf(t *testing.T) {
	t.Parallel()
	for _, version := range []string{"1.2.3", "0.1.0-beta.2"} {
		if got, err := Of("claude", packaged("@a/b"), version); err != nil || got != "@a/b@"+version {
			t.Errorf("%s: %s, %v", version, got, err)
		}
	}
	for _, version := range []string{"latest", "^1.2.3", "1.2", "v1.2.3", "1.2.3 || 2", "1.2.3;id", "../x", "1.2.3+x"} {
		if got, err := Of("claude", packaged("@a/b"), version); errors.KindOf(err) != errors.Invalid ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%s: %s, %v", version, got, err)
		}
	}
	for _, program := range []any{packaged(""), 1} {
		if got, err := Of("pi", program, "1.2.3"); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%v: %s, %v", program, got, err)
		}
	}
}

// TestRun checks that the package is installed once, that its programs come first, and that a part of Harvest runs in
// the same process.
func TestRun(t *testing.T) {
	dir, home := t.TempDir(), t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("PATH", dir+":/usr/bin:/bin")
	for name, text := range map[string]string{"node": "echo v22.1.0", "npm": `echo "$@" >> ` + home + "/calls\n" +
		`test ! -e ` + home + "/broken"} {
		testenv.WriteFile(t, filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"))
		if err := os.Chmod(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var path string
	part := func(_ context.Context, args []string, _ io.Reader, _, _ io.Writer) int {
		path = os.Getenv("PATH")
		return len(args)
	}
	own := func(name string) Part { return map[string]Part{"harvest-x": part}[name] }
	cmd := Wrap(engine.Command{Own: true, Args: []string{"harvest-x", "-a", "b"}}, "@a/b@1.2.3")
	if !cmd.Own || cmd.Args[0] != Program {
		t.Fatalf("%+v", cmd)
	}
	testenv.WriteFile(t, home+"/broken", nil)
	var said bytes.Buffer
	if code := Main(t.Context(), cmd.Args[1:], own, nil, nil, &said); code != 1 ||
		!strings.Contains(said.String(), "could not be installed") {
		t.Errorf("a failed installation: %d, %s", code, &said)
	}
	if err := os.Remove(home + "/broken"); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if code := Main(t.Context(), cmd.Args[1:], own, nil, nil, &said); code != 2 {
			t.Errorf("exit code %d, want the number of arguments: %s", code, &said)
		}
	}
	calls, err := os.ReadFile(home + "/calls")
	if err != nil || strings.Count(string(calls), "@a/b@1.2.3\n") > 0 || strings.Count(string(calls),
		"@a/b@1.2.3") != 2 {
		t.Errorf("npm was called with %q, %v", calls, err)
	}
	first := strings.Split(path, ":")
	want := filepath.Join(home, ".local/share/harvest-agents/a-b-1.2.3/node_modules")
	if len(first) < 3 || !slices.Equal(first[:3], []string{want + "/.bin", want + "/@a/b", want + "/@a/b/bin"}) {
		t.Errorf("PATH is %s", path)
	}
	said.Reset()
	cmd = Wrap(engine.Command{Args: []string{"no-such-program"}}, "@a/b@1.2.3")
	if code := Main(t.Context(), cmd.Args[1:], own, nil, nil, &said); code != 127 || said.Len() == 0 {
		t.Errorf("a program that is not there: %d, %s", code, &said)
	}
	if code := Main(t.Context(), nil, own, nil, nil, &said); code != 2 {
		t.Errorf("without arguments: %d", code)
	}
}
