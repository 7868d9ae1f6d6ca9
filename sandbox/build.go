package sandbox

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image/dockerfile"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox/spec"
	"github.com/RelevanceAI/harvest/volume"
)

// buildAccount is the account of sandboxes that build images. Clients cannot use it, and it has no quota: package
// dockerfile limits their number. After a restart these sandboxes are orphans, and recovery ends them.
const buildAccount = "harvest-build"

// Builds runs the commands of image builds, each stage in a sandbox of this Fleet. These sandboxes have the usual
// isolation and limits on disk and processes, but all processors and half of the memory of the machine.
type Builds struct{ fleet *Fleet }

var _ dockerfile.Runner = Builds{}

// Builds returns the runner for the commands of image builds.
func (f *Fleet) Builds() Builds { return Builds{f} }

// Start implements dockerfile.Runner.
func (b Builds) Start(ctx context.Context, setup dockerfile.Setup) (dockerfile.Machine, error) {
	f := b.fleet
	if !f.caps.Snapshot {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported, "the engine %s cannot build images on this machine",
			f.opts.Engine.Name()),
			"use an image that a registry has, or see \"harvest doctor\"")
	}
	req := spec.Request{
		Image: setup.Image, Hostname: "build", Network: spec.Network{Mode: setup.Network},
		CPU: f.opts.Machine.CPU, Memory: max(f.opts.Defaults.Memory, f.opts.Machine.Memory/2),
	}
	if !f.caps.Network {
		req.Network.Mode = "none"
	}
	if !slices.Contains(f.caps.Limits, "cpu") {
		req.CPU = 0
	}
	if !slices.Contains(f.caps.Limits, "memory") {
		req.Memory = 0
	}
	for _, m := range setup.Mounts {
		req.Volumes = append(req.Volumes, spec.Mount{Name: m.Volume, Path: m.Path, ReadOnly: m.ReadOnly})
	}
	sb, err := f.Create(ctx, buildAccount, req)
	if err != nil {
		return nil, err
	}
	logf.Infof(ctx, "sandbox %s runs the build step %.200s", sb.ID, setup.Title)
	return &machine{fleet: f, id: sb.ID}, nil
}

// volumes returns the volumes of build sandboxes, nil if the engine has no volumes.
func (b Builds) volumes() volume.Provider {
	if !b.fleet.caps.Volumes {
		return nil
	}
	return volume.Of(b.fleet.opts.Engine.Volumes(), account.Owner(buildAccount))
}

// Volumes implements dockerfile.Runner.
func (b Builds) Volumes(ctx context.Context) ([]dockerfile.Volume, error) {
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
func (b Builds) RemoveVolume(ctx context.Context, name string) error {
	provider := b.volumes()
	if provider == nil {
		return errors.Newf(errors.NotFound, "volume %.100q: not found", name)
	}
	return provider.Delete(ctx, name)
}

// machine is a sandbox that runs a stage of a build.
type machine struct {
	fleet *Fleet
	id    string
	state string // of the mounts; "" for none
}

// Run implements dockerfile.Machine.
func (m *machine) Run(ctx context.Context, cmd dockerfile.Command) (int, error) {
	x, err := m.fleet.Exec(ctx, buildAccount, m.id, ExecRequest{
		Args: cmd.Args, Env: cmd.Env, Workdir: cmd.Dir, User: cmd.User, Stdout: cmd.Stdout, Stderr: cmd.Stderr,
		Merged:  cmd.Stderr == nil,
		Timeout: m.fleet.opts.Timeouts.MaxLife,
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
	case res.TimedOut:
		return 0, errors.Newf(errors.Timeout, "the command exceeded its time limit")
	}
	if why := res.Why(); why != "" && why == res.Crashed && cmd.Crashed != nil {
		cmd.Crashed(why)
	}
	return res.ReturnCode, nil
}

// CopyIn implements dockerfile.Machine.
func (m *machine) CopyIn(ctx context.Context, dir string, tar io.Reader) error {
	return m.fleet.CopyIn(ctx, buildAccount, m.id, dir, tar)
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
	x, err := m.fleet.Exec(ctx, buildAccount, m.id, ExecRequest{
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
	_, box, leave, err := m.fleet.enter(ctx, buildAccount, m.id)
	if err != nil {
		return err
	}
	defer leave()
	s, ok := box.(engine.Snapshotter)
	if !ok {
		return errors.Newf(errors.Unsupported, "the engine %s does not support snapshots", m.fleet.opts.Engine.Name())
	}
	return s.Snapshot(ctx, "", w)
}

// Close implements dockerfile.Machine.
func (m *machine) Close(ctx context.Context) error {
	return m.fleet.Destroy(ctx, buildAccount, m.id)
}
