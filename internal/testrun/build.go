package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/testenv"
)

// builder compiles programs and tests.
type builder struct {
	o     options
	w     io.Writer
	begun time.Time
	steps int // of compile so far
}

// programs builds the binaries that tests start, so that no test has to. It returns the environment that names them.
func (b *builder) programs(ctx context.Context) ([]string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, errors.Wrapf(err, "find the module")
	}
	b.say("compiling the programs")
	env, err := testenv.Programs(ctx, dir, b.o.cover)
	return append(os.Environ(), env...), err
}

// compile builds the test binaries of packages. Packages with the same last path element are compiled in separate
// steps, each with its own directory, because their binaries have the same name.
func (b *builder) compile(ctx context.Context, list []*pkg) error {
	kind := "plain"
	flags := []string{"-ldflags=-w"} // without DWARF, as go test links
	if b.o.race {
		kind, flags = "race", append(flags, "-race")
	}
	if b.o.cover {
		kind, flags = kind+"-cover", append(flags, "-covermode=atomic", "-coverpkg=./...")
	}
	for ; len(list) > 0; b.steps++ {
		dir := filepath.Join(b.o.out, "bin", kind, fmt.Sprint(b.steps))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return errors.Wrapf(err, "make the directory of binaries")
		}
		args := append([]string{"test", "-c", "-vet=off", "-o", dir + "/"}, flags...)
		var rest []*pkg
		taken := map[string]bool{}
		for _, p := range list {
			base := filepath.Base(p.path)
			if taken[base] {
				rest = append(rest, p)
				continue
			}
			taken[base] = true
			p.binary = filepath.Join(dir, base+".test")
			args = append(args, p.path)
		}
		b.say("compiling the tests of %d packages", len(list)-len(rest))
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Stdout, cmd.Stderr = b.w, b.w
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1", testenv.CompilerGC)
		if err := cmd.Run(); err != nil {
			return errors.Wrapf(err, "compile the tests")
		}
		list = rest
	}
	return nil
}

func (b *builder) say(format string, args ...any) {
	fmt.Fprintf(b.w, "== %s (after %d s)\n", fmt.Sprintf(format, args...), int(time.Since(b.begun).Seconds()))
}
