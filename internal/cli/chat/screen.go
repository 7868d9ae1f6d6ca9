package chat

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/charmbracelet/x/ansi"
)

// frame is the part of the screen that is redrawn, below the permanent lines.
type frame struct {
	lines       []string // none of them wider than the terminal
	row, column int      // of the cursor
}

// screen draws on a terminal. Each drawing is one write of a synchronized update, which terminals show at once.
type screen struct {
	out   io.Writer
	width int
	last  frame
}

// begin prepares the terminal, and end restores it.
const (
	begin = "\x1b[?2004h" // bracketed paste
	end   = "\x1b[?2004l\x1b[?25h"
)

// draw prints permanent lines, which scroll away like those of any program, and draws the frame below them.
func (s *screen) draw(printed []string, f frame) error {
	if len(printed) == 0 && slices.Equal(f.lines, s.last.lines) && f.row == s.last.row && f.column == s.last.column {
		return nil
	}
	var b strings.Builder
	b.WriteString("\x1b[?2026h\x1b[?25l")
	s.clear(&b)
	for _, line := range printed {
		b.WriteString(line + "\r\n")
	}
	b.WriteString(strings.Join(f.lines, "\r\n"))
	if up := len(f.lines) - 1 - f.row; up > 0 {
		fmt.Fprintf(&b, "\x1b[%dA", up)
	}
	b.WriteString("\r")
	if f.column > 0 {
		fmt.Fprintf(&b, "\x1b[%dC", f.column)
	}
	b.WriteString("\x1b[?25h\x1b[?2026l")
	s.last = f
	_, err := io.WriteString(s.out, b.String())
	return err
}

// clear removes the frame. A terminal that became narrower has wrapped its lines.
func (s *screen) clear(b *strings.Builder) {
	up := 0
	for i, line := range s.last.lines {
		if i >= s.last.row {
			break
		}
		up++
		if w := ansi.StringWidth(line); s.width > 0 && w > s.width {
			up += (w - 1) / s.width
		}
	}
	if s.width > 0 && s.last.column >= s.width {
		up += s.last.column / s.width
	}
	b.WriteString("\r")
	if up > 0 {
		fmt.Fprintf(b, "\x1b[%dA", up)
	}
	b.WriteString("\x1b[J")
	s.last = frame{}
}

// close removes the frame, prints the last lines, and restores the terminal.
func (s *screen) close(printed []string) error {
	var b strings.Builder
	s.clear(&b)
	for _, line := range printed {
		b.WriteString(line + "\r\n")
	}
	b.WriteString(end)
	_, err := io.WriteString(s.out, b.String())
	return err
}
