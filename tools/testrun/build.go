package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
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
	env, err := testenv.Programs(ctx, dir, b.o.cover, b.o.suite != "quick")
	return append(os.Environ(), env...), err
}

// ours are the packages of all modules of this repository.
const ours = "github.com/RelevanceAI/harvest/..."

// foreign are packages of large programs of others, gVisor and the S3 server. Programs of their own contain them.
var foreign = []string{"gvisor.dev/gvisor/pkg/sentry/kernel", "github.com/versity/versitygw/embedgw"}

// compile builds the test binaries of packages. Tests that contain foreign packages have no race detector: gVisor does
// not boot with it, and the 450 packages of both programs would be compiled a second time.
func (b *builder) compile(ctx context.Context, list []*pkg) error {
	if len(list) == 0 {
		return nil
	}
	with, without, err := b.splitForeign(ctx, list)
	if err != nil {
		return err
	}
	k := kind{"plain", "CGO_ENABLED=1", nil}
	if b.o.race {
		k = kind{"race", "CGO_ENABLED=1", []string{"-race"}}
	}
	if err := b.build(ctx, without, k); err != nil {
		return err
	}
	// With the flags of the programs, whose packages are in the build cache.
	return b.build(ctx, with, kind{"foreign", "CGO_ENABLED=0", []string{"-trimpath"}})
}

// kind is a way to compile tests.
type kind struct {
	name  string
	cgo   string // environment variable
	flags []string
}

// splitForeign separates the packages whose tests contain foreign packages.
func (b *builder) splitForeign(ctx context.Context, list []*pkg) (with, without []*pkg, err error) {
	contains := map[string]bool{}
	for _, module := range modules {
		args := []string{"-C", module, "list", fmt.Sprintf("-race=%t", b.o.race), "-test", "-f",
			`{{.ImportPath}} {{join .Deps " "}} `}
		n := len(args)
		for _, p := range list {
			if p.module == module {
				args = append(args, p.path)
			}
		}
		if len(args) == n {
			continue
		}
		cmd := exec.CommandContext(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=1")
		cmd.Stderr = b.w
		out, err := cmd.Output()
		if err != nil {
			return nil, nil, errors.Wrapf(err, "list the dependencies of tests")
		}
		for line := range strings.Lines(string(out)) {
			name, deps, _ := strings.Cut(line, ".test ")
			contains[name] = slices.ContainsFunc(foreign, func(p string) bool {
				return strings.Contains(deps, " "+p+" ")
			})
		}
	}
	for _, p := range list {
		if contains[p.path] {
			with = append(with, p)
		} else {
			without = append(without, p)
		}
	}
	return with, without, nil
}

// build builds test binaries. A step compiles packages of one module. Packages with the same last path element are
// compiled in separate steps, each with its own directory, because their binaries have the same name.
func (b *builder) build(ctx context.Context, list []*pkg, k kind) error {
	flags := append([]string{"-ldflags=-w"}, k.flags...) // without DWARF, as go test links
	if b.o.cover {
		k.name, flags = k.name+"-cover", append(flags, "-covermode=atomic", "-coverpkg="+ours)
	}
	for ; len(list) > 0; b.steps++ {
		dir := filepath.Join(b.o.out, "bin", k.name, fmt.Sprint(b.steps))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return errors.Wrapf(err, "make the directory of binaries")
		}
		module := list[0].module
		args := append([]string{"-C", module, "test", "-c", "-vet=off", "-o", dir + "/"}, flags...)
		var rest []*pkg
		taken := map[string]bool{}
		for _, p := range list {
			base := filepath.Base(p.path)
			if taken[base] || p.module != module {
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
		cmd.Env = append(os.Environ(), k.cgo, testenv.CompilerGC)
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
