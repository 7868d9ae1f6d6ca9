package chat

import (
	"strings"
	"unicode"

	"github.com/charmbracelet/x/ansi"
	"github.com/rivo/uniseg"
)

// editor is the prompt: lines of text, a cursor, and the texts that were sent before.
type editor struct {
	text    string
	at      int // the cursor, in bytes
	history []string
	back    int    // how far back in the history; 0 is the text that is being written
	kept    string // that text, while an older one is shown
}

// set replaces the text.
func (e *editor) set(text string) { e.text, e.at = text, len(text) }

// take empties the editor and returns its text.
func (e *editor) take() string {
	text := e.text
	e.set("")
	e.back, e.kept = 0, ""
	return text
}

// remember adds a text to the history.
func (e *editor) remember(text string) {
	if n := len(e.history); text != "" && (n == 0 || e.history[n-1] != text) {
		e.history = append(e.history, text)
	}
}

// press applies a key to the text and reports whether the key has a meaning.
func (e *editor) press(k key) bool {
	switch k.name {
	case "":
		e.insert(k.text)
	case "newline":
		e.insert("\n")
	case "left":
		e.at -= e.before()
	case "right":
		e.at += e.after()
	case "word left":
		e.at = e.wordLeft()
	case "word right":
		e.at = e.wordRight()
	case "home":
		e.at = e.lineStart()
	case "end":
		e.at = e.lineEnd()
	case "up":
		e.up()
	case "down":
		e.down()
	case "backspace":
		e.remove(e.at-e.before(), e.at)
	case "delete", "ctrl+d":
		e.remove(e.at, e.at+e.after())
	case "delete word":
		e.remove(e.wordLeft(), e.at)
	case "delete to end":
		e.remove(e.at, e.lineEnd())
	case "delete to start":
		e.remove(e.lineStart(), e.at)
	default:
		return false
	}
	return true
}

func (e *editor) insert(text string) {
	e.text = e.text[:e.at] + text + e.text[e.at:]
	e.at += len(text)
}

func (e *editor) remove(from, to int) {
	e.text = e.text[:from] + e.text[to:]
	e.at = from
}

// after returns the length of the grapheme cluster behind the cursor.
func (e *editor) after() int {
	cluster, _, _, _ := uniseg.FirstGraphemeClusterInString(e.text[e.at:], -1)
	return len(cluster)
}

// before returns the length of the grapheme cluster in front of the cursor.
func (e *editor) before() int {
	n := 0
	for rest, state := e.text[:e.at], -1; rest != ""; {
		var cluster string
		cluster, rest, _, state = uniseg.FirstGraphemeClusterInString(rest, state)
		n = len(cluster)
	}
	return n
}

func (e *editor) lineStart() int { return strings.LastIndex(e.text[:e.at], "\n") + 1 }

func (e *editor) lineEnd() int {
	if i := strings.Index(e.text[e.at:], "\n"); i >= 0 {
		return e.at + i
	}
	return len(e.text)
}

func (e *editor) wordLeft() int {
	head := strings.TrimRightFunc(e.text[:e.at], unicode.IsSpace)
	return strings.LastIndexFunc(head, unicode.IsSpace) + 1
}

func (e *editor) wordRight() int {
	tail := strings.TrimLeftFunc(e.text[e.at:], unicode.IsSpace)
	end := strings.IndexFunc(tail, unicode.IsSpace)
	if end < 0 {
		return len(e.text)
	}
	return len(e.text) - len(tail) + end
}

// up moves the cursor up a line, or shows the previous text of the history.
func (e *editor) up() {
	start := e.lineStart()
	if start == 0 {
		e.older(1)
		return
	}
	column := uniseg.StringWidth(e.text[start:e.at])
	e.at = start - 1
	e.toColumn(column)
}

// down moves the cursor down a line, or shows the next text of the history.
func (e *editor) down() {
	end := e.lineEnd()
	if end == len(e.text) {
		e.older(-1)
		return
	}
	column := uniseg.StringWidth(e.text[e.lineStart():e.at])
	e.at = end + 1
	e.toColumn(column)
}

// toColumn puts the cursor into a column of its line, or at the line's end.
func (e *editor) toColumn(column int) {
	end := e.lineEnd()
	e.at = e.lineStart()
	for e.at < end && column > 0 {
		n := e.after()
		column -= max(1, uniseg.StringWidth(e.text[e.at:e.at+n]))
		e.at += n
	}
}

// older shows a text of the history, further back by n.
func (e *editor) older(n int) {
	back := e.back + n
	if back < 0 || back > len(e.history) {
		return
	}
	if e.back == 0 {
		e.kept = e.text
	}
	e.back = back
	if back == 0 {
		e.set(e.kept)
		return
	}
	e.set(e.history[len(e.history)-back])
}

// view returns the text as rows of at most width columns, each behind its mark, and where the cursor is. At most
// rows are shown, those around the cursor.
func (e *editor) view(mark string, width, rows int) (lines []string, row, column int) {
	indent := strings.Repeat(" ", ansi.StringWidth(mark))
	room := max(width-len(indent)-1, 1)
	line, used := mark, 0
	newLine := func() {
		lines = append(lines, line)
		line, used = indent, 0
	}
	found := false
	for rest, state, at := e.text, -1, 0; ; {
		if at == e.at {
			if used >= room {
				newLine()
			}
			row, column, found = len(lines), len(indent)+used, true
		}
		if rest == "" {
			break
		}
		var cluster string
		cluster, rest, _, state = uniseg.FirstGraphemeClusterInString(rest, state)
		at += len(cluster)
		if cluster == "\n" {
			newLine()
			continue
		}
		if cluster == "\t" {
			cluster = strings.Repeat(" ", tabWidth)
		}
		w := ansi.StringWidth(cluster)
		if used+w > room {
			newLine()
		}
		line += cluster
		used += w
	}
	lines = append(lines, line)
	if !found {
		row, column = len(lines)-1, len(indent)+used
	}
	if from := min(max(0, row-rows+1), max(0, len(lines)-rows)); len(lines) > rows {
		lines, row = lines[from:from+rows], row-from
	}
	return lines, row, column
}
