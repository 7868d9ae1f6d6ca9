package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode/utf8"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// Formats of -o.
const (
	FormatTable = "table"
	FormatJSON  = "json"
	FormatName  = "name"
)

// View is a result in every format.
type View struct {
	JSON   any
	Names  []string
	Header []string // of a table; nil if the first column has the names of the rows
	Rows   [][]string
}

// WithOutput gives cmd the flag -o.
func (c *CLI) WithOutput(cmd *cobra.Command, otherwise string) *cobra.Command {
	format := cmd.Flags().StringP("output", "o", otherwise, "output format: table, json or name")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.Format = *format
		if err := checkFormat(c.Format); err != nil {
			return err // before any work is done
		}
		return run(cmd, args)
	}
	return cmd
}

// Show prints v in the requested format.
func (c *CLI) Show(v View) error {
	switch c.Format {
	case FormatJSON:
		return PrintJSON(c.Out, v.JSON)
	case FormatName:
		for _, name := range v.Names {
			fmt.Fprintln(c.Out, name)
		}
		return nil
	}
	return PrintTable(c.Out, v)
}

func checkFormat(format string) error {
	switch format {
	case FormatTable, FormatJSON, FormatName:
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "invalid output format %q", format), "use table, json or name")
}

// PrintJSON prints v as indented JSON.
func PrintJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return errors.Wrapf(e.Encode(v), "print")
}

// PrintLine prints v as one line of JSON.
func PrintLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return errors.Wrapf(e.Encode(v), "print")
}

// PrintTable prints the rows of v in columns, with control characters escaped.
func PrintTable(w io.Writer, v View) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if v.Header != nil {
		fmt.Fprintln(t, strings.Join(v.Header, "\t"))
	}
	for _, row := range v.Rows {
		for i := range row {
			row[i] = Escaped(row[i])
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return errors.Wrapf(t.Flush(), "print")
}

// Size formats a number of bytes; 0 is "-".
func Size(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return units.BytesSize(float64(bytes))
}

// Ago formats the time since t; the zero time is "-".
func Ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return units.HumanDuration(max(0, time.Since(t))) + " ago"
}

// Until formats the time until t; the zero time is "-".
func Until(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return "in " + units.HumanDuration(max(0, time.Until(t)))
}

// Joined formats a list of words; an empty one is "-".
func Joined(words []string) string { return OrDash(strings.Join(words, ", ")) }

// Escaped makes a path safe for a terminal: it escapes control characters and bytes that are not UTF-8.
func Escaped(text string) string {
	if !strings.ContainsFunc(text, func(r rune) bool {
		return r < ' ' || r >= 0x7f && r <= 0x9f ||
			r == utf8.RuneError
	}) {
		return text
	}
	quoted := strconv.Quote(text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}

// escapedLines is Escaped for text with several lines.
func escapedLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Escaped(lines[i])
	}
	return strings.Join(lines, "\n")
}

// OrDash returns s, or "-" if it is empty.
func OrDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// OrElse returns text, or otherwise if it is empty.
func OrElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// WriteWhole writes a file atomically: it appears only when it is complete.
func WriteWhole(name string, mode os.FileMode, from io.Reader) (err error) {
	temp := name + ".part"
	f, err := os.OpenFile(temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, mode)
	if err != nil {
		return errors.Remedy(tarfs.Explain(err, name), "choose a writable file")
	}
	_, copying := io.Copy(f, from)
	if err := errors.Join(copying, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, os.Remove(temp))
	}
	return tarfs.Explain(os.Rename(temp, name), name)
}
