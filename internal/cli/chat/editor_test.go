package chat

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/charmbracelet/x/vt"
)

// TestKeys checks that keys and pastes are decoded from pieces of any size.
func TestKeys(t *testing.T) {
	t.Parallel()
	const input = "aü漢\x1b[A\x1bOB\x1b[1;5C\x1b[3~\r\n\x7f\x01\x1b\r\x1b[200~x\r\n" +
		"y\x1b[31m\x1b[201~\x1b[99~\x1bz\x1b\x1b[D\x00"
	const want = "[text:a][text:ü][text:漢][up][down][word " +
		"right][delete][enter][newline][backspace][home][newline][text:x\ny[31m][esc][left]"
	for size := 1; size <= len(input); size++ {
		var d decoder
		var got strings.Builder
		show := func(keys []key) {
			for _, k := range keys {
				if k.name != "" {
					fmt.Fprintf(&got, "[%s]", k.name)
				} else if strings.Contains(k.text, "\n") {
					fmt.Fprintf(&got, "[text:%s]", k.text)
				} else {
					for _, r := range k.text {
						fmt.Fprintf(&got, "[text:%c]", r)
					}
				}
			}
		}
		for i := 0; i < len(input); i += size {
			show(d.decode([]byte(input[i:min(i+size, len(input))])))
		}
		show(d.flush())
		if got.String() != want {
			t.Fatalf("in pieces of %d: %q, want %q", size, got.String(), want)
		}
	}
	var d decoder
	if keys := d.decode([]byte("\x1b")); len(keys) != 0 || !d.waits() {
		t.Errorf("%v", keys)
	}
	if keys := d.flush(); len(keys) != 1 || keys[0].name != "esc" {
		t.Errorf("%v", keys)
	}
	for _, part := range []string{"\x1b[1", "\x1bO", "\xe6"} {
		if keys := append(d.decode([]byte(part)), d.flush()...); len(keys) != 0 {
			t.Errorf("%q: %v", part, keys)
		}
	}
	if d.decode([]byte(pasteBegin + "x")); d.waits() {
		t.Error("a paste has no time limit")
	}
}

func TestEditor(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ typed, want string }{
		{"abc\x1b[D\x1b[Dx", "ax|bc"},
		{"one two three\x17", "one two |"},
		{"one two\x1bb\x1bbx", "x|one two"},
		{"one two\x01\x1bfx", "onex| two"},
		{"one two\x01\x1bf\x1bf\x1bfx", "one twox|"},
		{"one two\x01\x1b[C\x0b", "o|"},
		{"one two\x1b[D\x15", "|o"},
		{"a\nb", "a\nb|"},
		{"one\ntwo\x1b[A\x05x", "onex|\ntwo"},
		{"one\nlonger\x1b[A\x1b[Bx", "one\nlonxger"},
		{"one\ntwo\x1b[A\x1b[A", "last|"},
		{"x\x1b[A\x1b[A\x1b[A", "first|"},
		{"x\x1b[A\x1b[B\x1b[B", "x|"},
		{"👨‍👩‍👧é\x7f\x7f", "|"},
		{"ab\x01\x04", "|b"},
		{"漢字\x1b[D\x1b[3~", "漢|"},
		{"abc\x1b[1;5Dx", "x|abc"},
	} {
		e := editor{history: []string{"first", "last"}}
		var d decoder
		for _, k := range append(d.decode([]byte(c.typed)), d.flush()...) {
			e.press(k)
		}
		if got := e.text[:e.at] + "|" + e.text[e.at:]; got != c.want && strings.Replace(got, "|", "", 1) != c.want {
			t.Errorf("%q: %q, want %q", c.typed, got, c.want)
		}
	}
	e := editor{}
	e.remember("a")
	e.remember("a")
	e.remember("")
	if len(e.history) != 1 || e.press(key{name: "unknown"}) {
		t.Errorf("%q", e.history)
	}
}

func TestEditorView(t *testing.T) {
	t.Parallel()
	e := editor{}
	e.set("ab\ncd\tx")
	if lines, row, column := e.view("› ", 20, 5); fmt.Sprintf("%q %d %d", lines, row,
		column) != `["› ab" "  cd    x"] 1 9` {
		t.Errorf("%q %d %d", lines, row, column)
	}
	e.set("0123456789漢字")
	if lines, row, column := e.view("› ", 10, 5); fmt.Sprintf("%q %d %d", lines, row,
		column) != `["› 0123456" "  789漢字" "  "] 2 2` {
		t.Errorf("%q %d %d", lines, row, column)
	}
	e.set(strings.Repeat("line\n", 20))
	if lines, row, _ := e.view("› ", 10, 3); len(lines) != 3 || row != 2 {
		t.Errorf("%q %d", lines, row)
	}
	e.at = 0
	if lines, row, _ := e.view("› ", 10, 3); len(lines) != 3 || row != 0 || lines[0] != "› line" {
		t.Errorf("%q %d", lines, row)
	}
}

// TestSeveralLines checks that several lines can be typed with Alt-Enter, Ctrl-J or a backslash, and sent with Enter.
func TestSeveralLines(t *testing.T) {
	t.Parallel()
	s := newSeat(t)
	s.typed("a\x1b\rb\nc\\\rd\r")
	if a := s.acted(); len(a) != 1 || a[0].Text != "a\nb\nc\nd" {
		t.Errorf("%+v", a)
	}
	s.typed("\r  \r")
	if a := s.acted(); len(a) != 0 {
		t.Errorf("empty lines: %+v", a)
	}
	s.typed("x\x04\x01\x04")
	if s.Done() || s.editor.text != "" {
		t.Errorf("%q", s.editor.text)
	}
	s.typed("\x1b[A")
	s.has(s.screen(), "› a\n  b\n  c\n  d")
}

// TestScreen checks that printed text scrolls away completely, and that the rest is drawn below it, also when the
// terminal gets narrower.
func TestScreen(t *testing.T) {
	t.Parallel()
	term := vt.NewEmulator(40, 8)
	defer term.Close()
	s := &screen{out: term, width: 40}
	draw := func(printed []string, live ...string) {
		t.Helper()
		if err := s.draw(printed, frame{lines: live, row: max(0, len(live)-2), column: 2}); err != nil {
			t.Fatal(err)
		}
	}
	draw(nil, "> prompt", "status")
	if got := strings.TrimRight(term.String(), "\n"); got != "> prompt\nstatus" {
		t.Errorf("%q", got)
	}
	var many []string
	for i := range 30 {
		many = append(many, fmt.Sprint("line ", i))
	}
	draw(many, "live", "> prompt", "status")
	if got := term.String(); got != "line 25\nline 26\nline 27\nline 28\nline 29\nlive\n> prompt\nstatus" {
		t.Errorf("%q", got)
	}
	if at := term.CursorPosition(); at.X != 2 || at.Y != 6 {
		t.Errorf("cursor at %v", at)
	}
	if n := term.ScrollbackLen(); n != 25 {
		t.Errorf("%d lines have scrolled away, 25 were printed", n)
	}
	draw(nil, "> prompt", "status")
	var out bytes.Buffer
	s.out = &out
	draw(nil, "> prompt", "status")
	if out.Len() > 0 {
		t.Errorf("drawn again without a change: %q", out.String())
	}
	s.last = frame{lines: []string{strings.Repeat("x", 39), "> p"}, row: 1, column: 2}
	s.width = 20
	var b strings.Builder
	if s.clear(&b); b.String() != "\r\x1b[2A\x1b[J" {
		t.Errorf("a line that takes two rows now: %q", b.String())
	}
	s.last = frame{lines: []string{"> p"}, column: 30}
	b.Reset()
	if s.clear(&b); b.String() != "\r\x1b[1A\x1b[J" {
		t.Errorf("a cursor that is in the next row now: %q", b.String())
	}
	if err := s.close([]string{"bye"}); err != nil || !strings.Contains(out.String(), "bye\r\n"+end) {
		t.Errorf("%v, %q", err, out.String())
	}
}
