package devcontainer_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

// installation returns one with two features: the second has options with the syntax of shells and Dockerfiles.
func installation(t *testing.T) devcontainer.Installation {
	t.Helper()
	c := parse(t, `{"features": {
		"ghcr.io/acme/f/go:1": {}, "ghcr.io/acme/f/odd:1": {"greeting": "it's \"$HOME\" `+"`id`"+` \\ \n end"}
	}, "containerEnv": {"A": "a \"b\" $c \\", "ID": "${devcontainerId}"}, "remoteUser": "dev"}`)
	features, err := devcontainer.Resolve(t.Context(), c, source(t, map[string]string{
		"acme/f/go": `{"id": "go", "version": "1.2.0", 
			"containerEnv": {"GOROOT": "/go", "PATH": "${GOROOT}/bin:${PATH}"},
			"options": {"version": {"type": "string", "default": "1.26"}}, "entrypoint": "/init"}`,
		"acme/f/odd": `{"id": "odd", "name": "It's odd", "deprecated": true, "documentationURL": "https://example.org",
			"installsAfter": ["ghcr.io/acme/f/go"]}`,
	}))
	if err != nil {
		t.Fatal(err)
	}
	features[0].Dir, features[1].Dir = "0", "1"
	m, err := metadata(t, `[{"remoteUser": "x", "customizations": {"a": "\n$\\\""}}]`).With(features, c)
	if err != nil {
		t.Fatal(err)
	}
	merged := devcontainer.Merge(m)
	container, remote := merged.Users("node")
	return devcontainer.Installation{Image: "docker.io/library/node:22", User: "node", ContainerUser: container,
		RemoteUser: remote, Features: features, ContainerEnv: merged.ContainerEnv, Metadata: m}
}

func TestDockerfile(t *testing.T) {
	t.Parallel()
	in := installation(t)
	text, files, err := devcontainer.Dockerfile(in)
	if err != nil {
		t.Fatal(err)
	}
	result, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v:\n%s", err, text)
	}
	stages, _, err := instructions.Parse(result.AST, nil)
	if err != nil || len(stages) != 1 || stages[0].BaseName != in.Image {
		t.Fatalf("%v:\n%s", err, text)
	}
	var got []string
	for _, c := range stages[0].Commands {
		switch c := c.(type) {
		case *instructions.RunCommand:
			got = append(got, "RUN")
		case *instructions.EnvCommand:
			got = append(got, "ENV "+c.Env[0].Key+"="+c.Env[0].Value)
		case *instructions.UserCommand:
			got = append(got, "USER "+c.User)
		case *instructions.LabelCommand:
			got = append(got, "LABEL "+c.Labels[0].Key)
			// The shell lexer of the builder removes the quoting.
			value := c.Labels[0].Value
			want := `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, `$`, `\$`).Replace(in.Metadata.String()) + `"`
			if value != want {
				t.Errorf("label\n%s\nwant\n%s", value, want)
			}
		default:
			t.Errorf("unexpected instruction %s", c.Name())
		}
	}
	// Variables of a feature are set before its step, in their order; that with an id waits for the environment.
	want := []string{"USER root", "RUN", `ENV GOROOT="/go"`, `ENV PATH="${GOROOT}/bin:${PATH}"`, "RUN", "RUN", "RUN",
		`ENV A="a \"b\" \$c \\"`, "LABEL devcontainer.metadata", "USER node"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("instructions\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(files) != 5 {
		t.Errorf("%d files", len(files))
	}
}

// build runs the steps of a Dockerfile that install features as commands of this machine: dir is in place of /tmp, and
// the files of mounts are copies.
func build(t *testing.T, dir, text string, files []devcontainer.File, context string) (stdout, stderr string,
	err error) {
	t.Helper()
	const temporary = "/tmp/dev-container-features"
	own := filepath.Join(dir, "features")
	for _, f := range files {
		testenv.WriteFile(t, filepath.Join(context, f.Path), []byte(f.Text))
	}
	result, err := parser.Parse(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	stages, _, err := instructions.Parse(result.AST, nil)
	if err != nil {
		t.Fatal(err)
	}
	var out, said bytes.Buffer
	for _, c := range stages[0].Commands {
		run, ok := c.(*instructions.RunCommand)
		if !ok {
			continue
		}
		if err := run.Expand(func(word string) (string, error) { return word, nil }); err != nil {
			t.Fatal(err)
		}
		for _, m := range instructions.GetMounts(run) {
			to := strings.Replace(m.Target, temporary, own, 1)
			if err := os.CopyFS(to, os.DirFS(filepath.Join(context, m.Source))); err != nil {
				t.Fatal(err)
			}
		}
		line := strings.ReplaceAll(strings.Join(run.CmdLine, " "), temporary, own)
		if os.Geteuid() != 0 {
			line = strings.ReplaceAll(line, "chown", "true")
		}
		cmd := exec.CommandContext(t.Context(), "/bin/sh", "-c", line)
		cmd.Stdout, cmd.Stderr = &out, &said
		if err := cmd.Run(); err != nil {
			return out.String(), said.String(), err
		}
		for _, m := range instructions.GetMounts(run) {
			if err := os.RemoveAll(strings.Replace(m.Target, temporary, own, 1)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return out.String(), said.String(), nil
}

// The script of a feature gets its options and the users, whatever characters they have.
func TestInstallation(t *testing.T) {
	t.Parallel()
	in := installation(t)
	in.ContainerUser, in.RemoteUser = "root", "0:0"
	text, files, err := devcontainer.Dockerfile(in)
	if err != nil {
		t.Fatal(err)
	}
	context := t.TempDir()
	testenv.WriteFile(t, filepath.Join(context, "0", "install.sh"), []byte("#!/bin/sh\necho \"go $VERSION in $PWD\"\n"))
	testenv.WriteFile(t, filepath.Join(context, "1", "lib", "part.sh"), []byte("end=done\n"))
	script := "#!/bin/sh\n. ./lib/part.sh\nprintf '%s|' \"$GREETING\" \"$_CONTAINER_USER\" \"$_REMOTE_USER\" " +
		"\"$_CONTAINER_USER_HOME\" \"$_REMOTE_USER_HOME\" \"$VERSION\" $end\n"
	testenv.WriteFile(t, filepath.Join(context, "1", "install.sh"), []byte(script))
	dir := t.TempDir()
	stdout, stderr, err := build(t, dir, text, files, context)
	if err != nil {
		t.Fatalf("%v: %s", err, stderr)
	}
	for _, want := range []string{"feature go 1.2.0 (ghcr.io/acme/f/go:1)\ngo 1.26 in ", "/features/go_0\n",
		"feature odd (ghcr.io/acme/f/odd:1)\n", "deprecated",
		"it's \"$HOME\" `id` \\ \n end|root|0|/root|/root||done|"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("%q is not in the output %q", want, stdout)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("files are left: %v, %v", left, err)
	}
	testenv.WriteFile(t, filepath.Join(context, "1", "install.sh"), []byte("#!/bin/sh\nexit 3\n"))
	_, stderr, err = build(t, t.TempDir(), text, files, context)
	want := "ERROR: feature \"It's odd\" (ghcr.io/acme/f/odd) failed to install; see https://example.org\n"
	if exit := new(exec.ExitError); !errors.As(err, &exit) || exit.ExitCode() != 3 || stderr != want {
		t.Errorf("%q, %v, want %q", stderr, err, want)
	}
}

func TestDockerfileRefusesForeignSyntax(t *testing.T) {
	t.Parallel()
	for _, change := range []func(*devcontainer.Installation){
		func(in *devcontainer.Installation) { in.Image = "a\nRUN evil" },
		func(in *devcontainer.Installation) { in.User = "a b" },
		func(in *devcontainer.Installation) { in.RemoteUser = "$(evil)" },
		func(in *devcontainer.Installation) { in.ContainerUser = "a'" },
		func(in *devcontainer.Installation) { in.ContainerEnv = devcontainer.Env{{Name: "A", Value: "a\nb"}} },
		func(in *devcontainer.Installation) {
			in.Features[0].ContainerEnv = devcontainer.Env{{Name: "A", Value: "a\rb"}}
		},
	} {
		in := installation(t)
		change(&in)
		_, _, err := devcontainer.Dockerfile(in)
		wantError(t, err, errors.Invalid, "")
	}
	text, files, err := devcontainer.Dockerfile(devcontainer.Installation{Image: "debian"})
	if want := "FROM debian\nUSER root\nLABEL devcontainer.metadata=\"[]\"\n"; err != nil || text != want ||
		files != nil {
		t.Errorf("%q, %v, %v", text, files, err)
	}
}
