// Command release makes the files of a release of Harvest. `make release` builds the programs of the last commit and
// packs them; `make release-check` does so twice and compares.
//
//	release build -source DIR -version V -stage DIR    the programs, manual pages, completions and SBOMs of HEAD
//	release pack -stage DIR -out DIR                   archives, packages, image, provenance and checksums of these
//	release compare DIR DIR                            fails if files of two directories differ, and names them
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 {
		return errors.Errorf("usage: release build|pack|compare; see the comment of the program")
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	source := flags.String("source", ".", "repository")
	version := flags.String("version", "", "version, such as 0.1.0")
	stage := flags.String("stage", "", "directory of the programs")
	out := flags.String("out", "dist", "directory of the release")
	if err := flags.Parse(args[1:]); err != nil {
		return errors.Wrapf(err, "%s", args[0])
	}
	switch args[0] {
	case "build":
		return build(ctx, *source, *version, *stage)
	case "pack":
		return pack(*stage, *out)
	case "compare":
		return compare(flags.Arg(0), flags.Arg(1))
	}
	return errors.Errorf("unknown command %q", args[0])
}

// platform is a system for which Harvest is released.
type platform struct{ OS, Arch string }

func (p platform) String() string { return p.OS + "_" + p.Arch }

// server reports whether harvest contains the server there, and is packaged.
func (p platform) server() bool { return p.OS == "linux" && (p.Arch == "amd64" || p.Arch == "arm64") }

// program is the file name of harvest.
func (p platform) program() string {
	if p.OS == "windows" {
		return "harvest.exe"
	}
	return "harvest"
}

var platforms = []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"linux", "arm"}, {"darwin", "amd64"},
	{"darwin", "arm64"}, {"windows", "amd64"}}

// record is a file of the stage with the facts about the build.
type record struct {
	Version string `json:"version"`
	Commit  string `json:"commit"`
	Time    int64  `json:"time"` // of the commit, in seconds; each file of the release has it
	Go      string `json:"go"`
	Sums    string `json:"goSum"` // SHA-256 of go.sum
}

const recordName = "release.json"

func (r record) time() time.Time { return time.Unix(r.Time, 0).UTC() }

func (r record) write(stage string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return errors.Wrapf(err, "encode the record")
	}
	return errors.Wrapf(os.WriteFile(filepath.Join(stage, recordName), append(text, '\n'), 0o644), "write the record")
}

func readRecord(stage string) (record, error) {
	var r record
	text, err := os.ReadFile(filepath.Join(stage, recordName))
	if err != nil {
		return r, errors.Wrapf(err, "read the record of the build")
	}
	return r, errors.Wrapf(json.Unmarshal(text, &r), "decode the record of the build")
}
