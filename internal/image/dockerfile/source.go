// Package dockerfile builds images from Dockerfiles, and from instructions on top of an image.
//
// The syntax is BuildKit's, parsed by its own parser. Results of instructions are cached by their
// input, so that only the instructions after a change run again. COPY and similar instructions are
// executed in this process. RUN runs in machines of a Runner, which are isolated like any sandbox.
package dockerfile

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/moby/buildkit/solver/pb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/plan"
)

// recipe must change when the same Dockerfile would produce another image.
const recipe = "3"

// Options configures a Source. Cache is required; zero values of the others select the defaults
// below.
type Options struct {
	Cache   *Cache
	Context files.Limits  // 8 GiB, 500,000 files
	Run     time.Duration // time limit of each RUN: 30 minutes
	Build   time.Duration // time limit of a build: 2 hours
	// Merged is the maximum size of layers, in bytes, to start a machine from its image with one
	// layer: 256 MiB. Above it, a whole root file system is written first, which starts faster and
	// needs no memory.
	Merged int64
	AtOnce int // maximum concurrent stages of all builds: 2
}

// Source is the image.Source of specs with a Dockerfile or with Commands.
type Source struct {
	opts Options

	slots  chan struct{}  // taken by stages that run commands
	builds sync.WaitGroup // incremented with mu held

	mu     sync.Mutex
	closed bool                               // guarded by mu
	ends   map[*build]context.CancelCauseFunc // guarded by mu; of the builds in progress
	images Images                             // guarded by mu
	runner Runner                             // guarded by mu
	locks  map[string]chan struct{}           // guarded by mu; of layers being made, and of cache mounts
}

// New returns a Source. It can build once it is connected.
func New(opts Options) *Source {
	opts.Context.Bytes = cmp.Or(opts.Context.Bytes, 8<<30)
	opts.Context.Files = cmp.Or(opts.Context.Files, 500_000)
	opts.Run = cmp.Or(opts.Run, 30*time.Minute)
	opts.Build = cmp.Or(opts.Build, 2*time.Hour)
	opts.Merged = cmp.Or(opts.Merged, 256<<20)
	opts.AtOnce = cmp.Or(opts.AtOnce, 2)
	return &Source{opts: opts, slots: make(chan struct{}, opts.AtOnce), locks: map[string]chan struct{}{},
		ends: map[*build]context.CancelCauseFunc{}}
}

// Close cancels all builds and waits for their end.
func (s *Source) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	for _, end := range s.ends {
		end(closing())
	}
	s.mu.Unlock()
	done := make(chan struct{})
	go func() { s.builds.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait for the end of builds")
	}
}

func closing() error {
	return errors.Remedy(errors.Newf(errors.Unavailable, "Harvest is shutting down"), "try again when it runs")
}

// begin registers a build, which is canceled when the Source is closed.
func (s *Source) begin(ctx context.Context, b *build) (context.Context, func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, closing()
	}
	s.builds.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	s.ends[b] = cancel
	end := s.opts.Cache.begin()
	return ctx, func() {
		end()
		cancel(nil)
		s.mu.Lock()
		delete(s.ends, b)
		s.mu.Unlock()
		s.builds.Done()
	}, nil
}

// Connect sets the library, of which the source is itself a part, and the runner of commands, which
// uses that library.
func (s *Source) Connect(images Images, runner Runner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.images, s.runner = images, runner
}

func (s *Source) connected() (Images, Runner, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.images == nil || s.runner == nil {
		return nil, nil, errors.Newf(errors.Unavailable, "Harvest is not ready to build images yet")
	}
	return s.images, s.runner, nil
}

// lock waits for the lock of that name and takes it.
func (s *Source) lock(ctx context.Context, name string) (unlock func(), err error) {
	for {
		s.mu.Lock()
		held := s.locks[name]
		if held == nil {
			mine := make(chan struct{})
			s.locks[name] = mine
			s.mu.Unlock()
			return sync.OnceFunc(func() {
				s.mu.Lock()
				delete(s.locks, name)
				s.mu.Unlock()
				close(mine)
			}), nil
		}
		s.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// Resolve implements image.Source. It sets the digest of the context's files in the spec, if the
// Dockerfile uses any. The fingerprint is that of the images below, which Resolve pulls.
func (s *Source) Resolve(ctx context.Context, spec image.Spec, opts image.BuildOptions) (image.Spec, []byte, error) {
	p, err := s.plan(ctx, spec, opts)
	if err != nil {
		return spec, nil, errors.Stage(err, "image: plan")
	}
	spec.Context = ""
	if slices.ContainsFunc(p.Order, (*plan.Vertex).IsContext) {
		files, err := files.OpenContext(ctx, opts.Context, s.opts.Context)
		if err != nil {
			return spec, nil, errors.Stage(err, "image: context")
		}
		defer files.Close()
		if spec.Context, err = contextDigest(p, files); err != nil {
			return spec, nil, errors.Stage(err, "image: context")
		}
	}
	type stand struct {
		Digest string
		Built  time.Time
	}
	var on []stand
	for _, img := range p.Images() {
		on = append(on, stand{img.Digest, img.Built})
	}
	text, err := json.Marshal(struct {
		Recipe, Architecture string
		On                   []stand
	}{recipe, runtime.GOARCH, on})
	return spec, text, errors.Wrapf(err, "encode the fingerprint")
}

// plan plans the Dockerfile and pulls its images.
func (s *Source) plan(ctx context.Context, spec image.Spec, opts image.BuildOptions) (*plan.Plan, error) {
	images, _, err := s.connected()
	if err != nil {
		return nil, err
	}
	return plan.New(ctx, spec, func(ctx context.Context, ref, platform string) (image.Image, error) {
		return image.Of(images, spec.Owner).Build(ctx, image.Spec{Base: ref, Platform: platform},
			image.BuildOptions{Foreign: platform != "", Pull: opts.Pull, Credentials: opts.Credentials,
				Progress: opts.Progress, Log: opts.Log})
	})
}

// contextDigest is the hash of the files in the build context that steps use.
func contextDigest(p *plan.Plan, all *files.Tree) (string, error) {
	var sums []string
	b := &build{context: func() (*files.Tree, error) { return all, nil }}
	add := func(v *plan.Vertex, sum string, err error) error {
		sums = append(sums, sum)
		return p.At(v, err)
	}
	for _, v := range p.Order {
		sources, only := make([]files.Source, len(v.Inputs)), &pb.FileOp{}
		for i, action := range v.Copies() {
			if v.Inputs[i].IsContext() {
				sources[i] = files.Source{Tree: all, Name: files.ContextName}
				only.Actions = append(only.Actions, action)
			}
		}
		if len(only.Actions) > 0 {
			sum, err := files.Copied(only, sources)
			if err := add(v, sum, err); err != nil {
				return "", err
			}
		}
		for _, m := range v.Op.GetExec().GetMounts() {
			if m.Input >= 0 && v.Inputs[m.Input].IsContext() {
				sum, err := b.bindDigest(mount{from: v.Inputs[m.Input], source: m.Selector})
				if err := add(v, sum, err); err != nil {
					return "", err
				}
			}
		}
	}
	return "sha256:" + hash(sums...), nil
}

// Build implements image.Source.
func (s *Source) Build(ctx context.Context, spec image.Spec, opts image.BuildOptions,
	out image.Output) (image.Contents, error) {
	images, runner, err := s.connected()
	if err != nil {
		return image.Contents{}, err
	}
	limit := errors.Remedy(errors.Newf(errors.Timeout, "the build exceeded its time limit of %s", s.opts.Build),
		"split the Dockerfile, or make its commands faster")
	b := &build{source: s, cache: s.opts.Cache, images: images, runner: runner, owner: spec.Owner, opts: opts,
		temp: out.Temp, results: map[*plan.Vertex]*result{}}
	ctx, end, err := s.begin(ctx, b)
	if err != nil {
		return image.Contents{}, err
	}
	defer end()
	ctx, cancel := context.WithTimeoutCause(ctx, s.opts.Build, limit)
	defer cancel()
	p, err := s.plan(ctx, spec, image.BuildOptions{Credentials: opts.Credentials, Progress: opts.Progress,
		Log: opts.Log})
	if err != nil {
		return image.Contents{}, errors.Stage(err, "image: plan")
	}
	b.plan = p
	b.context = sync.OnceValues(func() (*files.Tree, error) {
		return files.OpenContext(ctx, opts.Context, s.opts.Context)
	})
	contents, err := b.run(ctx, out.Root)
	err = errors.Join(err, b.close())
	if cause := context.Cause(ctx); err != nil && cause != nil {
		err = errors.Explainf(err, errors.KindOf(cause), "%s", errors.Message(cause))
	}
	if err == nil {
		_, _, err = s.opts.Cache.Collect(ctx, time.Time{}, s.opts.Cache.max, false)
	}
	return contents, errors.Stage(err, "image: build")
}

// build is a build in progress.
type build struct {
	source  *Source
	cache   *Cache
	images  Images
	runner  Runner
	owner   string // the account that will own the image
	plan    *plan.Plan
	opts    image.BuildOptions
	log     *buildLog
	temp    string
	context func() (*files.Tree, error)

	commits errgroup.Group // layers being flushed to the disk
	hashing sync.Mutex     // held while files are hashed, since they cache their hash

	results map[*plan.Vertex]*result // of images and steps; constant once the first line runs

	mu   sync.Mutex
	ends []func() error // guarded by mu; to call at the end of the build
}

// chain is a root file system: an image with layers over it.
type chain struct {
	img    *image.Image // nil if empty
	key    string
	made   string   // identifies the layers; differs if one is made again
	layers []string // files of the layers with changes
}

// result is the result of an operation.
type result struct {
	done  chan struct{} // closed when the others are set
	chain chain
	err   error
	files func() (*files.Tree, error) // all files
}

func (r *result) finish(c chain) {
	r.chain = c
	close(r.done)
}

// fail sets the error of an operation that has not finished.
func (r *result) fail(err error) {
	select {
	case <-r.done:
	default:
		r.err = err
		close(r.done)
	}
}

// later registers a function to call at the end of the build.
func (b *build) later(end func() error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ends = append(b.ends, end)
}

// close releases the resources of the build.
func (b *build) close() error {
	err := b.commits.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, end := range b.ends {
		err = errors.Join(err, end())
	}
	return err
}

// run executes all lines and writes the target's files into root.
func (b *build) run(ctx context.Context, root *os.File) (image.Contents, error) {
	for _, img := range b.plan.Images() {
		release, err := b.images.Use(img.ID, "a build")
		if err != nil {
			return image.Contents{}, err
		}
		b.later(func() error { release(); return nil })
	}
	isStep := steps(b.plan)
	b.log = newLog(b.opts, len(isStep))
	for _, v := range b.plan.Order {
		if v.Image == nil && !isStep[v] {
			continue
		}
		r := &result{done: make(chan struct{})}
		r.files = sync.OnceValues(func() (*files.Tree, error) { return b.tree(r.chain) })
		b.results[v] = r
		if img := v.Image; img != nil {
			key := hash("image", recipe, b.owner, img.Digest, img.Built.UTC().String())
			r.finish(chain{img: img, key: key, made: key})
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	for _, l := range lines(b.plan, isStep) {
		g.Go(func() error { return b.runLine(ctx, l) })
	}
	if err := g.Wait(); err != nil {
		return image.Contents{}, err
	}
	contents := image.Contents{Config: b.plan.Config, Parts: []image.Part{}, Missing: []image.Part{}}
	last := b.empty()
	if b.plan.Target != nil {
		last = b.results[b.plan.Target].chain
	}
	if last.img != nil {
		contents.Parts, contents.Missing = last.img.Parts, last.img.Missing
		contents.Config.AddTrust(last.img.Config.AddedEnv())
	}
	b.log.step("pack", "writing the image")
	name, err := b.root(context.WithoutCancel(ctx), last)
	if err == nil {
		contents.Root, err = b.share(name, root)
	}
	return contents, err
}

// result returns the result of an operation that has finished.
func (b *build) result(v *plan.Vertex) (*result, error) {
	if r := b.results[v]; r != nil {
		return r, nil
	}
	return nil, errors.Newf(errors.Unsupported, "the operation %.100q cannot be the base of another one", v.Title)
}

// files returns the files of an operation that has finished.
func (b *build) files(v *plan.Vertex) (files.Source, error) {
	if r := b.results[v]; r != nil {
		t, err := r.files()
		return files.Source{Tree: t, Name: nameOf(v)}, err
	}
	if v.IsContext() {
		t, err := b.context()
		return files.Source{Tree: t, Name: files.ContextName}, err
	}
	t := files.NewTree()
	err := files.NewLayer(t, b.temp).Apply(v.Op.GetFile(), nil)
	return files.Source{Tree: t, Name: "the Dockerfile"}, err
}

// nameOf returns the name of an operation's files in errors.
func nameOf(v *plan.Vertex) string {
	stage, _, _ := strings.Cut(strings.TrimPrefix(v.Title, "["), " ")
	switch {
	case v.Image != nil && len(v.Image.Names) > 0:
		return "the image " + v.Image.Names[0]
	case v.Image != nil:
		return "the image"
	case strings.HasPrefix(v.Title, "[") && !strings.Contains(stage, "/"):
		return "the stage " + stage
	}
	return "the stage"
}

// root returns the file of a chain's root file system: the image's if there are no layers, or the cache's, which is
// written if it does not exist.
func (b *build) root(ctx context.Context, c chain) (string, error) {
	if c.img != nil && len(b.layerFiles(c)) == 0 {
		return b.base(c), nil
	}
	unlock, err := b.source.lock(ctx, "root "+c.key+c.made)
	if err != nil {
		return "", err
	}
	defer unlock()
	return b.cache.makeRoot(c, func(f *os.File) error { return files.Flatten(ctx, f, b.base(c), b.layerFiles(c)) })
}

// share returns a hard link to a root file system, or copies it to root where no link is possible.
func (b *build) share(name string, root *os.File) (string, error) {
	from, err := os.Open(name)
	if err != nil {
		return "", errors.Wrapf(err, "open a root file system")
	}
	defer from.Close()
	link := filepath.Join(b.temp, "shared.erofs")
	if os.Link(name, link) == nil {
		return link, errors.Wrapf(from.Sync(), "share a root file system")
	}
	_, err = io.Copy(root, from)
	return "", errors.Wrapf(err, "copy a root file system")
}

// base returns the file of a chain's image.
func (b *build) base(c chain) string {
	if c.img == nil {
		return ""
	}
	return b.images.Root(*c.img)
}

// layerFiles returns the files of a chain's layers, including that of an image that is a snapshot.
func (b *build) layerFiles(c chain) []string {
	var all []string
	if c.img != nil {
		if name := b.images.Layer(*c.img); name != "" {
			all = append(all, name)
		}
	}
	return append(all, c.layers...)
}

// tree returns all files of a chain.
func (b *build) tree(c chain) (*files.Tree, error) {
	t := files.NewTree()
	b.later(t.Close)
	if name := b.base(c); name != "" {
		if err := t.AddImage(name); err != nil {
			return nil, err
		}
	}
	for _, name := range b.layerFiles(c) {
		if err := t.AddTar(name); err != nil {
			return nil, err
		}
	}
	return t, nil
}
