package dockerfile

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/plan"
)

// executor executes the steps of one line.
type executor struct {
	*build
	line   *line
	chain  chain
	missed bool // a step was not in the cache, so later ones are not looked up
	over   *files.Tree

	machine Machine
	slot    bool        // it holds one of the source's slots
	shape   string      // setup of the machine
	tainted bool        // it has files that must not get into the image
	index   files.Index // of the machine's last snapshot
	pending []string    // layers that the machine does not have yet
}

// runLine waits for the operations that a line needs and executes it.
func (b *build) runLine(ctx context.Context, l *line) error {
	x := &executor{build: b, line: l}
	err := x.start(ctx)
	if err == nil {
		err = x.steps(ctx)
	}
	for _, v := range l.steps {
		b.results[v].fail(err)
	}
	err = errors.Join(err, x.stop(ctx))
	if x.slot {
		<-b.source.slots
	}
	return err
}

func (x *executor) start(ctx context.Context) error {
	for _, need := range x.line.needs {
		r := x.results[need]
		select {
		case <-r.done:
			if r.err != nil {
				return r.err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	x.chain = x.empty()
	if base := x.line.steps[0].Root(); base != nil {
		r, err := x.result(base)
		if err != nil {
			return err
		}
		x.chain = r.chain
	}
	return nil
}

// empty is the chain of a tree without files.
func (b *build) empty() chain {
	key := hash("scratch", recipe, b.owner)
	return chain{key: key, made: key}
}

// takeSlot waits for a slot to run a line. It must precede all locks, so that the holder of a lock
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
	for _, v := range x.line.steps {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := x.step(ctx, v); err != nil {
			if context.Cause(ctx) != nil && errors.KindOf(err) != errors.Timeout {
				return context.Cause(ctx)
			}
			return x.plan.At(v, err)
		}
		x.results[v].finish(x.chain)
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
func (x *executor) step(ctx context.Context, v *plan.Vertex) error {
	title, kind := v.Title, "copy"
	if v.Op.GetExec() != nil {
		kind = "run"
	}
	x.log.step(kind, title)
	if merge := v.Op.GetMerge(); merge != nil {
		return x.merge(v)
	}
	w, err := x.prepare(ctx, v)
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
	e := entry{Owner: x.owner, Text: x.log.secrets.Replace(v.Text()), Made: rand.Text(), Over: x.chain.made}
	start := time.Now()
	if err := x.make(ctx, w, &e); err != nil {
		unlock()
		return err
	}
	x.log.ended(title, time.Since(start))
	x.commits.Go(func() error {
		defer unlock()
		return x.cache.put(w.key, e)
	})
	return x.advance(w.key, e, v.Op.GetExec() != nil)
}

// cached advances to the layer of that key if it is in the cache.
func (x *executor) cached(key string) bool {
	if x.missed || x.opts.Force {
		return false
	}
	e, ok := x.cache.get(key)
	return ok && e.Made != "" && e.Over == x.chain.made && x.advance(key, e, false) == nil
}

// advance adds a layer to the stage. ran means that the machine already has its changes.
func (x *executor) advance(key string, e entry, ran bool) error {
	x.chain.key = key
	if e.Size == 0 {
		return nil
	}
	file := x.cache.layerName(key, e)
	x.chain.made = hash(x.chain.made, e.Made)
	x.chain.layers = append(slices.Clip(x.chain.layers), file)
	if x.machine != nil && !ran {
		x.pending = append(x.pending, file)
	}
	if x.over == nil {
		return nil
	}
	return x.over.AddTar(file)
}

// make writes a layer and sets its size.
func (x *executor) make(ctx context.Context, w *work, e *entry) error {
	f, err := os.CreateTemp(x.cache.dir, w.key+".*.new")
	if err != nil {
		return tarfs.Explain(err, "a layer")
	}
	err = w.do(ctx, f)
	info, statErr := f.Stat()
	if err = errors.Join(err, statErr, f.Close()); err == nil {
		e.Size = info.Size()
		err = x.cache.replace(w.key, *e, f.Name())
	}
	if err != nil {
		return errors.Join(err, os.Remove(f.Name()))
	}
	return nil
}

// tree returns the current files of the stage.
func (x *executor) tree() (*files.Tree, error) {
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
func (x *executor) prepare(ctx context.Context, v *plan.Vertex) (*work, error) {
	switch {
	case v.Op.GetExec() != nil:
		return x.prepareRun(v)
	case v.Op.GetSource() != nil:
		return x.prepareFetch(v), nil
	}
	return x.prepareFile(ctx, v)
}

// prepareFile prepares a file operation. The digest of an earlier copy from other operations is cached, so that the
// files need not be read again.
func (x *executor) prepareFile(ctx context.Context, v *plan.Vertex) (*work, error) {
	op := v.Op.GetFile()
	how, err := op.MarshalVT()
	if err != nil {
		return nil, errors.Wrapf(err, "encode an operation")
	}
	open := sync.OnceValues(func() ([]files.Source, error) {
		sources := make([]files.Source, len(v.Inputs))
		for i := range v.Copies() {
			var err error
			if sources[i], err = x.files(v.Inputs[i]); err != nil {
				return nil, err
			}
		}
		return sources, nil
	})
	digest, err := x.copied(ctx, v, string(how), open)
	if err != nil {
		return nil, err
	}
	return &work{x.key("file", string(how), digest), func(_ context.Context, out *os.File) error {
		sources, err := open()
		if err != nil {
			return err
		}
		over, err := x.tree()
		if err != nil {
			return err
		}
		x.over = nil // it is incomplete if an action fails
		l := files.NewLayer(over, x.temp)
		l.Epoch = x.plan.Epoch
		if err := l.Apply(op, sources); err != nil {
			return err
		}
		x.over = over
		return l.Write(out)
	}}, nil
}

// copied returns the digest of the files that an operation copies.
func (x *executor) copied(ctx context.Context, v *plan.Vertex, how string,
	open func() ([]files.Source, error)) (string, error) {
	memo, lasting := []string{"memo", how}, true
	for i := range v.Copies() {
		switch from := v.Inputs[i]; {
		case x.results[from] != nil:
			memo = append(memo, x.results[from].chain.made)
		case from.IsInline():
			memo = append(memo, from.Digest)
		default: // the build context
			lasting = false
		}
	}
	key := hash(memo...)
	if lasting {
		unlock, err := x.source.lock(ctx, key) // only one of equal builds writes it
		if err != nil {
			return "", err
		}
		defer unlock()
		if e, ok := x.cache.get(key); ok && !x.opts.Force {
			return e.Memo, nil
		}
	}
	sources, err := open()
	if err != nil {
		return "", err
	}
	digest, err := files.Copied(v.Op.GetFile(), sources)
	if err == nil && lasting && digest != "" {
		err = x.cache.put(key, entry{Owner: x.owner, Memo: digest})
	}
	return digest, err
}

// merge puts the layers of the other inputs over the files of the first one.
func (x *executor) merge(v *plan.Vertex) error {
	for _, in := range v.Inputs[1:] {
		r, err := x.result(in)
		if err != nil {
			return err
		}
		if r.chain.img != nil {
			return errors.Newf(errors.Unsupported, "an image cannot be merged over files")
		}
		x.chain.key = hash("merge", x.chain.key, r.chain.key)
		x.chain.made = hash("merge", x.chain.made, r.chain.made)
		x.chain.layers = append(slices.Clip(x.chain.layers), r.chain.layers...)
		if x.machine != nil {
			x.pending = append(x.pending, r.chain.layers...)
		}
		x.over = nil
	}
	return nil
}

// key returns the key of a step that sets file times. It includes SOURCE_DATE_EPOCH if that is set.
func (x *executor) key(parts ...string) string {
	parts = append([]string{x.chain.key}, parts...)
	if !x.plan.Epoch.IsZero() {
		parts = append(parts, plan.EpochArg, strconv.FormatInt(x.plan.Epoch.Unix(), 10))
	}
	return hash(parts...)
}

// catchUp copies the layers that this process made to the machine.
func (x *executor) catchUp(ctx context.Context) error {
	if len(x.pending) == 0 {
		return nil
	}
	for _, name := range x.pending {
		if err := piped(func(w io.Writer) error { return files.Concat(w, []string{name}) },
			func(r io.Reader) error { return x.machine.CopyIn(ctx, "/", r) }); err != nil {
			return errors.Wrapf(err, "copy a layer into the machine")
		}
	}
	x.pending = nil
	return x.begin(ctx)
}

// snapshot takes a snapshot of the machine and compares it with d.before.
func (x *executor) snapshot(ctx context.Context, d *files.Delta) (after files.Index, err error) {
	err = piped(func(w io.Writer) error { return x.machine.Snapshot(ctx, w) },
		func(r io.Reader) error { after, err = d.Run(r); return err })
	return after, err
}

// piped makes read get the output of write, of which it may leave out the end. If both fail, the error is that of read.
func piped(write func(w io.Writer) error, read func(r io.Reader) error) error {
	r, w := io.Pipe()
	sent := make(chan error, 1)
	go func() {
		err := write(w)
		w.CloseWithError(err)
		sent <- err
	}()
	err := read(r)
	r.CloseWithError(err)
	if sendErr := <-sent; err == nil && !errors.Is(sendErr, io.ErrClosedPipe) {
		err = sendErr
	}
	return err
}
