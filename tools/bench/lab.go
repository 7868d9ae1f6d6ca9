package main

import (
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/app/programs"
	"github.com/RelevanceAI/harvest/internal/base/authority"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/debian"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
	"github.com/RelevanceAI/harvest/internal/store"
)

// account owns all sandboxes of a run.
const account = "bench"

// lab is everything that the rows use: Harvest, set up as in its server, and the peers, all on the same files.
type lab struct {
	opts    options
	dir     string // of this run; removed at the end with its content
	limits  engine.Limits
	image   image.Image
	root    string // the image's EROFS file
	files   string // the same files, unpacked
	noFiles error  // why the unpacked files are missing

	noContainers error // why there are none, once a Fleet is open

	programs programs.Programs
	engine   *gvisor.Engine
	db       *store.DB
	vault    *secret.Vault
	fleet    *fleet.Fleet // the current one
	warm     int          // its pool

	authority *authority.Authority // of the servers of rows

	runc, runsc *oci
	closers     []func(context.Context) error
}

// openLab opens everything. On failure nothing is left.
func openLab(ctx context.Context, o options, stderr io.Writer) (*lab, error) {
	l := &lab{opts: o, warm: -1}
	if err := l.open(ctx, stderr); err != nil {
		return nil, errors.Join(err, l.close(context.WithoutCancel(ctx)))
	}
	return l, nil
}

func (l *lab) open(ctx context.Context, stderr io.Writer) error {
	images, err := image.OpenLibrary(l.opts.images,
		image.Sources{Named: map[string]image.Source{"base": debian.New(debian.Options{CertificateDir: imagetest.Certificates})}})
	if err != nil {
		return err
	}
	l.image, err = images.Build(ctx, image.Spec{Base: "base"}, image.BuildOptions{Progress: func(p image.Progress) {
		fmt.Fprintf(stderr, "image: %s %s\n", p.Step, p.Message)
	}})
	if err != nil {
		return err
	}
	l.root = images.Root(l.image)
	data, err := filepath.Abs(l.opts.data)
	if err != nil {
		return errors.Wrapf(err, "find the data directory")
	}
	if l.dir, err = os.MkdirTemp(data, "hvb"); err != nil {
		return errors.Wrapf(err, "make a data directory")
	}
	l.then(l.remove)
	volumes, err := volume.OpenDir(filepath.Join(l.dir, "volumes"))
	if err != nil {
		return err
	}
	l.then(func(context.Context) error { return volumes.Close() })
	if l.db, err = store.Open(ctx, filepath.Join(l.dir, "harvest.db")); err != nil {
		return err
	}
	l.then(func(context.Context) error { return l.db.Close() })
	if err := l.openVault(ctx); err != nil {
		return err
	}
	if l.programs, err = programs.Unpack(filepath.Join(l.dir, "bin")); err != nil {
		return err
	}
	if l.engine, err = gvisor.Open(ctx, gvisor.Options{Dir: l.dir, Images: images, Volumes: volumes,
		Executable: l.programs.Keeper, Sentry: l.programs.Sentry, Tools: l.programs.Tools}); err != nil {
		return err
	}
	l.then(func(context.Context) error { return l.engine.Close() })
	l.then(l.closeFleet)
	l.limits = engine.Limits{CPU: min(1, float64(runtime.NumCPU())), Memory: 2 << 30, Disk: 10 << 30, Processes: 1024,
		Files: 65536} // the Fleet's defaults
	l.unpack(ctx)
	return l.openPeers(ctx)
}

func (l *lab) then(f func(context.Context) error) { l.closers = append(l.closers, f) }

// close ends everything that runs, removes the directory, and reports failures.
func (l *lab) close(ctx context.Context) error {
	var all error
	for _, f := range slices.Backward(l.closers) {
		all = errors.Join(all, f(ctx))
	}
	l.closers = nil
	return all
}

// remove removes the directory, unless it has mounts or running processes below it.
func (l *lab) remove(ctx context.Context) error {
	if b, err := os.ReadFile("/proc/self/mountinfo"); err == nil && strings.Contains(string(b), " "+l.dir+"/") {
		return errors.Errorf("there are mounts left below %s, which is therefore not removed", l.dir)
	}
	left := waitGone(ctx, func(cmdline string) bool { return strings.Contains(cmdline, l.dir) })
	err := errors.Wrapf(os.RemoveAll(l.dir), "remove the data directory")
	if len(left) > 0 {
		err = errors.Join(err, errors.Errorf("processes are left: %v", left))
	}
	return err
}

// unpack extracts the image's files into a directory for peers that need one.
func (l *lab) unpack(ctx context.Context) {
	l.files = filepath.Join(l.dir, "files")
	out, err := exec.CommandContext(ctx, "fsck.erofs", "--extract="+l.files, l.root).CombinedOutput()
	if err != nil {
		l.noFiles = errors.Errorf("the image cannot be unpacked: %v: %s", err, strings.TrimSpace(string(out)))
	}
}

// use opens a Fleet with a pool of that size, unless it is in use. It closes the previous Fleet with its sandboxes.
func (l *lab) use(ctx context.Context, warm int) error {
	if l.fleet != nil && l.warm == warm {
		return nil
	}
	if err := l.closeFleet(ctx); err != nil {
		return err
	}
	kinds := []string{engine.GVisor}
	if _, l.noContainers = l.engine.Containers(); l.noContainers == nil {
		kinds = append(kinds, engine.Container)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(l.authority.PEM()))
	f, err := fleet.Open(ctx, fleet.Options{Engine: l.engine, Store: l.db.Sandboxes(), Defaults: l.limits,
		Isolations: kinds, Secrets: l.vault, Roots: roots, Warm: warm, WarmUp: strings.Fields(l.opts.warmUp)})
	if err == nil {
		l.fleet, l.warm = f, warm
	}
	return err
}

func (l *lab) closeFleet(ctx context.Context) error {
	if l.fleet == nil {
		return nil
	}
	list, err := l.fleet.List(ctx, account, record.Filter{})
	for _, sb := range list {
		err = errors.Join(err, l.fleet.Destroy(ctx, account, sb.ID))
	}
	err = errors.Join(err, l.fleet.Close(ctx))
	l.fleet = nil
	return err
}

// refilled waits until the pool is full.
func (l *lab) refilled(ctx context.Context) error {
	const longest = 30 * time.Second
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	for l.fleet.Stats().Prepared < l.warm {
		if err := pause(ctx, 5*time.Millisecond); err != nil {
			return errors.Wrapf(err, "wait for the pool")
		}
	}
	return nil
}

// create creates a sandbox. destroy ends it, even after the end of ctx.
func (l *lab) create(ctx context.Context, req spec.Request) (sb record.Sandbox, destroy func() error, err error) {
	sb, err = l.fleet.Create(ctx, account, req)
	return sb, func() error { return l.fleet.Destroy(context.WithoutCancel(ctx), account, sb.ID) }, err
}

// exec runs a command to its end. It must succeed.
func (l *lab) exec(ctx context.Context, id string, req fleet.ExecRequest) error {
	x, err := l.fleet.Exec(ctx, account, id, req)
	if err != nil {
		return err
	}
	res, err := x.Wait(ctx)
	if err == nil && res.ReturnCode != 0 {
		err = errors.Errorf("%s ended with %d: %s %s", req.Args[0], res.ReturnCode, res.Stderr, res.Reason)
	}
	return err
}

// anonymous removes the names of this machine and its directories from a text.
func (l *lab) anonymous(text string) string {
	hide := map[string]string{l.dir: "DATA", l.opts.images: "IMAGES"}
	if host, err := os.Hostname(); err == nil && len(host) > 3 { // shorter names occur in ordinary words
		hide[host] = "HOST"
	}
	for what, name := range hide {
		if what != "" {
			text = strings.ReplaceAll(text, what, name)
		}
	}
	const longest = 500
	if len(text) > longest {
		text = strings.ToValidUTF8(text[:longest], "") + "…"
	}
	return text
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
