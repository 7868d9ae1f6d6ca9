package repo

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/container"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

const (
	// mostFiles and mostBytes limit the files of a repository from which the image of its dev container is built.
	mostFiles = 500_000
	mostBytes = 8 << 30
)

// filesScript prints the files of a repository as a tar stream: directory. Submodules are empty directories.
const filesScript = `cd "$1"; git ls-files -z | tar -c --null --no-recursion --files-from=-`

// devContainer builds the image of the repository's dev container, and continues in a sandbox of it.
func (a *attempt) devContainer(ctx context.Context, config string) error {
	var img image.Image
	err := a.stage("devcontainer", config, func() (err error) {
		img, err = a.buildContainer(ctx, config)
		return err
	})
	if err != nil {
		return err
	}
	if env, err := container.Of(img, nil, a.repo.ID); err == nil && env != nil {
		for _, text := range env.Adapt(&spec.Request{}, fleet.Within(a.m.opts.Fleet)) {
			a.note(text) // for sessions
		}
	}
	a.end(ctx, &a.box)
	a.ids, a.build.From = "", img.ID // the user may be another one
	if err := a.stage("sandbox", "", func() (err error) {
		a.box, err = a.create(ctx, img.ID)
		return err
	}); err != nil {
		return err
	}
	return a.stage("clone", "", func() error { return a.clone(ctx) })
}

func (a *attempt) buildContainer(ctx context.Context, config string) (image.Image, error) {
	temp, err := os.MkdirTemp(a.m.opts.Temp, "devcontainer-")
	if err != nil {
		return image.Image{}, errors.Wrapf(err, "make a directory for a dev container")
	}
	defer os.RemoveAll(temp)
	files, features := filepath.Join(temp, "files"), filepath.Join(temp, "features")
	if err := os.Mkdir(features, 0o755); err != nil {
		return image.Image{}, errors.Wrapf(err, "make a directory for features")
	}
	if err := a.files(ctx, files); err != nil {
		return image.Image{}, err
	}
	var transport http.RoundTripper
	if a.m.opts.Transport != nil {
		transport = a.m.opts.Transport(a.repo.Account)
	}
	var owned []secret.Secret
	if a.m.opts.Secrets != nil {
		if owned, err = a.m.opts.Secrets.List(ctx, a.repo.Account); err != nil {
			return image.Image{}, err
		}
	}
	return container.Build(ctx, container.Building{
		Images: a.images(), Credentials: a.m.opts.Fleet.Credentials(a.repo.Account, ""), Transport: transport,
		Default: a.repo.Recipe.image(), Files: files, Config: config, Dir: a.repo.Dir, ID: a.repo.ID, Temp: features,
		Owned: owned, Passed: a.repo.Recipe.Sandbox.Secrets, Log: a.note,
	})
}

// files copies the files of the repository's commit into a directory of this machine.
func (a *attempt) files(ctx context.Context, dir string) error {
	out, in := io.Pipe()
	x, err := a.m.opts.Fleet.Exec(ctx, a.repo.Account, a.box, fleet.ExecRequest{
		Args: []string{"/bin/sh", "-euc", filesScript, "sh", a.repo.Dir}, Workdir: "/", Stdout: in, Stderr: a.log,
		Timeout: a.repo.Recipe.limit()})
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		result, err := x.Wait(context.WithoutCancel(ctx)) // when ctx ends, the command is killed
		if err == nil && result.ReturnCode != 0 {
			err = errors.Newf(errors.Unavailable, "the files of the repository cannot be read: %s", result.Why())
		}
		_ = in.CloseWithError(err)
		ended <- err
	}()
	err = tarfs.UnpackAt(dir, out, tarfs.Options{MaxBytes: mostBytes, MaxEntries: mostFiles,
		Skipped: func(string) {}})
	_ = out.CloseWithError(err) // ends the command, if it is not read to its end
	return errors.Join(err, <-ended)
}

// contentHooks runs the lifecycle commands that fill an image, and returns the plan of what else has to be installed
// and built: if the dev container has such commands, they install and build it.
func (a *attempt) contentHooks(ctx context.Context, plan Plan, whole bool) (Plan, error) {
	if plan.DevContainer == "" {
		return plan, nil
	}
	names := []string{"onCreateCommand", "updateContentCommand"}
	if !whole {
		names = names[1:]
	}
	err := a.hooks(ctx, names...)
	if a.hooked {
		plan.Projects = nil
	}
	return plan, err
}

// hooks runs lifecycle commands of the dev container in which the build is.
func (a *attempt) hooks(ctx context.Context, names ...string) error {
	sb, err := a.m.opts.Fleet.Get(ctx, a.repo.Account, a.box)
	if err != nil {
		return err
	}
	img, err := a.images().Find(ctx, sb.ImageID)
	if err != nil {
		return err
	}
	env, err := container.Of(img, nil, a.repo.ID)
	if err != nil || env == nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, a.repo.Recipe.limit(), errors.Newf(errors.Timeout,
		"the lifecycle commands of %s exceed the time limit of the build", env.Config))
	defer cancel()
	box := shell.Sandbox{Fleet: a.m.opts.Fleet, Account: a.repo.Account, ID: a.box}
	a.hooked = env.Has("onCreateCommand", "updateContentCommand")
	for _, name := range names {
		if !env.Has(name) {
			continue
		}
		if err := a.stage(name, env.Config, func() error { return env.Run(ctx, box, a.log, name) }); err != nil {
			return err
		}
	}
	return nil
}

// Lookup returns an image that an account may use.
func (m *Manager) Lookup(ctx context.Context, owner, ref string) (image.Image, error) {
	return (&attempt{m: m, repo: Repo{Account: owner}}).images().Find(ctx, ref)
}
