package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// units are the systemd units of a package, in docs.
var units = []string{"harvest.service", "harvest-rootless.service"}

var versions = regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9A-Za-z.]+)?$`)

// building is one run of the command build.
type building struct {
	record

	clone, stage string
	cyclonedx    string
}

// build builds all programs of the commit HEAD of source in a clone of its own, so that neither uncommitted changes nor
// files that git ignores are part of the release.
func build(ctx context.Context, source, version, stage string) error {
	if !versions.MatchString(version) {
		return errors.Errorf("invalid version %q: use one such as 0.1.0", version)
	}
	temp, err := os.MkdirTemp("", "harvest-release-")
	if err != nil {
		return errors.Wrapf(err, "make a temporary directory")
	}
	defer os.RemoveAll(temp)
	if stage, err = filepath.Abs(stage); err != nil {
		return errors.Wrapf(err, "find the stage")
	}
	if err := os.MkdirAll(stage, 0o755); err != nil {
		return errors.Wrapf(err, "make the stage")
	}
	b := &building{clone: filepath.Join(temp, "harvest"), stage: stage}
	b.Version, b.Go = version, runtime.Version()
	if err := b.fetch(ctx, source); err != nil {
		return err
	}
	// The build list of this program has the tool.
	out, err := exec.CommandContext(ctx, "go", "tool", "-n", "cyclonedx-gomod").Output()
	if err != nil {
		return errors.Wrapf(err, "build cyclonedx-gomod")
	}
	b.cyclonedx = strings.TrimSpace(string(out))
	if err := b.make(ctx, nil, "clients"); err != nil {
		return err
	}
	for _, on := range platforms {
		fmt.Fprintln(os.Stderr, "release: build for", on)
		if err := b.platform(ctx, on); err != nil {
			return errors.Wrapf(err, "%s", on)
		}
	}
	if err := b.documents(ctx); err != nil {
		return err
	}
	return b.write(stage)
}

// fetch clones the commit and records it.
func (b *building) fetch(ctx context.Context, source string) error {
	if status, err := output(ctx, source, "git", "status", "--porcelain"); err != nil {
		return err
	} else if status != "" {
		fmt.Fprintln(os.Stderr, "release: uncommitted changes are not part of the release")
	}
	if _, err := output(ctx, "", "git", "clone", "--quiet", "--no-tags", "--", source, b.clone); err != nil {
		return err
	}
	var err error
	if b.Commit, err = output(ctx, source, "git", "rev-parse", "HEAD"); err != nil {
		return err
	}
	if _, err = output(ctx, b.clone, "git", "checkout", "--quiet", "--detach", b.Commit); err != nil {
		return err
	}
	text, err := output(ctx, b.clone, "git", "show", "--no-patch", "--format=%ct", "HEAD")
	if err != nil {
		return err
	}
	if epoch := os.Getenv("SOURCE_DATE_EPOCH"); epoch != "" {
		text = epoch
	}
	if b.Time, err = strconv.ParseInt(text, 10, 64); err != nil {
		return errors.Wrapf(err, "read the time of the commit")
	}
	sums, err := os.ReadFile(filepath.Join(b.clone, "go.sum"))
	if err != nil {
		return errors.Wrapf(err, "read go.sum")
	}
	sum := sha256.Sum256(sums)
	b.Sums = hex.EncodeToString(sum[:])
	return nil
}

// environment is that of all builds. Settings of this machine that change programs have no effect.
func (b *building) environment(more ...string) []string {
	return append(os.Environ(), append([]string{"GOFLAGS=-trimpath -buildvcs=true", "GOEXPERIMENT=", "GOAMD64=v1",
		"GOARM64=v8.0", "GOWORK=off", "CGO_ENABLED=0", "GODEBUG=", "TZ=UTC", "LC_ALL=C", "MAKEFLAGS=",
		"SOURCE_DATE_EPOCH=" + strconv.FormatInt(b.Time, 10)},
		more...)...)
}

func (b *building) make(ctx context.Context, env []string, target string) error {
	cmd := exec.CommandContext(ctx, "make", "--no-print-directory", "VERSION="+b.Version, target)
	cmd.Dir, cmd.Env = b.clone, b.environment(env...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	return errors.Wrapf(cmd.Run(), "make %s", target)
}

// platform puts the program and its SBOM into the stage.
func (b *building) platform(ctx context.Context, on platform) error {
	env := []string{"GOOS=" + on.OS, "GOARCH=" + on.Arch}
	built := "bin/harvest-" + on.OS + "-" + on.Arch
	if on.server() {
		if err := b.make(ctx, env, "build"); err != nil {
			return err
		}
		built = "bin/harvest"
	}
	if err := b.keep(built, filepath.Join(on.String(), on.program()), 0o755); err != nil {
		return err
	}
	return b.sbom(ctx, on, env)
}

// documents puts all files other than programs into the stage.
func (b *building) documents(ctx context.Context) error {
	for _, name := range []string{"LICENSE", "README.md"} {
		if err := b.keep(name, name, 0o644); err != nil {
			return err
		}
	}
	for _, name := range units {
		if err := b.keep("docs/"+name, name, 0o644); err != nil {
			return err
		}
	}
	if err := b.make(ctx, nil, "man"); err != nil {
		return err
	}
	pages, err := os.ReadDir(filepath.Join(b.clone, "bin", "man"))
	if err != nil {
		return errors.Wrapf(err, "list the manual pages")
	}
	for _, page := range pages {
		if err := b.keep("bin/man/"+page.Name(), "man/"+page.Name(), 0o644); err != nil {
			return err
		}
	}
	// Any of them prints the same; this one runs on any machine that can make a release.
	program := filepath.Join(b.stage, runtime.GOOS+"_"+runtime.GOARCH, "harvest")
	for _, shell := range []string{"bash", "zsh", "fish"} {
		text, err := exec.CommandContext(ctx, program, "completion", shell).Output()
		if err != nil {
			return errors.Wrapf(err, "completion of %s", shell)
		}
		if err := b.create("completions/harvest."+shell, text); err != nil {
			return err
		}
	}
	return nil
}

// keep copies a file of the clone into the stage.
func (b *building) keep(from, to string, mode os.FileMode) error {
	in, err := os.Open(filepath.Join(b.clone, from))
	if err != nil {
		return errors.Wrapf(err, "read %s", from)
	}
	defer in.Close()
	path := filepath.Join(b.stage, to)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return errors.Wrapf(err, "make a directory of the stage")
	}
	out, err := os.OpenFile(path, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, mode)
	if err != nil {
		return errors.Wrapf(err, "create %s", to)
	}
	_, err = io.Copy(out, in)
	return errors.Wrapf(errors.Join(err, out.Close()), "copy %s", from)
}

func (b *building) create(name string, data []byte) error {
	path := filepath.Join(b.stage, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return errors.Wrapf(err, "make a directory of the stage")
	}
	return errors.Wrapf(os.WriteFile(path, data, 0o644), "write %s", name)
}

func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	return strings.TrimSpace(string(out)), errors.Wrapf(err, "%s %s", name, strings.Join(args, " "))
}
