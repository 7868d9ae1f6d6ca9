package chat

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/x/ansi"
	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// blocks divides a growing Markdown text into complete blocks and the rest. A block ends at a blank line or
// with its fence.
func blocks(source string) (complete []string, rest string) {
	begin, fence := 0, ""
	blank := false // the line before is blank
	at := 0
	for line := range strings.Lines(source) {
		whole := strings.HasSuffix(line, "\n")
		bare := strings.TrimSpace(line)
		opens := fenceOf(line)
		switch {
		case fence != "":
			if whole && strings.HasPrefix(bare, fence) && strings.Trim(bare, fence[:1]) == "" {
				fence = ""
				if begin < at && !strings.HasPrefix(line, " ") {
					complete = append(complete, source[begin:at+len(line)])
					begin = at + len(line)
				}
			}
		case bare == "":
		case blank && strings.TrimSpace(source[begin:at]) != "" && !strings.ContainsAny(line[:1], " \t"):
			complete = append(complete, source[begin:at])
			begin, fence = at, opens
		default:
			fence = opens
		}
		blank = whole && bare == "" && fence == ""
		at += len(line)
	}
	return complete, source[begin:]
}

// fenceOf returns the fence that a line opens, "" if it opens none.
func fenceOf(line string) string {
	line = strings.TrimLeft(line, " ")
	for _, c := range []string{"`", "~"} {
		if n := len(line) - len(strings.TrimLeft(line, c)); n >= 3 && (c == "~" || !strings.Contains(line[n:], "`")) {
			return strings.Repeat(c, n)
		}
	}
	return ""
}

// markdown returns a text as lines of at most width columns; width 0 does not break lines. Lines of code are
// never broken, so that they can be copied.
func (s style) markdown(source string, width int) []string {
	source = clean(source)
	if rows := tableOf(source); rows != nil {
		return s.table(rows, width)
	}
	w := writer{style: s, source: []byte(source)}
	doc := goldmark.DefaultParser().Parse(text.NewReader(w.source))
	return w.children(doc, width)
}

// writer renders the syntax tree of a text as lines.
type writer struct {
	style
	source []byte
}

// children returns the lines of the blocks in a node.
func (w *writer) children(n ast.Node, width int) (all []string) {
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		if child != n.FirstChild() && child.Kind() != ast.KindTextBlock && !tight(child) {
			all = append(all, "")
		}
		all = append(all, w.block(child, width)...)
	}
	return all
}

// tight reports whether no blank line belongs in front of a block, as in the items of a tight list.
func tight(n ast.Node) bool {
	for p := n.Parent(); p != nil; p = p.Parent() {
		if list, ok := p.(*ast.List); ok {
			return list.IsTight
		}
	}
	return false
}

func (w *writer) block(n ast.Node, width int) []string {
	switch n := n.(type) {
	case *ast.Heading:
		code := bold
		if n.Level == 1 {
			return wrap(w.in(underline, w.in(bold, w.inline(n))), width, "")
		}
		return wrap(w.in(code, w.inline(n)), width, "")
	case *ast.FencedCodeBlock:
		return w.code(n.Lines(), string(n.Language(w.source)))
	case *ast.CodeBlock:
		return w.code(n.Lines(), "")
	case *ast.Blockquote:
		return prefixed(w.children(n, narrower(width, 2)), w.in(dim, "│ "), w.in(dim, "│ "))
	case *ast.List:
		return w.list(n, width)
	case *ast.ThematicBreak:
		return []string{w.in(dim, strings.Repeat("─", min(40, max(width, 3))))}
	case *ast.HTMLBlock:
		return rawLines(n.Lines(), w.source)
	}
	var all []string
	for _, line := range strings.Split(w.inline(n), "\n") {
		all = append(all, wrap(line, width, "")...)
	}
	return all
}

func narrower(width, by int) int {
	if width <= 0 {
		return width
	}
	return max(width-by, 8)
}

// code returns lines of code between their fences.
func (w *writer) code(segments *text.Segments, language string) []string {
	all := []string{w.in(dim, "```"+Plain(language))}
	for _, line := range rawLines(segments, w.source) {
		all = append(all, w.in(cyan, line))
	}
	return append(all, w.in(dim, "```"))
}

func rawLines(segments *text.Segments, source []byte) []string {
	var b strings.Builder
	for i := range segments.Len() {
		segment := segments.At(i)
		b.Write(segment.Value(source))
	}
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

func (w *writer) list(n *ast.List, width int) (all []string) {
	number := n.Start
	for item := n.FirstChild(); item != nil; item = item.NextSibling() {
		mark := "• "
		if n.IsOrdered() {
			mark = fmt.Sprintf("%d. ", number)
			number++
		}
		if !n.IsTight && item != n.FirstChild() {
			all = append(all, "")
		}
		indent := ansi.StringWidth(mark)
		lines := w.children(item, narrower(width, indent))
		all = append(all, prefixed(lines, w.in(dim, mark), strings.Repeat(" ", indent))...)
	}
	return all
}

// prefixed puts a prefix before the first line, and another one before the rest.
func prefixed(lines []string, first, rest string) []string {
	if len(lines) == 0 {
		return []string{first}
	}
	for i := range lines {
		if i == 0 {
			lines[i] = first + lines[i]
		} else if lines[i] != "" || strings.TrimSpace(rest) != "" {
			lines[i] = rest + lines[i]
		}
	}
	return lines
}

// inline returns the text of a node with its styles.
func (w *writer) inline(n ast.Node) string {
	var b strings.Builder
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		switch c := child.(type) {
		case *ast.Text:
			b.WriteString(literal(c.Segment.Value(w.source)))
			if c.SoftLineBreak() || c.HardLineBreak() {
				b.WriteString("\n")
			}
		case *ast.String:
			b.WriteString(literal(c.Value))
		case *ast.CodeSpan:
			b.WriteString(w.codeSpan(c))
		case *ast.Emphasis:
			code := italic
			if c.Level > 1 {
				code = bold
			}
			b.WriteString(w.in(code, w.inline(c)))
		case *ast.Link:
			b.WriteString(w.link(w.inline(c), string(c.Destination)))
		case *ast.Image:
			b.WriteString(w.link(w.inline(c), string(c.Destination)))
		case *ast.AutoLink:
			b.WriteString(w.in(underline, Plain(string(c.URL(w.source)))))
		case *ast.RawHTML:
			for i := range c.Segments.Len() {
				segment := c.Segments.At(i)
				b.Write(segment.Value(w.source))
			}
		default:
			b.WriteString(w.inline(c))
		}
	}
	return b.String()
}

// literal resolves escapes and entities, and removes control characters that they may contain.
func literal(value []byte) string {
	return Plain(string(util.ResolveEntityNames(util.ResolveNumericReferences(util.UnescapePunctuations(value)))))
}

func (w *writer) codeSpan(n *ast.CodeSpan) string {
	var b strings.Builder
	for child := n.FirstChild(); child != nil; child = child.NextSibling() {
		if t, ok := child.(*ast.Text); ok {
			b.Write(t.Segment.Value(w.source))
		}
	}
	code := strings.ReplaceAll(b.String(), "\n", " ")
	if !w.on {
		return "`" + code + "`"
	}
	return w.in(cyan, code)
}

// link shows the target of a link: a label must not hide it.
func (w *writer) link(label, url string) string {
	url = Plain(url)
	if label == "" || ansi.Strip(label) == url {
		return w.in(underline, url)
	}
	return w.in(underline, label) + w.in(dim, " ("+url+")")
}

// tableOf returns the cells of a Markdown table, nil for any other text.
func tableOf(source string) [][]string {
	lines := strings.Split(strings.TrimSpace(source), "\n")
	if len(lines) < 2 || !strings.HasPrefix(lines[0], "|") || strings.Trim(lines[1], "|-: ") != "" ||
		!strings.Contains(lines[1], "-") {
		return nil
	}
	var rows [][]string
	for i, line := range lines {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			return nil
		}
		if i == 1 {
			continue
		}
		cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00"), "|")
		for j := range cells {
			cells[j] = strings.TrimSpace(strings.ReplaceAll(cells[j], "\x00", "|"))
		}
		rows = append(rows, cells)
	}
	return rows
}

// table returns the rows of a table with aligned columns. A table that is too wide becomes a list of its cells.
func (s style) table(rows [][]string, width int) []string {
	var widths []int
	for i, row := range rows {
		for j, cell := range row {
			w := writer{style: s, source: []byte(cell)}
			if doc := goldmark.DefaultParser().Parse(text.NewReader(w.source)); doc.FirstChild() != nil {
				rows[i][j] = strings.ReplaceAll(w.inline(doc.FirstChild()), "\n", " ")
			}
			if j == len(widths) {
				widths = append(widths, 0)
			}
			widths[j] = max(widths[j], ansi.StringWidth(rows[i][j]))
		}
	}
	total := 0
	for _, w := range widths {
		total += w + 2
	}
	if width > 0 && total > width {
		return s.narrowTable(rows, width)
	}
	var all []string
	for i, row := range rows {
		line := ""
		for j, cell := range row {
			line += cell + strings.Repeat(" ", widths[j]-ansi.StringWidth(cell)+2)
		}
		line = strings.TrimRight(line, " ")
		if i == 0 {
			line = s.in(bold, line)
		}
		all = append(all, line)
		if i == 0 {
			all = append(all, s.in(dim, strings.Repeat("─", max(1, total-2))))
		}
	}
	return all
}

func (s style) narrowTable(rows [][]string, width int) (all []string) {
	for i, row := range rows[1:] {
		if i > 0 {
			all = append(all, "")
		}
		for j, cell := range row {
			name := ""
			if j < len(rows[0]) {
				name = rows[0][j] + ": "
			}
			all = append(all, wrap(s.in(bold, name)+cell, width, "  ")...)
		}
	}
	return all
}
