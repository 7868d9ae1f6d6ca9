package steps_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/RelevanceAI/harvest/internal/modal/steps"
)

// TestEnvironment reads the commands as an image build does. The values are quoted as Python's shlex.quote does.
// mission: B2
func TestEnvironment(t *testing.T) {
	for line, want := range map[string]string{
		`ENV V='/x:$PATH'`:           "/x:/bin",
		`ENV V='/x:${PATH}'`:         "/x:/bin",
		`ENV V='a'"'"'b $PATH'`:      "a'b /bin",
		`ENV V='say "hi" $PATH'`:     `say "hi" /bin`,
		`ENV V='back\slash $PATH'`:   `back\slash /bin`,
		`ENV V='end\'`:               `end\`,
		`ENV V=plain`:                "plain",
		`ENV V="a'$PATH'"`:           "a'/bin'",
		`ENV V=it\'s`:                "it's",
		`env V='$PATH' W='$PATH'`:    "/bin",
		`ENV V=''`:                   "",
		`ENV V='a b'`:                "a b",
		`ENV V='/x:$NONE'`:           "/x:",
		"ENV W='1' \\\n V='2:$PATH'": "2:/bin",
	} {
		commands := steps.Adapt(strings.Split(line, "\n"))
		file, err := parser.Parse(strings.NewReader(strings.Join(commands, "\n")))
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		parsed, err := instructions.ParseInstruction(file.AST.Children[0])
		if err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		command := parsed.(*instructions.EnvCommand)
		if err := command.Expand(expand); err != nil {
			t.Errorf("%s: %v", line, err)
			continue
		}
		i := slices.IndexFunc(command.Env, func(p instructions.KeyValuePair) bool { return p.Key == "V" })
		if got := command.Env[i].Value; got != want {
			t.Errorf("%s is %q, want %q", line, got, want)
		}
	}
	other := []string{"RUN echo 'x:$PATH'", "RUN <<EOF", "ENV V='$PATH'", "EOF", `RUN echo \`, "ENV V='$PATH'",
		"WORKDIR '/a b'", `CMD ["a'b'"]`}
	if got := steps.Adapt(other); !slices.Equal(got, other) {
		t.Errorf("other commands are %q", got)
	}
}

// TestSteps checks the meaning of the lines that the methods of Python's SDK send. The SDK quotes words of commands and
// the path of WORKDIR for the shell (shlex.quote), and puts arguments of ENTRYPOINT, CMD and SHELL in quotes without
// escaping anything.
//
// mission: B2
func TestSteps(t *testing.T) {
	for _, c := range []struct {
		line string
		want []string // the command, or the words of COPY, or the path of WORKDIR
	}{
		// run_commands, apt_install, pip_install
		{`RUN apt-get install -y git 'lib c'`, []string{"/bin/sh", "-c", `apt-get install -y git 'lib c'`}},
		{`RUN python -m pip install 'httpx~=0.23.3' "a b"`,
			[]string{"/bin/sh", "-c", `python -m pip install 'httpx~=0.23.3' "a b"`}},
		{`RUN echo 'it'"'"'s' "$HOME" \d`, []string{"/bin/sh", "-c", `echo 'it'"'"'s' "$HOME" \d`}},
		{`RUN ["echo", "$HOME"]`, []string{"echo", "$HOME"}},
		// entrypoint
		{`ENTRYPOINT []`, []string{}},
		{`ENTRYPOINT ["sh", "-c", "exec \"$@\"", "--"]`, []string{"sh", "-c", `exec "$@"`, "--"}},
		{`ENTRYPOINT ["sh", "-c", "exec "$@"", "--"]`, []string{"sh", "-c", `exec "$@"`, "--"}},
		{`ENTRYPOINT ["echo", "it's", "a, b"]`, []string{"echo", "it's", "a, b"}},
		// cmd
		{`CMD []`, []string{}},
		{`CMD ["python", "app.py"]`, []string{"python", "app.py"}},
		{`CMD ["grep", "\d+ <"]`, []string{"grep", `\d+ <`}},
		{`CMD ["printf", "a\n"]`, []string{"printf", "a\n"}},
		{`CMD echo "a b"`, []string{"/bin/sh", "-c", `echo "a b"`}},
		// shell
		{`SHELL ["/bin/bash", "-c"]`, []string{"/bin/bash", "-c"}},
		{`SHELL ["/bin/sh", "-c", "echo "x"; sh"]`, []string{"/bin/sh", "-c", `echo "x"; sh`}},
		// workdir
		{`WORKDIR /app`, []string{"/app"}},
		{`WORKDIR '/a b'`, []string{"/a b"}},
		{`WORKDIR '/it'"'"'s'`, []string{"/it's"}},
		{`WORKDIR '/x$PATH'`, []string{"/x$PATH"}},
		{`WORKDIR /x$PATH`, []string{"/x/bin"}},
		// add_local_dir, pip_install_from_requirements, dockerfile_commands
		{`COPY . /`, []string{".", "/"}},
		{`COPY /.requirements.txt /.requirements.txt`, []string{"/.requirements.txt", "/.requirements.txt"}},
		{`COPY ["a b", "/c d/"]`, []string{"a b", "/c d/"}},
		{`COPY a$PATH /b/`, []string{"a/bin", "/b/"}},
	} {
		file, err := parser.Parse(strings.NewReader(strings.Join(steps.Adapt([]string{c.line}), "\n")))
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		parsed, err := instructions.ParseInstruction(file.AST.Children[0])
		if err != nil {
			t.Errorf("%s: %v", c.line, err)
			continue
		}
		if e, ok := parsed.(instructions.SupportsSingleWordExpansion); ok {
			if err := e.Expand(expand); err != nil {
				t.Errorf("%s: %v", c.line, err)
			}
		}
		if got := words(parsed); !slices.Equal(got, c.want) {
			t.Errorf("%s is %q, want %q", c.line, got, c.want)
		}
	}
}

// expand expands the variables of a word as an image build does.
func expand(word string) (string, error) {
	text, _, err := shell.NewLex('\\').ProcessWord(word, shell.EnvsFromSlice([]string{"PATH=/bin"}))
	return text, err
}

// words returns the part of a step that TestSteps compares.
func words(step any) []string {
	command := func(c instructions.ShellDependantCmdLine) []string {
		if c.PrependShell {
			return append([]string{"/bin/sh", "-c"}, c.CmdLine...)
		}
		return c.CmdLine
	}
	switch c := step.(type) {
	case *instructions.RunCommand:
		return command(c.ShellDependantCmdLine)
	case *instructions.EntrypointCommand:
		return command(c.ShellDependantCmdLine)
	case *instructions.CmdCommand:
		return command(c.ShellDependantCmdLine)
	case *instructions.ShellCommand:
		return c.Shell
	case *instructions.WorkdirCommand:
		return []string{c.Path}
	case *instructions.CopyCommand:
		return append(slices.Clone(c.SourcePaths), c.DestPath)
	}
	return nil
}
