package steps_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"

	"github.com/RelevanceAI/harvest/modalapi/steps"
)

// TestExpanding reads the commands as an image build does. The values are quoted as Python's shlex.quote does.
// mission: 8.1
func TestExpanding(t *testing.T) {
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
		commands := steps.Expanding(strings.Split(line, "\n"))
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
		if err := command.Expand(func(word string) (string, error) {
			text, _, err := shell.NewLex('\\').ProcessWord(word, shell.EnvsFromSlice([]string{"PATH=/bin"}))
			return text, err
		}); err != nil {
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
	if got := steps.Expanding(other); !slices.Equal(got, other) {
		t.Errorf("other commands are %q", got)
	}
}
