// Package build runs the commands of image builds in sandboxes, for package dockerfile.
package build

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile"
)

// Runner runs the commands of image builds, each stage in a sandbox of a Fleet. These sandboxes have the usual
// isolation and limits on disk and processes, but all processors and half of the memory of the machine.
type Runner struct {
	fleet *fleet.Fleet
	store volume.Provider
}

var _ dockerfile.Runner = Runner{}

// New returns a runner for a Fleet, whose engine keeps its volumes in store.
func New(fleet *fleet.Fleet, store volume.Provider) Runner { return Runner{fleet, store} }

// Start implements dockerfile.Runner.
func (b Runner) Start(ctx context.Context, setup dockerfile.Setup) (dockerfile.Machine, error) {
	f, rules := b.fleet, b.fleet.Rules()
	if !rules.Can.Snapshot {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported, "the engine %s cannot build images on this machine",
			rules.Engine),
			"use an image that a registry has, or see \"harvest doctor\"")
	}
	req := spec.Request{
		Image: setup.Image, Hostname: "build", Network: spec.Network{Mode: setup.Network},
		CPU: rules.Machine.CPU, Memory: max(rules.Defaults.Memory, rules.Machine.Memory/2),
	}
	if !rules.Can.Network {
		req.Network.Mode = "none"
	}
	if !slices.Contains(rules.Can.Limits, "cpu") {
		req.CPU = 0
	}
	if !slices.Contains(rules.Can.Limits, "memory") {
		req.Memory = 0
	}
	for _, m := range setup.Mounts {
		req.Volumes = append(req.Volumes, spec.Mount{Name: m.Volume, Path: m.Path, ReadOnly: m.ReadOnly})
	}
	sb, err := f.Create(ctx, record.BuildAccount, req)
	if err != nil {
		return nil, err
	}
	logf.Infof(ctx, "sandbox %s runs the build step %.200s", sb.ID, setup.Title)
	m := &machine{fleet: f, id: sb.ID}
	dirs := []string{x11}
	if setup.Bare {
		dirs = append(dirs, path.Dir(x11))
	}
	if _, err := m.own(ctx, append([]string{"clear"}, dirs...)...); err != nil {
		return nil, errors.Join(errors.Wrapf(err, "prepare sandbox %s", sb.ID), m.Close(context.WithoutCancel(ctx)))
	}
	return m, nil
}

// x11 is a directory that every sandbox has for the sockets of a display. A RUN sees the files of its image alone.
const x11 = "/tmp/.X11-unix"

// volumes returns the volumes of build sandboxes, nil if the engine has no volumes.
func (b Runner) volumes() volume.Provider {
	if !b.fleet.Rules().Can.Volumes {
		return nil
	}
	return volume.Of(b.store, account.Owner(record.BuildAccount))
}

// Volumes implements dockerfile.Runner.
func (b Runner) Volumes(ctx context.Context) ([]dockerfile.Volume, error) {
	provider := b.volumes()
	if provider == nil {
		return nil, nil
	}
	list, err := provider.List(ctx)
	all := make([]dockerfile.Volume, len(list))
	for i, v := range list {
		all[i] = dockerfile.Volume{Name: v.Name, Size: v.Size, Created: v.Created}
	}
	return all, err
}

// RemoveVolume implements dockerfile.Runner.
func (b Runner) RemoveVolume(ctx context.Context, name string) error {
	provider := b.volumes()
	if provider == nil {
		return errors.Newf(errors.NotFound, "volume %.100q: not found", name)
	}
	return provider.Delete(ctx, name)
}

// machine is a sandbox that runs a stage of a build.
type machine struct {
	fleet *fleet.Fleet
	id    string
	state string // of the mounts; "" for none
}

// Run implements dockerfile.Machine.
func (m *machine) Run(ctx context.Context, cmd dockerfile.Command) (int, error) {
	x, err := m.fleet.Exec(ctx, record.BuildAccount, m.id, fleet.ExecRequest{
		Args: cmd.Args, Env: cmd.Env, Workdir: cmd.Dir, User: cmd.User, Stdout: cmd.Stdout, Stderr: cmd.Stderr,
		Merged: cmd.Stderr == nil, Truncated: missing(cmd),
		Timeout: m.fleet.Rules().Timeouts.MaxLife,
	})
	if err != nil {
		return 0, err
	}
	res, err := x.Wait(context.WithoutCancel(ctx)) // ctx kills the command; wait for its end
	switch {
	case ctx.Err() != nil:
		return 0, context.Cause(ctx)
	case err != nil:
		return 0, err
	case res.OutOfMemory:
		err := errors.Newf(errors.Exhausted, "the command exceeded the memory of a build")
		return 0, errors.Remedy(err, "build on a machine with more memory, or reduce the memory that the command needs")
	case res.Truncated && cmd.Stderr != nil:
		return 0, errors.Remedy(errors.Newf(errors.Exhausted, "a part of the command's output is missing"),
			"check the disk of the data directory: harvest doctor")
	case res.TimedOut:
		return 0, errors.Newf(errors.Timeout, "the command exceeded its time limit")
	}
	if why := res.Why(); why != "" && why == res.Crashed && cmd.Crashed != nil {
		cmd.Crashed(why)
	}
	return res.ReturnCode, nil
}

// missing reports lost output of a command in the log of its build. The standard output of a command with a separate
// Stderr is data instead.
func missing(cmd dockerfile.Command) func(bytes int64) {
	if cmd.Stderr != nil {
		return nil
	}
	return func(bytes int64) {
		_, _ = fmt.Fprintf(cmd.Stdout,
			"\nharvest: %d bytes of the output are missing: the server's disk did not return them\n", bytes)
	}
}

// CopyIn implements dockerfile.Machine.
func (m *machine) CopyIn(ctx context.Context, dir string, tar io.Reader) error {
	return m.fleet.CopyIn(ctx, record.BuildAccount, m.id, dir, tar)
}

// Mount implements dockerfile.Machine.
func (m *machine) Mount(ctx context.Context, all []dockerfile.FileMount) error {
	text, err := json.Marshal(all)
	if err == nil {
		m.state, err = m.own(ctx, "mount", string(text))
	}
	return errors.Wrapf(err, "mount files in sandbox %s", m.id)
}

// Unmount implements dockerfile.Machine.
func (m *machine) Unmount(ctx context.Context, files ...string) error {
	if m.state == "" {
		return nil
	}
	_, err := m.own(ctx, append([]string{"unmount", m.state}, files...)...)
	m.state = ""
	return errors.Wrapf(err, "unmount files in sandbox %s", m.id)
}

// own runs Harvest's program for mounts in the sandbox, and returns its output.
func (m *machine) own(ctx context.Context, args ...string) (string, error) {
	var stdout, stderr strings.Builder
	x, err := m.fleet.Exec(ctx, record.BuildAccount, m.id, fleet.ExecRequest{
		Args: append([]string{dockerfile.MountProgram}, args...), Own: true, User: "0", Workdir: "/", Stdout: &stdout,
		Stderr: &stderr})
	if err != nil {
		return "", err
	}
	res, err := x.Wait(ctx)
	if err == nil && res.ReturnCode != 0 {
		err = errors.Newf(errors.Invalid, "%.300s", strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), err
}

// Snapshot implements dockerfile.Machine.
func (m *machine) Snapshot(ctx context.Context, w io.Writer) error {
	return m.fleet.Export(ctx, record.BuildAccount, m.id, w)
}

// Close implements dockerfile.Machine.
func (m *machine) Close(ctx context.Context) error {
	return m.fleet.Destroy(ctx, record.BuildAccount, m.id)
}
