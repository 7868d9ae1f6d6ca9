package chat

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	folded     = 5        // shown lines of a tool's output
	diffLines  = 24       // shown lines of a change
	keptOutput = 64 << 10 // kept bytes of a running tool's output
)

// tool is a call of one of the agent's tools.
type tool struct {
	id, name string
	input    json.RawMessage
	parent   string // call of the parent sub-agent
	output   string
	began    time.Time
	took     time.Duration
	failed   bool
	denied   bool
	stopped  bool // with its turn
}

// add adds a piece of output.
func (t *tool) add(text string) {
	t.output += text
	if over := len(t.output) - keptOutput; over > 0 {
		t.output = t.output[over:]
	}
}

// title is the line that names the call.
func (m *Model) title(t *tool) string {
	mark, indent := "● ", ""
	if m.plain {
		mark = ""
	}
	if t.parent != "" {
		indent = "  "
	}
	code := green
	if t.failed {
		code = red
	}
	line := indent + m.in(code, mark) + m.in(bold, Plain(t.name))
	if input := ToolInput(t.input); input != "" {
		line += "  " + expand(input)
	}
	return line
}

// tail returns the last lines of an output and the number of lines above them.
func tail(output string, most int) (lines []string, above int) {
	output = strings.Trim(clean(output), "\n")
	if output == "" {
		return nil, 0
	}
	lines = strings.Split(output, "\n")
	above = max(0, len(lines)-most)
	return lines[above:], above
}

// closed returns the lines of an ended call: its title, and its change or the last lines of its output.
func (m *Model) closed(t *tool) []string {
	title := m.title(t)
	switch {
	case t.denied:
		title += m.in(yellow, "  not allowed")
	case t.stopped:
		title += m.in(yellow, "  stopped")
	case t.failed:
		title += m.in(red, "  failed")
	}
	if t.took >= time.Second {
		title += m.in(dim, "  "+seconds(t.took))
	}
	all := []string{cut(title, m.room())}
	if diff := changes(t.input); len(diff) > 0 && !t.failed {
		return append(all, m.change(diff)...)
	}
	lines, above := tail(t.output, folded)
	if above > 0 {
		all = append(all, m.in(dim, fmt.Sprintf("  … %d lines above; /output shows all", above)))
	}
	for _, line := range lines {
		all = append(all, m.outputLine(line))
	}
	return all
}

func (m *Model) outputLine(line string) string {
	mark := "  │ "
	if m.plain {
		mark = "  "
	}
	return cut(m.in(dim, mark+line), m.room())
}

// change returns the lines of a change in colours.
func (m *Model) change(diff []string) []string {
	more := 0
	if len(diff) > diffLines {
		more = len(diff) - diffLines
		diff = diff[:diffLines]
	}
	var all []string
	for _, line := range diff {
		all = append(all, cut("  "+m.diffLine(line), m.room()))
	}
	if more > 0 {
		all = append(all, m.in(dim, fmt.Sprintf("  … %d more lines; /diff shows all changes", more)))
	}
	return all
}

// diffLine colours a line of a diff.
func (m *Model) diffLine(line string) string {
	switch {
	case strings.HasPrefix(line, "+++"), strings.HasPrefix(line, "---"), strings.HasPrefix(line, "diff "):
		return m.in(bold, line)
	case strings.HasPrefix(line, "+"):
		return m.in(green, line)
	case strings.HasPrefix(line, "-"):
		return m.in(red, line)
	case strings.HasPrefix(line, "@@"):
		return m.in(cyan, line)
	}
	return line
}

// Edit is a replacement of text in a file.
type Edit struct {
	Old *string // nil if the new text is all of the file
	New string
}

// Edits returns the file that the input of an editing tool names, and its replacements; none for other tools.
func Edits(input json.RawMessage) (path string, all []Edit) {
	type edit struct {
		Old      *string `json:"old_string"`
		New      string  `json:"new_string"`
		OldCamel *string `json:"oldString"`
		NewCamel string  `json:"newString"`
	}
	var in struct {
		edit
		Edits   []edit  `json:"edits"`
		File    string  `json:"file_path"`
		Camel   string  `json:"filePath"`
		Content *string `json:"content"`
	}
	if json.Unmarshal(input, &in) != nil || in.File == "" && in.Camel == "" {
		return "", nil
	}
	for _, e := range append([]edit{in.edit}, in.Edits...) {
		switch {
		case e.Old != nil:
			all = append(all, Edit{e.Old, e.New})
		case e.OldCamel != nil:
			all = append(all, Edit{e.OldCamel, e.NewCamel})
		}
	}
	if all == nil && in.Content != nil {
		all = []Edit{{nil, *in.Content}}
	}
	return cmp.Or(in.File, in.Camel), all
}

// changes returns the change that the input of an editing tool describes, as lines of a diff; nil for other tools.
func changes(input json.RawMessage) (all []string) {
	_, edits := Edits(input)
	for _, e := range edits {
		var before []string
		if e.Old != nil {
			before = textLines(*e.Old)
		}
		all = append(all, diff(before, textLines(e.New))...)
	}
	return all
}

func textLines(text string) []string {
	text = strings.TrimSuffix(clean(text), "\n")
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

const (
	around   = 2       // lines of context of a change
	mostDiff = 1 << 20 // cells of the subsequence table; larger changes are shown whole
)

// diff returns the removed and added lines, with a few lines of context.
func diff(before, after []string) []string {
	head := 0
	for head < len(before) && head < len(after) && before[head] == after[head] {
		head++
	}
	end := 0
	for end < len(before)-head && end < len(after)-head && before[len(before)-1-end] == after[len(after)-1-end] {
		end++
	}
	var all []string
	for _, line := range before[max(0, head-around):head] {
		all = append(all, " "+line)
	}
	all = append(all, middle(before[head:len(before)-end], after[head:len(after)-end])...)
	for _, line := range before[len(before)-end : len(before)-end+min(end, around)] {
		all = append(all, " "+line)
	}
	return all
}

// middle compares texts with different first and last lines, by their longest common subsequence.
func middle(before, after []string) (all []string) {
	if len(before)*len(after) > mostDiff {
		for _, line := range before {
			all = append(all, "-"+line)
		}
		for _, line := range after {
			all = append(all, "+"+line)
		}
		return all
	}
	common := make([][]int, len(before)+1)
	for i := range common {
		common[i] = make([]int, len(after)+1)
	}
	for i, b := range slices.Backward(before) {
		for j, a := range slices.Backward(after) {
			if b == a {
				common[i][j] = common[i+1][j+1] + 1
			} else {
				common[i][j] = max(common[i+1][j], common[i][j+1])
			}
		}
	}
	i, j := 0, 0
	for i < len(before) || j < len(after) {
		switch {
		case i < len(before) && j < len(after) && before[i] == after[j]:
			all = append(all, " "+before[i])
			i, j = i+1, j+1
		case i < len(before) && (j == len(after) || common[i+1][j] >= common[i][j+1]):
			all = append(all, "-"+before[i])
			i++
		default:
			all = append(all, "+"+after[j])
			j++
		}
	}
	return all
}
