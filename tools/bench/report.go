package main

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
)

// Report is a result in its file format.
type Report struct {
	Started time.Time `json:"started_at"`
	Seconds float64   `json:"seconds"`
	Short   bool      `json:"short,omitempty"` // too few turns for figures
	Machine Machine   `json:"machine"`
	Rows    []*Row    `json:"rows"`
}

// Row is the result of one piece of work.
type Row struct {
	ID       string     `json:"id"`
	Work     string     `json:"work"`
	Measures []*Measure `json:"measures"`
	Checks   []Check    `json:"checks,omitempty"`
	Missing  []Missing  `json:"missing,omitempty"` // unavailable peers
	Notes    []string   `json:"notes,omitempty"`
	Error    string     `json:"error,omitempty"` // why the row was not finished
}

// Measure is one quantity, measured on several sides.
type Measure struct {
	Name   string    `json:"name"`
	Unit   string    `json:"unit"`
	Series []*Series `json:"series"`
	Aim    *Aim      `json:"aim,omitempty"`
	Part   bool      `json:"part,omitempty"` // a part of another measure
}

// Series is the result of one side.
type Series struct {
	Side   string    `json:"side"`
	N      int       `json:"n"` // successful runs
	Failed int       `json:"failed"`
	Errors []string  `json:"errors,omitempty"` // the first few
	P50    float64   `json:"p50,omitempty"`
	P95    float64   `json:"p95,omitempty"`
	P99    float64   `json:"p99,omitempty"`
	Ratio  float64   `json:"harvest_to_this,omitempty"` // of p50; of peers
	Values []float64 `json:"values"`                    // in the order of measuring
}

// Aim is a target for Harvest's p50, or with Peer for its ratio to that peer's. One of AtMost and AtLeast is set.
type Aim struct {
	Peer    string  `json:"peer,omitempty"`
	AtMost  float64 `json:"at_most,omitempty"`
	AtLeast float64 `json:"at_least,omitempty"`
	Got     float64 `json:"got,omitempty"`
	Verdict string  `json:"verdict"` // met, missed or unknown
}

// The verdicts. Unknown: the peer is missing, or there are no values.
const (
	met     = "met"
	missed  = "missed"
	unknown = "unknown"
)

// Check is a condition that must hold.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail,omitempty"`
}

// Missing is an unavailable peer.
type Missing struct {
	Peer string `json:"peer"`
	Why  string `json:"why"`
}

// harvest is the side that is compared with the others.
const harvest = "Harvest"

func (m *Measure) side(name string) *Series {
	for _, s := range m.Series {
		if s.Side == name {
			return s
		}
	}
	return nil
}

// finish computes the figures derived from the values.
func (rep *Report) finish() {
	for _, row := range rep.Rows {
		for _, m := range row.Measures {
			m.finish()
		}
	}
}

func (m *Measure) finish() {
	for _, s := range m.Series {
		for i, v := range s.Values {
			s.Values[i] = significant(v)
		}
		s.summarize()
	}
	ours := m.side(harvest)
	for _, s := range m.Series {
		if s != ours && ours != nil && ours.N > 0 && s.N > 0 && s.P50 > 0 {
			s.Ratio = significant(ours.P50 / s.P50)
		}
	}
	if m.Aim != nil {
		m.Aim.judge(m)
	}
}

// judge compares. A failed run of Harvest misses the aim, however fast the others were.
func (a *Aim) judge(m *Measure) {
	a.Verdict = unknown
	ours := m.side(harvest)
	if ours == nil || ours.N == 0 && ours.Failed == 0 {
		return
	}
	if ours.Failed > 0 {
		a.Verdict = missed
	}
	a.Got = ours.P50
	if a.Peer != "" {
		peer := m.side(a.Peer)
		if peer == nil || peer.Ratio == 0 {
			a.Got = 0
			return
		}
		a.Got = peer.Ratio
	}
	if ours.Failed > 0 {
		return
	}
	a.Verdict = missed
	if a.AtMost > 0 && a.Got <= a.AtMost || a.AtLeast > 0 && a.Got >= a.AtLeast {
		a.Verdict = met
	}
}

// String returns a text such as "≤ 2.5 × runc".
func (a *Aim) String() string {
	text := "≤ " + number(a.AtMost)
	if a.AtLeast > 0 {
		text = "≥ " + number(a.AtLeast)
	}
	if a.Peer != "" {
		text += " × " + a.Peer
	}
	return text
}

// write writes the report as JSON, atomically.
func (rep *Report) write(path string) error {
	b, err := json.MarshalIndent(rep, "", " ")
	if err != nil {
		return errors.Wrapf(err, "encode the result")
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return errors.Wrapf(err, "write the result")
	}
	return errors.Wrapf(atomicfile.Write(path, append(joinNumbers(b), '\n'), 0o644), "write the result")
}

// joinNumbers puts each list of numbers on one line.
func joinNumbers(b []byte) []byte {
	lines := strings.Split(string(b), "\n")
	var out []string
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if !strings.HasSuffix(line, `"values": [`) {
			out = append(out, line)
			continue
		}
		for i++; !strings.HasPrefix(strings.TrimSpace(lines[i]), "]"); i++ {
			line += strings.TrimSpace(lines[i])
		}
		out = append(out, line+strings.TrimSpace(lines[i]))
	}
	return []byte(strings.Join(out, "\n"))
}

func readReport(path string) (*Report, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, errors.Wrapf(err, "read the result")
	}
	var rep Report
	if err := json.Unmarshal(b, &rep); err != nil {
		return nil, errors.Wrapf(err, "decode the result")
	}
	return &rep, nil
}

// print writes the table as Markdown that is also readable as plain text.
func (rep *Report) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", rep.Machine)
	if rep.Short {
		b.WriteString("A short run: it shows that everything works, not how fast it is.\n\n")
	}
	table := [][]string{{"row", "measure", "side", "n", "failed", "p50", "p95", "p99", "Harvest ÷ it", "aim", ""}}
	for _, row := range rep.Rows {
		for _, m := range row.whole() {
			table = append(table, m.lines(row.ID)...)
		}
	}
	markdown(&b, table)
	for _, row := range rep.Rows {
		row.printRest(&b)
	}
	_, err := io.WriteString(w, b.String())
	return errors.Wrapf(err, "print the table")
}

// lines are the table's lines for one measure: one for each side.
func (m *Measure) lines(id string) [][]string {
	var lines [][]string
	for _, s := range m.Series {
		line := []string{id, m.Name + ", " + m.Unit, s.Side, strconv.Itoa(s.N), strconv.Itoa(s.Failed), "–", "–",
			"–", "", "", ""}
		if s.N > 0 {
			line[5], line[6], line[7] = number(s.P50), number(s.P95), number(s.P99)
		}
		if s.Ratio > 0 {
			line[8] = number(s.Ratio)
		}
		if m.Aim != nil && s.Side == m.judged() {
			line[9], line[10] = m.Aim.String(), m.Aim.Verdict
		}
		lines = append(lines, line)
	}
	return lines
}

// whole returns the measures that are not parts of others.
func (row *Row) whole() []*Measure {
	return slices.DeleteFunc(slices.Clone(row.Measures), func(m *Measure) bool { return m.Part })
}

// parts returns the medians of the parts in one line.
func (row *Row) parts() string {
	var texts []string
	for _, m := range row.Measures {
		for _, s := range m.Series {
			if m.Part && s.N > 0 {
				texts = append(texts, m.Name+" "+number(s.P50))
			}
		}
	}
	if len(texts) == 0 {
		return ""
	}
	return fmt.Sprintf("- %s: of Harvest's time, p50 in ms: %s\n", row.ID, strings.Join(texts, ", "))
}

// judged is the side whose line shows the aim: the peer that it names, if present.
func (m *Measure) judged() string {
	if m.side(m.Aim.Peer) != nil {
		return m.Aim.Peer
	}
	return harvest
}

func (row *Row) printRest(b *strings.Builder) {
	b.WriteString(row.parts())
	for _, c := range row.Checks {
		word := "ok"
		if !c.OK {
			word = "NOT OK"
		}
		fmt.Fprintf(b, "- %s: %s: %s", row.ID, c.Name, word)
		if c.Detail != "" {
			fmt.Fprintf(b, " (%s)", c.Detail)
		}
		b.WriteByte('\n')
	}
	for _, m := range row.Missing {
		fmt.Fprintf(b, "- %s: %s is missing: %s\n", row.ID, m.Peer, m.Why)
	}
	for _, note := range row.Notes {
		fmt.Fprintf(b, "- %s: %s\n", row.ID, note)
	}
	for _, m := range row.Measures {
		for _, s := range m.Series {
			if len(s.Errors) > 0 {
				fmt.Fprintf(b, "- %s: %s, %s: %s\n", row.ID, m.Name, s.Side, s.Errors[0])
			}
		}
	}
	if row.Error != "" {
		fmt.Fprintf(b, "- %s was not finished: %s\n", row.ID, row.Error)
	}
}

// markdown writes a table with aligned columns. The first line is the header.
func markdown(b *strings.Builder, table [][]string) {
	widths := make([]int, len(table[0]))
	for _, line := range table {
		for i, cell := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for n, line := range table {
		for i, cell := range line {
			b.WriteString("| " + cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+1))
		}
		b.WriteString("|\n")
		if n == 0 {
			for _, width := range widths {
				b.WriteString("|" + strings.Repeat("-", width+2))
			}
			b.WriteString("|\n")
		}
	}
	b.WriteByte('\n')
}

// number formats a figure with no more digits than its precision justifies.
func number(v float64) string {
	digits := 2
	switch {
	case v >= 100:
		digits = 0
	case v >= 10:
		digits = 1
	}
	text := strconv.FormatFloat(v, 'f', digits, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
	}
	return text
}
