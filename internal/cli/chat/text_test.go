package chat

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
)

func TestPlainAndClean(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"a\x1b]52;c;x\x07b\tc\nd": "a]52;c;xb\tc\nd", "\u009b2J": "2J", "a\u202eb\u2066c": "abc", "\xff": "",
		"ü漢": "ü漢",
	} {
		if got := Plain(text); got != want {
			t.Errorf("Plain(%q) = %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"\x1b[31mred\x1b[0m": "red", "10%\r50%\r100%\nnext\r\n": "100%\nnext\n", "a\tb": "a   b", "漢\tb": "漢  b",
		"\x1b]8;;http://x\x07y\x1b]8;;\x07": "y",
	} {
		if got := clean(text); got != want {
			t.Errorf("clean(%q) = %q, want %q", text, got, want)
		}
	}
	if got := FirstLine(strings.Repeat("ü", 200)); got != strings.Repeat("ü", 160)+"…" {
		t.Errorf("%q", got)
	}
	for input, want := range map[string]string{`{"command":"ls\n-la"}`: "ls",
		`{"n":1,"dir":"C:\\x"}`: `dir: C:\x, n: 1`, `{}`: "", `7`: "",
		`{"questions":[{"question":"Which?","options":[{"label":"a"}]},{"question":"When?"}]}`: "Which? When?",
		`{"questions":[]}`: `questions: []`, `{"plan":"1. look\n2. do it"}`: "1. look"} {
		if got := ToolInput(json.RawMessage(input)); got != want {
			t.Errorf("%s: %q", input, got)
		}
	}
}

// TestWrapStyles checks that a style that crosses the end of a line is closed there, and reopened on the next one.
func TestWrapStyles(t *testing.T) {
	t.Parallel()
	s := style{true}
	lines := wrap("some "+s.in(bold, "words that "+s.in(red, "are long")+" enough")+" here", 12, "  ")
	for i, line := range lines {
		if ansi.StringWidth(line) > 12 {
			t.Errorf("%q is too wide", line)
		}
		if i > 0 && !strings.HasPrefix(line, "  ") {
			t.Errorf("%q does not hang", line)
		}
	}
	if all := ansi.Strip(strings.Join(lines, "\n")); all != "some words\n  that are\n  long\n  enough\n  here" {
		t.Errorf("%q", all)
	}
	if !strings.HasSuffix(lines[0], "\x1b[0m") || !strings.HasPrefix(lines[1], "  \x1b[1m") ||
		strings.Contains(lines[4], "\x1b[1m") {
		t.Errorf("%q", lines)
	}
	if got := wrap("a b", 0, ""); !slices.Equal(got, []string{"a b"}) {
		t.Errorf("%q", got)
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	s := style{false}
	for source, want := range map[string]string{
		"# Title\n\nText *it* **bold** `code`.": "Title\n\nText it bold `code`.",
		"- a\n- b\n  - c\n- d":                  "• a\n• b\n  • c\n• d",
		"3. x\n4. y":                            "3. x\n4. y",
		"- a\n\n- b":                            "• a\n\n• b",
		"> quoted\n> text":                      "│ quoted\n│ text",
		"```go\nfunc x() {\n\treturn\n}\n```":   "```go\nfunc x() {\n    return\n}\n```",
		"    indented":                          "```\nindented\n```",
		"[Go](https://go.dev) <https://x.org>":  "Go (https://go.dev) https://x.org",
		"[](https://go.dev) ![alt](a.png)":      "https://go.dev alt (a.png)",
		"---":                                   strings.Repeat("─", 40),
		"<div>\nx\n</div>":                      "<div>\nx\n</div>",
		"a <b>c</b>":                            "a <b>c</b>",
		`1 \* 2 &lt; 3`:                         "1 * 2 < 3",
		"first\nsecond":                         "first\nsecond",
		"| a | b |\n|---|:-:|\n| 1 | `x` |\n| 漢 | 2 |": "a   b\n───────\n1   `x`\n漢  2",
		"| a |\nno table": "| a |\nno table",
		"":                "",
	} {
		if got := strings.Join(s.markdown(source, 60), "\n"); got != want {
			t.Errorf("%q:\n%s\nwant:\n%s", source, got, want)
		}
	}
	narrow := strings.Join(s.markdown("| name | meaning |\n|---|---|\n| one | "+strings.Repeat("word ",
		10)+"| too many |\n| two | 2 |", 30), "\n")
	if !strings.HasPrefix(narrow, "name: one\nmeaning: word word word word\n  word") ||
		!strings.HasSuffix(narrow, "\n\nname: two\nmeaning: 2") {
		t.Errorf("%s", narrow)
	}
	colours := style{true}
	if got := strings.Join(colours.markdown("# A\n\n`x` **y** *z* [l](u)\n\n```\ncode\n```", 0),
		"\n"); strings.Contains(got, "`x`") || ansi.Strip(got) != "A\n\nx y z l (u)\n\n```\ncode\n```" {
		t.Errorf("%q", got)
	}
	for _, source := range []string{strings.Repeat("wörter ", 50), "- " + strings.Repeat("x", 200),
		"> > - " + strings.Repeat("漢", 90)} {
		for _, line := range s.markdown(source, 40) {
			if w := ansi.StringWidth(line); w > 40 {
				t.Errorf("%d columns: %q", w, line)
			}
		}
	}
}

// TestBlocks checks that a text gives the same blocks for each way to cut it into pieces.
func TestBlocks(t *testing.T) {
	t.Parallel()
	const source = "One.\nStill one.\n\n- a\n\n  more of a\n- b\n\nText\n```sh\necho\n\necho\n```\nAfter\n\n~~~\n" +
		"```\n~~~\n\nEnd"
	want := []string{"One.\nStill one.\n\n", "- a\n\n  more of a\n- b\n\n", "Text\n```sh\necho\n\necho\n```\n",
		"After\n\n", "~~~\n```\n~~~\n"}
	if complete, rest := blocks(source); !slices.Equal(complete, want) || rest != "\nEnd" {
		t.Errorf("%q, %q", complete, rest)
	}
	for size := 1; size < 9; size++ {
		var all []string
		rest := ""
		for i := 0; i < len(source); i += size {
			var complete []string
			complete, rest = blocks(rest + source[i:min(i+size, len(source))])
			all = append(all, complete...)
		}
		if strings.Join(all, "")+rest != source || len(all) != len(want) {
			t.Errorf("in pieces of %d: %q, %q", size, all, rest)
		}
	}
}

func FuzzMarkdown(f *testing.F) {
	f.Add("# a\n\n- b\n\n```\nc", 40)
	f.Add("| a |\n|---|\n| \x1b[2J |", 10)
	f.Add("&#27;[x](y)\u202e", 0)
	f.Fuzz(func(t *testing.T, source string, width int) {
		complete, rest := blocks(source)
		if strings.Join(complete, "")+rest != source {
			t.Errorf("blocks of %q lose text", source)
		}
		for _, line := range (style{}).markdown(source, width%200) {
			if Plain(line) != line || strings.Contains(line, "\n") {
				t.Errorf("%q", line)
			}
		}
	})
}

func TestChanges(t *testing.T) {
	t.Parallel()
	for input, want := range map[string]string{
		`{"file_path":"f","old_string":"1\n2\n3\n4\n5","new_string":"1\n2\n3\nx\n5"}`:                         " 2| 3|-4|+x| 5",
		`{"filePath":"f","oldString":"a\nb","newString":"b\nc"}`:                                              "-a| b|+c",
		`{"file_path":"f","edits":[{"old_string":"a","new_string":"b"},{"old_string":"c","new_string":"d"}]}`: "-a|+b|-c|+d",
		`{"file_path":"f","content":"x\ny\n"}`:                                                                "+x|+y",
		`{"file_path":"f"}`:                                                                                   "",
		`{"content":"x"}`:                                                                                     "",
		`[]`:                                                                                                  "",
		`{"file_path":"f","old_string":"a","new_string":""}`:                                                  "-a",
	} {
		if got := strings.Join(changes(json.RawMessage(input)), "|"); got != want {
			t.Errorf("%s: %q, want %q", input, got, want)
		}
	}
	long := make([]string, 1100)
	if got := diff(append([]string{"a"}, long...),
		append([]string{"b"}, append(long[:1000:1000], "c")...)); len(got) != 2103 {
		t.Errorf("%d lines", len(got))
	}
	m := newSeat(t).Model
	m.style = style{true}
	lines := m.change(diff(nil, long[:50]))
	if len(lines) != diffLines+1 || !strings.Contains(lines[0], "\x1b[32m+") ||
		!strings.Contains(lines[diffLines], "26 more lines") {
		t.Errorf("%q", lines)
	}
	for _, line := range []string{"+++ b/x", "-x", "@@ 1 @@", "diff --git"} {
		if m.diffLine(line) == line {
			t.Errorf("%q has no colour", line)
		}
	}
	running := tool{}
	running.add(strings.Repeat("x", keptOutput) + "end")
	if len(running.output) != keptOutput || !strings.HasSuffix(running.output, "end") {
		t.Errorf("%d bytes kept", len(running.output))
	}
}
