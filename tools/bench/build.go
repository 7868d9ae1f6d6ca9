package main

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/app/programs"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/build"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile"
)

// buildah is the peer of P13.
const buildah = "buildah"

// buildText is the Dockerfile of P13. The last steps depend on last.txt.
const buildText = `FROM base
WORKDIR /src
COPY first.txt .
RUN sort first.txt >sorted
COPY last.txt .
RUN cat sorted last.txt >all
`

// builder builds the same Dockerfile repeatedly.
type builder struct {
	dir    string
	shelf  dockerfile.Shelf
	peer   []string // buildah with its storage
	change int
}

// P13
func benchBuild(ctx context.Context, l *lab, r *recorder) (err error) {
	b := &builder{dir: filepath.Join(l.dir, "build", "context")}
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		return errors.Wrapf(err, "make a build context")
	}
	for name, text := range map[string]string{"Dockerfile": buildText, "first.txt": strings.Repeat("b\na\n", 1000),
		"last.txt": "0\n"} {
		if err := os.WriteFile(filepath.Join(b.dir, name), []byte(text), 0o644); err != nil {
			return errors.Wrapf(err, "write a build context")
		}
	}
	shut, err := b.open(ctx, l)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shut(context.WithoutCancel(ctx))) }()
	noPeer := b.openPeer(ctx, l)
	if noPeer != nil {
		r.missing(buildah, noPeer)
	}
	for _, row := range []struct {
		name   string
		change bool
	}{{"all cached", false}, {"last layer changed", true}} {
		m := r.measure(row.name, "s")
		m.Aim = &Aim{Peer: buildah, AtMost: 1}
		sides := []side{{harvest, b.timed(row.change, b.harvest)}}
		if noPeer == nil {
			sides = append(sides, side{buildah, b.timed(row.change, b.buildah)})
		}
		if err := r.turns(ctx, r.count(1, 5), []*Measure{m}, sides...); err != nil {
			return err
		}
		m.finish()
	}
	return nil
}

// timed measures a build. With change, it first changes the last file.
func (b *builder) timed(change bool, build func(context.Context) error) func(context.Context) (sample, error) {
	return func(ctx context.Context) (sample, error) {
		if change {
			b.change++
			if err := os.WriteFile(filepath.Join(b.dir, "last.txt"), []byte(strconv.Itoa(b.change)+"\n"),
				0o644); err != nil {
				return nil, errors.Wrapf(err, "change a file")
			}
		}
		name := map[bool]string{false: "all cached", true: "last layer changed"}[change]
		start := time.Now()
		err := build(ctx)
		return sample{name: time.Since(start).Seconds()}, err
	}
}

// given is an image.Source of one existing file.
type given struct{ root string }

func (g given) Resolve(_ context.Context, spec image.Spec, _ image.BuildOptions) (image.Spec, []byte, error) {
	return spec, nil, nil
}

func (g given) Build(_ context.Context, _ image.Spec, _ image.BuildOptions, out image.Output) (image.Contents, error) {
	f, err := os.Open(g.root)
	if err != nil {
		return image.Contents{}, errors.Wrapf(err, "open the image")
	}
	defer f.Close()
	_, err = io.Copy(out.Root, f)
	return image.Contents{}, errors.Wrapf(err, "copy the image")
}

// open sets up a separate Harvest and builds once. shut closes it.
func (b *builder) open(ctx context.Context, l *lab) (shut func(context.Context) error, err error) {
	dir := filepath.Join(l.dir, "build", "data")
	cache, err := dockerfile.OpenCache(filepath.Join(dir, "build-cache"), 20<<30)
	if err != nil {
		return nil, err
	}
	source := dockerfile.New(dockerfile.Options{Cache: cache})
	library, err := image.OpenLibrary(filepath.Join(dir, "images"),
		image.Sources{Named: map[string]image.Source{"base": given{l.root}}, Dockerfile: source})
	if err != nil {
		return nil, err
	}
	b.shelf = dockerfile.Shelf{Library: library, Cache: cache}
	volumes, err := volume.OpenDir(filepath.Join(dir, "volumes"))
	if err != nil {
		return nil, err
	}
	programs, err := programs.Unpack(filepath.Join(dir, "bin"))
	if err != nil {
		return nil, errors.Join(err, volumes.Close())
	}
	eng, err := gvisor.Open(ctx, gvisor.Options{Dir: dir, Images: b.shelf, Volumes: volumes,
		Executable: programs.Keeper, Sentry: programs.Sentry, Tools: programs.Tools})
	if err != nil {
		return nil, errors.Join(err, volumes.Close())
	}
	fleet, err := fleet.Open(ctx, fleet.Options{Engine: eng, Store: l.db.Sandboxes(), Defaults: l.limits})
	if err != nil {
		return nil, errors.Join(err, eng.Close(), volumes.Close())
	}
	source.Connect(b.shelf, build.New(fleet, volumes))
	shut = func(ctx context.Context) error {
		return errors.Join(source.Close(ctx), fleet.Close(ctx), eng.Close(), volumes.Close())
	}
	if err := b.harvest(ctx); err != nil {
		return nil, errors.Join(err, shut(context.WithoutCancel(ctx)))
	}
	return shut, nil
}

func (b *builder) harvest(ctx context.Context) error {
	_, err := b.shelf.Build(ctx, image.Spec{Dockerfile: buildText}, image.BuildOptions{Context: b.dir})
	return err
}

// openPeer gives buildah the same base and builds once.
func (b *builder) openPeer(ctx context.Context, l *lab) error {
	if l.noFiles != nil {
		return l.noFiles
	}
	path, err := exec.LookPath(buildah)
	if err != nil {
		return errors.Wrapf(err, "find buildah")
	}
	dir := filepath.Join(l.dir, "build", buildah)
	for _, driver := range []string{"overlay", "vfs"} {
		b.peer = []string{path, "--root", filepath.Join(dir, driver), "--runroot", filepath.Join(dir, driver+"-run"),
			"--storage-driver", driver}
		if err = b.preparePeer(ctx, l.files); err == nil {
			l.then(func(ctx context.Context) error { return b.run(ctx, "rmi", "--all", "--force") })
			return nil
		}
	}
	return err
}

func (b *builder) preparePeer(ctx context.Context, files string) error {
	if err := b.run(ctx, "from", "--name", "p13", "scratch"); err != nil {
		return err
	}
	for _, args := range [][]string{{"add", "p13", files, "/"}, {"commit", "--disable-compression", "p13",
		"localhost/base"}, {"rm", "p13"}} {
		if err := b.run(ctx, args...); err != nil {
			return err
		}
	}
	return b.buildah(ctx)
}

// buildah builds in a plain root directory, without the namespaces that it uses by default: this is its fastest
// mode. It allows only the host's network, which the Dockerfile does not use.
func (b *builder) buildah(ctx context.Context) error {
	return b.run(ctx, "build", "--layers", "--isolation", "chroot", "--network", "host", "--pull=never", "--tag",
		"localhost/p13", b.dir)
}

func (b *builder) run(ctx context.Context, args ...string) error {
	all := append(append([]string{}, b.peer...), args...)
	out, err := exec.CommandContext(ctx, all[0], all[1:]...).CombinedOutput()
	if err != nil {
		return errors.Errorf("buildah %s: %v: %s", args[0], err, strings.TrimSpace(string(out)))
	}
	return nil
}
