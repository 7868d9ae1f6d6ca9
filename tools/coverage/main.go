// Command coverage is the gate of `make cover`: it merges coverage profiles, prints a table of packages, and
// fails below a minimum share.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
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
	left    string // file with the tests that had no time, one per line; "" or an empty one if all ran
	some    float64
	module  string
	exclude []string
}

const usage = `usage: coverage [-min percent] [-left file] [-min-left percent] [-exclude "dir …"] profile…`

func parseFlags(args []string) (options, []string, error) {
	flags := flag.NewFlagSet("coverage", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	least := flags.Float64("min", 90, "the least share of statements, in percent")
	left := flags.String("left", "", "file with the names of tests that had no time, one a line")
	some := flags.Float64("min-left", 88, "the least share if tests had no time")
	module := flags.String("module", "github.com/RelevanceAI/harvest", "path of the module")
	exclude := flags.String("exclude", "", "directories that do not count, separated by spaces")
	if err := flags.Parse(args); err != nil {
		return options{}, nil, errors.Wrapf(err, usage)
	}
	if flags.NArg() == 0 {
		return options{}, nil, errors.Errorf(usage)
	}
	opts := options{least: *least, left: *left, some: *some, module: *module, exclude: strings.Fields(*exclude)}
	return opts, flags.Args(), nil
}
