package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/docker/go-units"
	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/errors"
)

// Formats of -o.
const (
	formatTable = "table"
	formatJSON  = "json"
	formatName  = "name"
)

// view is a result in every format.
type view struct {
	json   any
	names  []string
	header []string // of a table; nil if the first column has the names of the rows
	rows   [][]string
}

// withOutput gives cmd the flag -o.
func (c *cli) withOutput(cmd *cobra.Command, otherwise string) *cobra.Command {
	format := cmd.Flags().StringP("output", "o", otherwise, "output format: table, json or name")
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c.format = *format
		if err := checkFormat(c.format); err != nil {
			return err // before any work is done
		}
		return run(cmd, args)
	}
	return cmd
}

// show prints v in the requested format.
func (c *cli) show(v view) error {
	switch c.format {
	case formatJSON:
		return printJSON(c.out, v.json)
	case formatName:
		for _, name := range v.names {
			fmt.Fprintln(c.out, name)
		}
		return nil
	}
	return printTable(c.out, v)
}

func checkFormat(format string) error {
	switch format {
	case formatTable, formatJSON, formatName:
		return nil
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "invalid output format %q", format), "use table, json or name")
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return errors.Wrapf(e.Encode(v), "print")
}

// printLine prints v as one line of JSON.
func printLine(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	return errors.Wrapf(e.Encode(v), "print")
}

func printTable(w io.Writer, v view) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if v.header != nil {
		fmt.Fprintln(t, strings.Join(v.header, "\t"))
	}
	for _, row := range v.rows {
		for i := range row {
			row[i] = escaped(row[i])
		}
		fmt.Fprintln(t, strings.Join(row, "\t"))
	}
	return errors.Wrapf(t.Flush(), "print")
}

func size(bytes int64) string {
	if bytes == 0 {
		return "-"
	}
	return units.BytesSize(float64(bytes))
}

func ago(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return units.HumanDuration(max(0, time.Since(t))) + " ago"
}

func until(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return "in " + units.HumanDuration(max(0, time.Until(t)))
}

func joined(words []string) string { return orDash(strings.Join(words, ", ")) }
