// Command coverage is the gate of `make cover`: it merges coverage profiles, prints a table of packages, and
// fails below a minimum share.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
)

func main() {
	if err := run(os.Args[1:], os.DirFS("."), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "coverage:", err)
		os.Exit(1)
	}
}

// options of the command.
type options struct {
	least   float64
	module  string
	exclude []string
}

func parseFlags(args []string) (options, []string, error) {
	flags := flag.NewFlagSet("coverage", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	least := flags.Float64("min", 90, "the least share of statements, in percent")
	module := flags.String("module", "github.com/RelevanceAI/harvest", "path of the module")
	exclude := flags.String("exclude", "", "directories that do not count, separated by commas")
	if err := flags.Parse(args); err != nil {
		return options{}, nil, errors.Wrapf(err, "usage: coverage [-min percent] [-exclude dir,…] profile…")
	}
	if flags.NArg() == 0 {
		return options{}, nil, errors.Errorf("usage: coverage [-min percent] [-exclude dir,…] profile…")
	}
	opts := options{least: *least, module: *module}
	for dir := range strings.SplitSeq(*exclude, ",") {
		if dir != "" {
			opts.exclude = append(opts.exclude, dir)
		}
	}
	return opts, flags.Args(), nil
}
