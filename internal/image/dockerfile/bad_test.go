package dockerfile

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
)

// mission: B2
func TestFailingSteps(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Run: time.Second})
	dir := b.context(map[string]string{"a": "A", "d/x": "X", "dangling": "->nowhere", "bad.tar": "x"})
	for name, c := range map[string]struct {
		text, want string
		kind       errors.Kind
	}{
		"exit code": {"FROM tiny\n\nRUN echo one; echo two >&2; exit 7\n",
			"line 3 of the Dockerfile: RUN echo one; echo two >&2; exit 7: the command failed with exit code 7\nIts last output was:\n", errors.Invalid},
		"order of output": {"FROM tiny\nRUN echo 1; echo 2 >&2; echo 3; echo 4 >&2; echo 5; echo 6 >&2; exit 1\n",
			"\n1\n2\n3\n4\n5\n6", errors.Invalid},
		"incomplete line": {"FROM tiny\nRUN echo 1; printf cut; exit 1\n", "\n1\ncut", errors.Invalid},
		"never ends": {"FROM tiny\nRUN echo busy; sleep 1000\n",
			"the command exceeded its time limit of 1s\nIts last output was:\nbusy", errors.Timeout},
		"missing file": {"FROM tiny\nCOPY b /b\n", `line 2 of the Dockerfile: there is no "b" in the build context`,
			errors.NotFound},
		"missing in stage": {"FROM tiny AS a\nFROM tiny\nCOPY --from=a /b /b\n",
			`there is no "b" in the image`, errors.NotFound},
		"dangling":        {"FROM tiny\nCOPY dangling /b\n", "a dangling symbolic link", errors.NotFound},
		"bad pattern":     {"FROM tiny\nCOPY [a /b\n", "line 2", errors.Invalid},
		"bad pattern 2":   {"FROM tiny\nCOPY x[a- /b\n", "invalid pattern", errors.Invalid},
		"file over dir":   {"FROM tiny\nCOPY d /x\nCOPY a /y/x\nCOPY d /y/x\n", "cannot replace", errors.Invalid},
		"dir over file":   {"FROM tiny\nCOPY a /x\nCOPY d /x/y\n", "not a directory", errors.Invalid},
		"several to one":  {"FROM tiny\nCOPY a d/x /x\n", "several files", errors.Invalid},
		"unknown owner":   {"FROM tiny\nCOPY --chown=nobody2 a /a\n", "has no user", errors.Invalid},
		"unknown group":   {"FROM tiny\nCOPY --chown=app:nobody2 a /a\n", "has no group", errors.Invalid},
		"unknown workdir": {"FROM tiny\nUSER x\nWORKDIR /a\n", "has no user", errors.Invalid},
		"missing secret": {"FROM tiny\nRUN --mount=type=secret,id=k,required=true true\n", `no secret "k"`,
			errors.Invalid},
		"missing bind": {"FROM tiny\nRUN --mount=type=bind,source=q,target=/q true\n",
			"to mount in the build context", errors.NotFound},
		"no program": {"FROM scratch\nRUN true\n", "line 2", errors.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := b.try(t, image.Spec{Dockerfile: c.text}, image.BuildOptions{Context: dir})
			if errors.KindOf(err) != c.kind || !strings.Contains(errors.Message(err), c.want) {
				t.Errorf("got %s: %q, want %s: %q", errors.KindOf(err), errors.Message(err), c.kind, c.want)
			}
		})
	}
	if _, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\nCOPY . /\n"},
		image.BuildOptions{Context: filepath.Join(b.dir, "none")}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("no context: %v", err)
	}
	long := "FROM tiny\nRUN i=0; while [ $i -lt 50 ]; do echo line $i; i=$((i+1)); done; exit 1\n"
	_, err := b.try(t, image.Spec{Dockerfile: long}, image.BuildOptions{})
	if text := errors.Message(err); strings.Contains(text, "line 29\n") || !strings.Contains(text, "line 30\n") ||
		!strings.Contains(text, "line 49") {
		t.Errorf("not the last 20 lines: %s", text)
	}
}

func TestMachinesThatFail(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	dir := b.context(map[string]string{"a": "A"})
	for _, op := range []string{"start", "run", "copy", "snapshot"} {
		b.runner.fail = func(now string) error {
			if now == op {
				return errors.Newf(errors.Exhausted, "no %s today", op)
			}
			return nil
		}
		_, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\nRUN true >/x\nCOPY a /a\nRUN cat /a >/b\n"},
			image.BuildOptions{Context: dir, Force: true})
		if errors.KindOf(err) != errors.Exhausted || !strings.Contains(errors.Message(err), "no "+op+" today") {
			t.Errorf("%s: got %v", op, err)
		}
	}
	b.runner.fail = nil
	b.source.Connect(nil, nil)
	if _, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\n"},
		image.BuildOptions{}); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("not connected: %v", err)
	}
	if _, err := b.source.Build(t.Context(), image.Spec{Dockerfile: "FROM tiny\n"}, quiet,
		image.Output{}); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("not connected: %v", err)
	}
}

// mission: A3
func TestCancelAndClose(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	text := "FROM tiny AS a\nRUN echo begun; sleep 1000\nFROM tiny AS b\nRUN sleep 1000\nFROM tiny\nCOPY --from=a / /\nCOPY --from=b / /\n"
	ctx, cancel := context.WithCancel(t.Context())
	_, err := b.tryCtx(ctx, t, image.Spec{Dockerfile: text}, image.BuildOptions{Log: func(line string) {
		if strings.HasSuffix(line, "begun") {
			cancel()
		}
	}})
	if errors.KindOf(err) != errors.Canceled {
		t.Errorf("canceled: %v", err)
	}
	closed := make(chan error, 1)
	_, err = b.try(t, image.Spec{Dockerfile: text}, image.BuildOptions{Log: func(line string) {
		if strings.HasSuffix(line, "begun") {
			go func() { closed <- b.source.Close(context.WithoutCancel(t.Context())) }()
		}
	}})
	if errors.KindOf(err) != errors.Unavailable || <-closed != nil {
		t.Errorf("closed: %v", err)
	}
	if _, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\n"},
		image.BuildOptions{}); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("after Close: %v", err)
	}

	b = newBench(t, Options{Build: 100 * time.Millisecond})
	if _, err = b.try(t, image.Spec{Dockerfile: text}, image.BuildOptions{}); errors.KindOf(err) != errors.Timeout ||
		!strings.Contains(errors.Message(err), "the build exceeded its time limit") {
		t.Errorf("time limit of the build: %v", err)
	}
}

func TestContextLimits(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Context: files.Limits{Bytes: 100, Files: 3}})
	spec := image.Spec{Dockerfile: "FROM tiny\nCOPY . /x\n"}
	for name, files := range map[string]map[string]string{
		"bytes": {"a": strings.Repeat("x", 101)}, "files": {"a": "", "b": "", "c": "", "d": ""},
	} {
		if _, err := b.try(t, spec,
			image.BuildOptions{Context: b.context(files)}); errors.KindOf(err) != errors.Exhausted ||
			!strings.Contains(errors.RemedyOf(err), ".dockerignore") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestHostileContext shows that nothing in a context leads out of it.
func TestHostileContext(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	outside := filepath.Join(b.dir, "outside")
	if err := os.WriteFile(outside, []byte("canary"), 0o600); err != nil {
		t.Fatal(err)
	}
	dir := b.context(map[string]string{"link": "->" + outside, "up": "->../../../../.." + outside, "d/x": "X",
		"self": "->self"})
	for _, source := range []string{"link", "up", "self"} {
		if _, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\nCOPY " + source + " /x\n"},
			image.BuildOptions{Context: dir}); err == nil {
			t.Errorf("%s was copied", source)
		}
	}
	img := b.build(t, "FROM tiny\nCOPY . /all\n", image.BuildOptions{Context: dir})
	img.want(map[string]string{"/all/link": "->" + outside, "/all/d/x": "X"})

	file := filepath.Join(b.dir, "half.tar")
	if err := os.WriteFile(file, []byte("this is no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\nCOPY . /x\n"},
		image.BuildOptions{Context: file}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a broken archive: %v", err)
	}
}
