package docs

import (
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

// command is a shell command of a page.
type command struct {
	line int      // in the page, from 1
	text string   // may have several lines
	out  []string // output that the page shows, if any
}

// key is the text by which the tables of this package name the command: its first line without a comment.
func (c command) key() string {
	first, _, _ := strings.Cut(c.text, "\n")
	return strings.TrimSpace(comment.ReplaceAllString(first, ""))
}

var (
	comment  = regexp.MustCompile(`(^|\s)\s*#( .*)?$`)
	document = regexp.MustCompile(`<<-?\s*'?"?([A-Za-z]+)'?"?`)
)

// commandsOf returns the commands in the fenced blocks of a page: those of the languages sh and console. Invalid if a
// block without a language has commands of harvest, because a page must not hide commands from this test.
func commandsOf(page string) ([]command, error) {
	var all []command
	lines := strings.Split(page, "\n")
	for i := 0; i < len(lines); i++ {
		language, ok := strings.CutPrefix(strings.TrimSpace(lines[i]), "```")
		if !ok {
			continue
		}
		length := slices.IndexFunc(lines[i+1:], func(l string) bool { return strings.TrimSpace(l) == "```" })
		if length < 0 {
			return nil, errors.Newf(errors.Invalid, "line %d: the block has no end", i+1)
		}
		block := lines[i+1 : i+1+length]
		switch language {
		case "sh", "bash", "shell":
			all = append(all, commandsIn(block, i+2)...)
		case "console":
			all = append(all, dialogue(block, i+2)...)
		case "":
			if slices.ContainsFunc(block, func(l string) bool {
				return strings.HasPrefix(strings.TrimPrefix(l, "$ "), "harvest ")
			}) {
				return nil, errors.Newf(errors.Invalid, "line %d: the block has commands; mark it with ```sh", i+1)
			}
		}
		i += length + 1
	}
	return all, nil
}

// commandsIn returns the commands of a block that begins at a line of the page. Lines that end with a backslash
// continue, and here documents belong to their command.
func commandsIn(block []string, line int) []command {
	var all []command
	for i := 0; i < len(block); i++ {
		if text := strings.TrimSpace(block[i]); text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		c := command{line: line + i, text: block[i]}
		for strings.HasSuffix(block[i], `\`) && i+1 < len(block) {
			i++
			c.text += "\n" + block[i]
		}
		if m := document.FindStringSubmatch(c.text); m != nil {
			for i+1 < len(block) {
				i++
				c.text += "\n" + block[i]
				if block[i] == m[1] {
					break
				}
			}
		}
		all = append(all, c)
	}
	return all
}

// dialogue returns the commands of a block in which each follows "$ ", with the output that the block shows.
func dialogue(block []string, line int) []command {
	var all []command
	for i, l := range block {
		if text, ok := strings.CutPrefix(l, "$ "); ok {
			all = append(all, command{line: line + i, text: text})
		} else if len(all) > 0 && l != "" {
			all[len(all)-1].out = append(all[len(all)-1].out, l)
		}
	}
	return all
}

func TestCommandsOfAPage(t *testing.T) {
	t.Parallel()
	got, err := commandsOf("# Page\n```sh\nharvest up &   # in the background\n\n# a comment\nharvest run \\\n" +
		"  -- true\n" +
		"python - <<'PY'\n\nprint(1)\nPY\nharvest sandbox ls\n```\n```console\n$ harvest run --code 'print(1)'\n1\n" +
		"$ harvest down\n```\n```\nsome output\n```\n")
	if err != nil {
		t.Fatal(err)
	}
	want := []command{
		{line: 3, text: "harvest up &   # in the background"}, {line: 6, text: "harvest run \\\n  -- true"},
		{line: 8, text: "python - <<'PY'\n\nprint(1)\nPY"}, {line: 12, text: "harvest sandbox ls"},
		{line: 15, text: "harvest run --code 'print(1)'", out: []string{"1"}}, {line: 17, text: "harvest down"},
	}
	if !slices.EqualFunc(got, want, func(a, b command) bool {
		return a.line == b.line && a.text == b.text && slices.Equal(a.out, b.out)
	}) {
		t.Errorf("%+v\nwant\n%+v", got, want)
	}
	if key := got[0].key(); key != "harvest up &" {
		t.Errorf("key %q", key)
	}
	if key := (command{text: "harvest agent --also https://example.org/a#main  # more"}).key(); key !=
		"harvest agent --also https://example.org/a#main" {
		t.Errorf("key %q", key)
	}
	for _, page := range []string{"```sh\nharvest up\n", "```\nharvest up\n```\n"} {
		if _, err := commandsOf(page); !errors.Is(err, errors.Invalid) {
			t.Errorf("%q: %v", page, err)
		}
	}
}
