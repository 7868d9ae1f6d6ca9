package chat

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/charmbracelet/x/ansi"

	"github.com/RelevanceAI/harvest/client/api"
)

// Plain removes all characters that could control a terminal or reorder text: control characters other than
// newline and tab, and Unicode's bidirectional controls.
func Plain(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return r
		case r < ' ', r >= 0x7f && r <= 0x9f, r == 0x200e, r == 0x200f, r >= 0x2028 && r <= 0x202e,
			r >= 0x2066 && r <= 0x2069:
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, ""))
}

// clean is Plain for the output of programs. It removes whole escape sequences, keeps the last text of a line
// that was rewritten with carriage returns, and expands tabs.
func clean(text string) string {
	text = strings.ReplaceAll(ansi.Strip(text), "\r\n", "\n")
	if strings.Contains(text, "\r") {
		lines := strings.Split(text, "\n")
		for i, line := range lines {
			line = strings.TrimRight(line, "\r")
			lines[i] = line[strings.LastIndex(line, "\r")+1:]
		}
		text = strings.Join(lines, "\n")
	}
	return expand(Plain(text))
}

// tabWidth is the distance of tab stops.
const tabWidth = 4

// expand replaces tabs, whose width depends on the column, by spaces.
func expand(text string) string {
	if !strings.Contains(text, "\t") {
		return text
	}
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		var b strings.Builder
		for _, part := range strings.SplitAfter(line, "\t") {
			if head, ok := strings.CutSuffix(part, "\t"); ok {
				b.WriteString(head)
				b.WriteString(strings.Repeat(" ", tabWidth-ansi.StringWidth(b.String())%tabWidth))
				continue
			}
			b.WriteString(part)
		}
		lines[i] = b.String()
	}
	return strings.Join(lines, "\n")
}

const shown = 160 // characters of a tool's input or output on a line

// trimPrompt returns a prompt without empty lines before it and without space after it. Its first line keeps its
// indentation.
func trimPrompt(text string) string {
	text = strings.TrimRightFunc(text, unicode.IsSpace)
	for {
		line, rest, more := strings.Cut(text, "\n")
		if !more || strings.TrimSpace(line) != "" {
			return text
		}
		text = rest
	}
}

// Plan returns the steps of an agent's plan on one line.
func Plan(steps []api.PlanStep) string {
	var all []string
	for _, s := range steps {
		mark := ""
		if s.Status == "completed" {
			mark = "✓ "
		}
		all = append(all, mark+FirstLine(s.Text))
	}
	return strings.Join(all, "; ")
}

// FirstLine returns the first line of a text, shortened and cleaned by Plain.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(Plain(text)), "\n")
	if runes := []rune(line); len(runes) > shown {
		return string(runes[:shown]) + "…"
	}
	return line
}

// ToolInput returns the most important part of a tool's input, on one line.
func ToolInput(input json.RawMessage) string {
	var fields map[string]any
	if json.Unmarshal(input, &fields) != nil {
		return ""
	}
	for _, name := range []string{"command", "file_path", "filePath", "path", "pattern", "query", "url",
		"description", "plan"} {
		if text, ok := fields[name].(string); ok {
			return FirstLine(text)
		}
	}
	if asked := questionsIn(input); len(asked) > 0 {
		return FirstLine(strings.Join(asked, " "))
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(fields)) { // JSON of all would double backslashes
		value, ok := fields[name].(string)
		if !ok {
			text, _ := json.Marshal(fields[name]) // it was JSON
			value = string(text)
		}
		all = append(all, name+": "+value)
	}
	return FirstLine(strings.Join(all, ", "))
}

// questionsIn returns the texts of the questions in the input of a tool that asks the user.
func questionsIn(input json.RawMessage) (all []string) {
	var fields struct {
		Questions []struct{ Question string }
	}
	if json.Unmarshal(input, &fields) == nil {
		for _, q := range fields.Questions {
			all = append(all, q.Question)
		}
	}
	return all
}

// wrap breaks styled text into lines of at most width columns; width 0 breaks nothing. Further lines begin with hang.
func wrap(text string, width int, hang string) []string {
	if width <= 0 {
		return strings.Split(text, "\n")
	}
	if !strings.Contains(text, "\n") && ansi.StringWidth(text) <= width {
		return []string{text}
	}
	var all []string
	room := max(width-ansi.StringWidth(hang), 8)
	for i, line := range balanced(strings.Split(ansi.Wrap(text, room, ""), "\n")) {
		if i > 0 {
			line = hang + line
		}
		all = append(all, line)
	}
	return all
}

// balanced closes the styles that span a line break and reopens them in the next line, because lines are shown
// separately.
func balanced(lines []string) []string {
	open := map[string]string{} // by closing code
	for i, line := range lines {
		before := ""
		for _, end := range slices.Sorted(maps.Keys(open)) {
			before += "\x1b[" + open[end] + "m"
		}
		for rest := line; ; {
			var code string
			var ok bool
			if _, rest, ok = strings.Cut(rest, "\x1b["); !ok {
				break
			}
			code, rest, _ = strings.Cut(rest, "m")
			for _, style := range styles {
				if begin, end, _ := strings.Cut(style, ";"); code == begin {
					open[end] = begin
				} else if code == end {
					delete(open, end)
				}
			}
		}
		if len(open) > 0 {
			line += "\x1b[0m"
		}
		lines[i] = before + line
	}
	return lines
}

// cut shortens a styled line to width columns.
func cut(line string, width int) string {
	if width <= 0 {
		return line
	}
	return ansi.Truncate(line, width, "…")
}

// seconds formats a duration for people, in whole seconds.
func seconds(d time.Duration) string {
	s := int(max(0, d) / time.Second)
	if s < 60 {
		return fmt.Sprintf("%d s", s)
	}
	return fmt.Sprintf("%d min %02d s", s/60, s%60)
}

// style draws text with colours and weights, or not at all.
type style struct{ on bool }

// Codes of ECMA-48 that switch a style on, and those that switch it off.
const (
	bold      = "1;22"
	dim       = "2;22"
	italic    = "3;23"
	underline = "4;24"
	strike    = "9;29"
	red       = "31;39"
	green     = "32;39"
	yellow    = "33;39"
	blue      = "34;39"
	cyan      = "36;39"
)

var styles = []string{bold, dim, italic, underline, strike, red, green, yellow, blue, cyan}

// in returns styled text. It styles each line separately, so that lines can be cut out.
func (s style) in(code, text string) string {
	if !s.on || text == "" {
		return text
	}
	begin, end, _ := strings.Cut(code, ";")
	begin, end = "\x1b["+begin+"m", "\x1b["+end+"m"
	return begin + strings.ReplaceAll(text, "\n", end+"\n"+begin) + end
}

// Option returns the change of an option, "model", "effort" or "approval". The values "default" and "none" stand for
// its absence.
func Option(name, value string) (change api.SessionChange) {
	if value == "default" || value == "none" {
		value = ""
	}
	switch name {
	case "model":
		change.Model = &value
	case "effort":
		change.Effort = &value
	case "approval":
		change.Approval = &value
	}
	return change
}

// Changed describes the options of a session after a change.
func Changed(c *api.Changed) string {
	if c == nil {
		return "the options have changed"
	}
	text := fmt.Sprintf("from the next prompt: model %s, effort %s, approval %s", cmp.Or(Plain(c.Model), "default"),
		cmp.Or(Plain(c.Effort), "default"), cmp.Or(Plain(c.Approval), "none"))
	if l := c.Limits; l != (api.SessionLimits{}) {
		text += "; limits (0 is none):"
		text += fmt.Sprintf(" %d turns, %g s a turn, %g USD", l.Turns, l.Seconds, l.USD)
	}
	return text
}
