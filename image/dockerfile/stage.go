package dockerfile

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

// executor executes the steps of one stage.
type executor struct {
	*build
	s      *stage
	chain  chain
	missed bool // a step was not in the cache, so later ones are not looked up
	over   *tree

	machine Machine
	slot    bool     // it holds one of the source's slots
	shape   string   // setup of the machine
	tainted bool     // it has files that must not get into the image
	index   index    // of the machine's last snapshot
	pending []string // layers that the machine does not have yet
}

// stage waits for the stages that a stage needs and executes it.
func (b *build) stage(ctx context.Context, s *stage, r *result) error {
	for _, need := range s.needs {
		select {
		case <-b.results[need].done:
			if err := b.results[need].err; err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	x := &executor{build: b, s: s}
	switch {
	case s.base != nil:
		x.chain = b.results[s.base].chain
	case s.img != nil:
		x.chain = chain{img: s.img, key: hash("image", b.owner, s.img.Digest, s.img.Built.UTC().String())}
	default:
		x.chain = chain{key: hash("scratch", b.owner)}
	}
	if x.chain.made == "" {
		x.chain.made = x.chain.key
	}
	err := x.steps(ctx)
	r.chain = x.chain
	err = errors.Join(err, x.stop(ctx))
	if x.slot {
		<-b.source.slots
	}
	return err
}

// takeSlot waits for a slot to run a stage. It must precede all locks, so that the holder of a lock
// does not wait for a slot.
func (x *executor) takeSlot(ctx context.Context) error {
	if x.slot {
		return nil
	}
	select {
	case x.source.slots <- struct{}{}:
		x.slot = true
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (x *executor) steps(ctx context.Context) error {
	for i, st := range x.s.steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := x.step(ctx, st, title(x.s, i, st.text)); err != nil {
			if context.Cause(ctx) != nil && errors.KindOf(err) != errors.Timeout {
				return context.Cause(ctx)
			}
			return x.plan.doc.at(st.line, err)
		}
	}
	return nil
}

// stop ends the machine.
func (x *executor) stop(ctx context.Context) error {
	if x.machine == nil {
		return nil
	}
	m := x.machine
	x.machine = nil
	return errors.Wrapf(m.Close(context.WithoutCancel(ctx)), "end the machine of a build")
}

// hash returns the hash of parts, separated unambiguously.
func hash(parts ...string) string {
	h := sha256.New()
	for _, part := range parts {
		io.WriteString(h, part)
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))
}

// work is a step to execute.
type work struct {
	key string
	do  func(ctx context.Context, out *os.File) error // writes the layer
}

// step executes a step, or takes its result from the cache.
func (x *executor) step(ctx context.Context, st step, title string) error {
	kind := "copy"
	if st.run != nil {
		kind = "run"
	}
	x.log.step(kind, title)
	w, err := x.prepare(ctx, st, title)
	if err != nil {
		return err
	}
	if x.cached(w.key) {
		x.log.line(title + ": cached")
		return nil
	}
	if err := x.takeSlot(ctx); err != nil {
		return err
	}
	unlock, err := x.source.lock(ctx, w.key)
	if err != nil {
		return err
	}
	if x.cached(w.key) { // another build has just made it
		unlock()
		x.log.line(title + ": cached")
		return nil
	}
	x.missed = true
	e := entry{Owner: x.owner, Text: x.log.secrets.Replace(st.text), Made: rand.Text(), Over: x.chain.made}
	file := ""
	if e.Size, file, err = x.make(ctx, w); err != nil {
		unlock()
		return err
	}
	x.commits.Go(func() error {
		defer unlock()
		return x.cache.put(w.key, e)
	})
	return x.advance(w.key, e, file, st.run != nil)
}

// cached advances to the layer of that key if it is in the cache.
func (x *executor) cached(key string) bool {
	if x.missed || x.opts.Force {
		return false
	}
	e, file, release, ok := x.cache.pin(key, x.chain.made)
	if !ok {
		return false
	}
	x.release(release)
	return x.advance(key, e, file, false) == nil
}

// advance adds a layer to the stage. ran means that the machine already has its changes.
func (x *executor) advance(key string, e entry, file string, ran bool) error {
	x.chain.key = key
	if e.Size == 0 {
		return nil
	}
	x.chain.made = hash(x.chain.made, e.Made)
	x.chain.layers = append(x.chain.layers[:len(x.chain.layers):len(x.chain.layers)], file)
	if x.machine != nil && !ran {
		x.pending = append(x.pending, file)
	}
	if x.over == nil {
		return nil
	}
	return x.over.addTar(file)
}

// make writes a layer and returns its size, and a hard link of its file for the build.
func (x *executor) make(ctx context.Context, w *work) (size int64, file string, err error) {
	f, err := os.CreateTemp(x.cache.dir, w.key+".*.new")
	if err != nil {
		return 0, "", tarfs.Explain(err, "a layer")
	}
	err = w.do(ctx, f)
	info, statErr := f.Stat()
	err = errors.Join(err, statErr, f.Close())
	if err == nil && info.Size() == 0 {
		err = x.cache.replace(w.key, "")
	}
	if err != nil || info.Size() == 0 {
		return 0, "", errors.Join(err, os.Remove(f.Name()))
	}
	file, release := x.cache.link(w.key, f.Name())
	x.release(release)
	return info.Size(), file, x.cache.replace(w.key, f.Name())
}

// release registers a function to call at the end of the build.
func (b *build) release(what func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.releases = append(b.releases, what)
}

// tree returns the current files of the stage.
func (x *executor) tree() (*tree, error) {
	if x.over == nil {
		t, err := x.build.tree(x.chain)
		if err != nil {
			return nil, err
		}
		x.over = t
	}
	return x.over, nil
}

// prepare returns the key of a step and the work to do.
func (x *executor) prepare(ctx context.Context, st step, title string) (*work, error) {
	switch {
	case st.run != nil:
		return x.prepareRun(st.run, title)
	case st.dir != nil:
		return x.prepareDir(st.dir)
	case len(st.copy.Sources) == 1 && isURL(st.copy.Sources[0]):
		return x.prepareFetch(st.copy, title), nil
	}
	return x.prepareCopy(st.copy)
}

// prepareDir prepares a WORKDIR.
func (x *executor) prepareDir(d *workdir) (*work, error) {
	return &work{x.key("workdir", d.Path, d.User), func(_ context.Context, out *os.File) error {
		over, err := x.tree()
		if err != nil {
			return err
		}
		l := newLayer(over, x.temp)
		l.epoch = x.plan.epoch
		if l.own, err = findOwner(over, d.User); err != nil {
			return err
		}
		if err := l.mkdir(d.Path, newDir(0o755)); err != nil {
			return err
		}
		return l.write(out)
	}}, nil
}

// sourceTree returns the tree that an instruction copies from, and its name in errors.
func (x *executor) sourceTree(from string) (*tree, string, error) {
	if from == "" || from == "context" {
		t, err := x.context()
		return t, contextName, err
	}
	src := x.s.sources[from]
	t, err := x.results[src].files()
	return t, "the stage or image " + from, err
}

// prepareCopy prepares a COPY or ADD. The digest of an earlier copy from a stage is cached, so that
// the files need not be read again.
func (x *executor) prepareCopy(c *copying) (*work, error) {
	var all []picked
	pick := func() error {
		if all != nil {
			return nil
		}
		from, what, err := x.sourceTree(c.From)
		if err == nil {
			all, err = c.pick(from, what)
		}
		return err
	}
	digest, memo := "", ""
	if src := x.s.sources[c.From]; src != nil {
		how, err := json.Marshal(c)
		if err != nil {
			return nil, errors.Wrapf(err, "encode an instruction")
		}
		memo = hash("memo", x.results[src].chain.made, string(how))
		if e, ok := x.cache.get(memo); ok && !x.opts.Force {
			digest = e.Memo
		}
	}
	if digest == "" {
		err := pick()
		if err == nil {
			x.hashing.Lock()
			digest, err = c.digest(all)
			x.hashing.Unlock()
		}
		if err == nil && memo != "" {
			err = x.cache.put(memo, entry{Owner: x.owner, Memo: digest})
		}
		if err != nil {
			return nil, err
		}
	}
	return &work{x.key("copy", digest), func(_ context.Context, out *os.File) error {
		if err := pick(); err != nil {
			return err
		}
		over, err := x.tree()
		if err != nil {
			return err
		}
		return x.lay(c, over, all, out)
	}}, nil
}

// lay writes the layer of a COPY or ADD.
func (x *executor) lay(c *copying, over *tree, all []picked, out *os.File) error {
	l, err := c.lay(over, all, x.temp)
	if err != nil {
		return err
	}
	l.epoch = x.plan.epoch
	return l.write(out)
}

// key returns the key of a step that sets file times. It includes SOURCE_DATE_EPOCH if that is set.
func (x *executor) key(parts ...string) string {
	parts = append([]string{x.chain.key}, parts...)
	if !x.plan.epoch.IsZero() {
		parts = append(parts, sourceDateEpoch, strconv.FormatInt(x.plan.epoch.Unix(), 10))
	}
	return hash(parts...)
}

// catchUp copies the layers that this process made to the machine.
func (x *executor) catchUp(ctx context.Context) error {
	if len(x.pending) == 0 {
		return nil
	}
	for _, name := range x.pending {
		if err := x.copyLayer(ctx, name); err != nil {
			return err
		}
	}
	x.pending = nil
	var err error
	x.index, err = x.snapshot(ctx, &delta{before: index{}})
	return err
}

func (x *executor) copyLayer(ctx context.Context, name string) error {
	f, err := os.Open(name)
	if err != nil {
		return errors.Wrapf(err, "open a layer")
	}
	defer f.Close()
	return errors.Wrapf(x.machine.CopyIn(ctx, "/", f), "copy a layer into the machine")
}

// snapshot takes a snapshot of the machine and compares it with d.before.
func (x *executor) snapshot(ctx context.Context, d *delta) (index, error) {
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := x.machine.Snapshot(ctx, w)
		w.CloseWithError(err)
		sent <- err
	}()
	after, err := d.run(r)
	r.CloseWithError(err)
	if sendErr := <-sent; err == nil {
		err = sendErr
	}
	return after, err
}

// hiddenBelow returns a function that reports whether a name is at or below any of the paths.
func hiddenBelow(paths []string) func(string) bool {
	return func(name string) bool {
		for _, p := range paths {
			if name == p || strings.HasPrefix(name, p+"/") || name == path.Join(path.Dir(p), whiteout+path.Base(p)) {
				return true
			}
		}
		return false
	}
}
