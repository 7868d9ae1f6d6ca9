package dockerfile

import (
	"archive/tar"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
)

// planOf plans a Dockerfile over images that are made up.
func planOf(t testing.TB, spec image.Spec, images map[string]image.Config) (*plan, error) {
	t.Helper()
	return newPlan(t.Context(), spec, func(_ context.Context, ref, _ string) (image.Image, error) {
		config, ok := images[ref]
		if !ok {
			return image.Image{}, errors.Remedy(errors.Newf(errors.NotFound, "there is no image %q", ref), "pull it")
		}
		return image.Image{ID: "img_" + ref, Config: config}, nil
	})
}

// mission: B2
func TestBadDockerfiles(t *testing.T) {
	t.Parallel()
	images := map[string]image.Config{
		"base": {}, "chained": {OnBuild: []string{"ONBUILD RUN true"}}, "many": {OnBuild: make([]string, 200)},
		"from": {OnBuild: []string{"FROM base"}},
	}
	for name, c := range map[string]struct {
		text, want, remedy string
		kind               errors.Kind
	}{
		"empty":         {text: "", want: "the Dockerfile is empty", remedy: "begin it with FROM"},
		"only comments": {text: "# nothing\n\n", want: "the Dockerfile is empty"},
		"no FROM":       {text: "RUN true\n", want: "no build stage"},
		"only ARG":      {text: "ARG A=1\n", want: "has no FROM"},
		"unknown instruction": {text: "FROM base\nRUNN echo\n",
			want: "line 2 of the Dockerfile: unknown instruction: RUNN", remedy: "write RUN"},
		"unknown, no idea": {text: "FROM base\n\nBLAHBLAH echo\n", want: "line 3",
			remedy: "see https://docs.docker.com"},
		"NUL":       {text: "FROM base\nRUN \x00\n", want: "line 2 of the Dockerfile: there is a NUL byte"},
		"not UTF-8": {text: "FROM base\nRUN \xff\xfe\n", want: "no UTF-8"},
		"too large": {text: "FROM base\n" + strings.Repeat("RUN true\n", 1<<20), want: "which is more than",
			remedy: "COPY"},
		"too many": {text: "FROM base\n" + strings.Repeat("RUN true\n", 3000), want: "3000 instructions"},
		"unknown base": {text: "FROM nonsense\n",
			want: `line 1 of the Dockerfile: there is no image "nonsense"`, remedy: "pull it", kind: errors.NotFound},
		"empty base":  {text: "ARG B\nFROM $B\n", want: "is empty", remedy: "--build-arg"},
		"from itself": {text: "FROM a AS a\n", want: "made from itself"},
		"from later":  {text: "FROM b AS a\nFROM base AS b\nFROM a\n", want: "comes later"},
		"circular": {text: "FROM base AS a\nCOPY --from=b /x /x\nFROM base AS b\nCOPY --from=a /x /x\n",
			want: "needs itself"},
		"COPY outside": {text: "FROM base\nCOPY ../secret /x\n", want: "outside the build context",
			remedy: "further up"},
		"COPY outside, deep": {text: "FROM base\nCOPY a/../../b /x\n", want: "outside the build context"},
		"COPY several":       {text: "FROM base\nCOPY a b /x\n", want: "several files", remedy: "slash"},
		"COPY URL": {text: "FROM base\nCOPY http://x.example/a /x\n", want: "COPY cannot take a URL",
			remedy: "ADD"},
		"COPY nothing":       {text: "FROM base\nCOPY a\n", want: "line 2"},
		"COPY empty":         {text: "FROM base\nARG A\nCOPY \"$A\" x /y/\n", want: "a source is empty"},
		"COPY from a number": {text: "FROM base\nCOPY --from=7 a b\n", want: "there is no stage 7"},
		"COPY from a variable": {text: "FROM base\nARG S=base\nCOPY --from=$S a b\n",
			want: "variables are not expanded"},
		"ADD git": {text: "FROM base\nADD https://x.example/a.git /x\n", want: "git repository",
			kind: errors.Unsupported},
		"ADD URL and file": {text: "FROM base\nADD http://x.example/a b /x/\n", want: "beside other sources",
			kind: errors.Unsupported},
		"ADD bad checksum": {text: "FROM base\nADD --checksum=sha256:1 http://x.example/a /x/\n",
			want: "not a checksum"},
		"ADD checksum of file": {text: "FROM base\nADD --checksum=sha256:1 a /x/\n", want: "one URL"},
		"bad owner":            {text: "FROM base\nCOPY --chown=a/b a b\n", want: "invalid owner"},
		"bad mode":             {text: "FROM base\nCOPY --chmod=999 a b\n", want: "invalid mode"},
		"bad mode letters":     {text: "FROM base\nCOPY --chmod=u= z a b\n", want: "cannot be"},
		"ssh": {text: "FROM base\nRUN --mount=type=ssh true\n", want: "ssh is not supported",
			remedy: "secret", kind: errors.Unsupported},
		"unknown mount": {text: "FROM base\nRUN --mount=type=moon,target=/x true\n",
			want: "unsupported mount type"},
		"mount nowhere": {text: "FROM base\nRUN --mount=type=tmpfs true\n", want: "no target"},
		"mount over all": {text: "FROM base\nRUN --mount=type=cache,target=/ true\n",
			want: "nothing can be mounted at /"},
		"mount twice": {text: "FROM base\nRUN --mount=type=cache,target=/x --mount=type=tmpfs,target=/x true\n", want: "two mounts"},
		"cache from": {text: "FROM base\nRUN --mount=type=cache,from=base,target=/x true\n",
			want: "cannot begin with files", kind: errors.Unsupported},
		"host network": {text: "FROM base\nRUN --network=host true\n", want: "as isolated as runs",
			kind: errors.Denied},
		"insecure": {text: "FROM base\nRUN --security=insecure true\n", want: "as isolated as runs",
			kind: errors.Denied},
		"device": {text: "FROM base\nRUN --device=x.example/y true\n", want: "--device",
			kind: errors.Unsupported},
		"RUN nothing":         {text: "FROM base\nRUN []\n", want: "line 2"},
		"bad port":            {text: "FROM base\nEXPOSE 99999\n", want: "is not a port"},
		"bad protocol":        {text: "FROM base\nEXPOSE 80/x\n", want: "is not a port"},
		"bad user":            {text: "FROM base\nUSER a b/c\n", want: "line 2"},
		"empty user":          {text: "FROM base\nARG U\nUSER $U\n", want: "invalid user"},
		"empty workdir":       {text: "FROM base\nARG W\nWORKDIR $W\n", want: "WORKDIR is empty"},
		"bad expansion":       {text: "FROM base\nENV A=${B:?missing}\n", want: "line 2"},
		"bad expansion early": {text: "ARG A=${B:?missing}\nFROM base\n", want: "line 1"},
		"ONBUILD ONBUILD":     {text: "FROM base\nONBUILD ONBUILD RUN true\n", want: "line 2"},
		"ONBUILD too deep":    {text: "FROM chained\n", want: "ONBUILD"},
		"ONBUILD FROM":        {text: "FROM from\n", want: "cannot be carried out"},
		"ONBUILD many":        {text: "FROM many\n", want: "200 ONBUILD"},
		"foreign platform": {text: "FROM --platform=linux/s390x base\nRUN true\n",
			want: "cannot run on this machine", kind: errors.Unsupported},
		"heredoc without end": {text: "FROM base\nRUN <<E\necho\n", want: "Dockerfile"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := planOf(t, image.Spec{Dockerfile: c.text}, images)
			if c.kind == "" {
				c.kind = errors.Invalid
			}
			if errors.KindOf(err) != c.kind || !strings.Contains(errors.Message(err), c.want) ||
				!strings.Contains(errors.RemedyOf(err), c.remedy) {
				t.Errorf("got %s: %q (%q), want %s: %q (%q)", errors.KindOf(err), errors.Message(err),
					errors.RemedyOf(err), c.kind, c.want, c.remedy)
			}
		})
	}
	for name, c := range map[string]struct {
		spec image.Spec
		want string
	}{
		"unknown target": {image.Spec{Dockerfile: "FROM base AS a\nFROM base\n", Target: "c"},
			`there is no stage "c"`},
		"commands FROM": {image.Spec{Base: "base", Commands: []string{"RUN true", "FROM base"}},
			"line 2 of the commands: commands on top of an image cannot have a FROM"},
		"commands bad": {image.Spec{Base: "base", Commands: []string{"RUN true", "RUNN true"}},
			"line 2 of the commands: unknown instruction"},
		"commands no base": {image.Spec{Base: "a b", Commands: []string{"RUN true"}}, "invalid base"},
	} {
		_, err := planOf(t, c.spec, images)
		if errors.KindOf(err) != errors.Invalid || !strings.Contains(errors.Message(err), c.want) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// FuzzPlan shows that no text makes the planner panic.
func FuzzPlan(f *testing.F) {
	for _, seed := range []string{
		"FROM base\nRUN echo $A\n", "ARG A=1\nFROM base AS b\nCOPY --from=0 a b\nRUN <<E\nx\nE\n",
		"FROM base\nCOPY <<A <<B /x/\n1\nA\n2\nB\n",
		"# escape=`\nFROM base\nRUN a `\n b\n",
		"FROM base\nRUN --mount=type=secret,id=x,env=Y,target=/z,mode=0777 true\n",
		"FROM base\nEXPOSE 1-5/udp $X\n",
		"FROM base\nADD --checksum=sha256:aa --chmod=u+x http://x/ /\n",
		"FROM base\nONBUILD COPY . .\nHEALTHCHECK --interval=1s CMD x\n",
		"FROM --platform=$BUILDPLATFORM base\nENV A=\"${B:-$C}\" D='x'\nVOLUME [\"/a\"]\nSHELL [\"a\"]\nRUN x\nENTRYPOINT y\n", "FROM scratch\nWORKDIR ${X%y}\n",
	} {
		f.Add(seed, "")
	}
	f.Fuzz(func(t *testing.T, text, target string) {
		_, err := planOf(t, image.Spec{Dockerfile: text, Target: target},
			map[string]image.Config{"base": {OnBuild: []string{"RUN true"}}})
		if err != nil && errors.KindOf(err) == errors.Internal {
			t.Errorf("an internal error: %v", err)
		}
	})
}

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
		"never ends": {"FROM tiny\nRUN echo busy; sleep 1000\n",
			"the command has taken longer than 1s\nIts last output was:\nbusy", errors.Timeout},
		"missing file": {"FROM tiny\nCOPY b /b\n", `line 2 of the Dockerfile: there is no "b" in the build context`,
			errors.NotFound},
		"missing in stage": {"FROM tiny AS a\nFROM tiny\nCOPY --from=a /b /b\n",
			`there is no "b" in the stage or image a`, errors.NotFound},
		"dangling":        {"FROM tiny\nCOPY dangling /b\n", "a symbolic link to nothing", errors.NotFound},
		"bad pattern":     {"FROM tiny\nCOPY [a /b\n", "line 2", errors.Invalid},
		"bad pattern 2":   {"FROM tiny\nCOPY x[a- /b\n", "invalid pattern", errors.Invalid},
		"file over dir":   {"FROM tiny\nCOPY d /x\nCOPY a /y/x\nCOPY d /y/x\n", "cannot replace", errors.Invalid},
		"dir over file":   {"FROM tiny\nCOPY a /x\nCOPY d /x/y\n", "not a directory", errors.Invalid},
		"several to one":  {"FROM tiny\nCOPY [ab]* /x\n", "several files", errors.Invalid},
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
	if _, err := b.source.Build(t.Context(), image.Spec{Dockerfile: "FROM tiny\n"}, image.BuildOptions{},
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
		!strings.Contains(errors.Message(err), "the build has taken longer") {
		t.Errorf("time limit of the build: %v", err)
	}
}

func TestContextLimits(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{Context: Limits{Bytes: 100, Files: 3}})
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

	for name, hdr := range map[string]*tar.Header{
		"dots":     {Typeflag: tar.TypeReg, Name: "../x"},
		"deep":     {Typeflag: tar.TypeReg, Name: "a/../../x"},
		"NUL":      {Typeflag: tar.TypeReg, Name: "a\x00b", Format: tar.FormatPAX},
		"hardlink": {Typeflag: tar.TypeLink, Name: "x", Linkname: "../../etc/passwd"},
		"no link":  {Typeflag: tar.TypeSymlink, Name: "x", Linkname: ""},
		"owner":    {Typeflag: tar.TypeReg, Name: "x", Uid: -5},
		"sparse":   {Typeflag: tar.TypeGNUSparse, Name: "x"},
	} {
		tr := newTree()
		if err := tr.addEntry(hdr, func() (content, error) { return text(""), nil }); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	file := filepath.Join(b.dir, "half.tar")
	if err := os.WriteFile(file, []byte("this is no archive"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := b.try(t, image.Spec{Dockerfile: "FROM tiny\nCOPY . /x\n"},
		image.BuildOptions{Context: file}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a broken archive: %v", err)
	}
}
