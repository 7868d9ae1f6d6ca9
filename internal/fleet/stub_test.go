package fleet_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

func TestMain(m *testing.M) {
	fake.Main()
	if os.Getenv("HARVEST_TEST_LOG") == "" {
		logf.Setup(io.Discard, 0, false)
	}
	os.Exit(m.Run())
}

// stub is an engine that only waits on channels, so that tests on a synthetic clock can observe the order of events.
type stub struct {
	mu       sync.Mutex
	boxes    map[string]*box          // by Ref; guarded by mu, like all below
	count    int                      // of refs that were given
	specs    []engine.Spec            // of all Creates and Claims that succeeded
	prepares []string                 // all calls of Prepare: ref, image, warm-up
	uses     map[string]int           // names of images and volumes that are in use
	builds   int                      // of the base image
	others   []image.Image            // besides the base image
	library  bool                     // snapshots are kept, each with an ID of its own
	kept     []string                 // images of suspended sandboxes that were given to their users
	absent   bool                     // the base image has to be built
	faults   map[string][]error       // errors of the next calls, by name of the call
	hooks    map[string]func()        // run during the call
	caps     engine.Capabilities      // the result of Capabilities
	volumes  map[string]bool          // that were created
	looks    int                      // the number of usage measurements
	memory   int64                    // that each sandbox holds
	blocked  map[string]chan struct{} // calls that wait until it is closed, or ctx ends
	leaving  map[string]time.Time     // when the engine ends a sandbox, by Ref
	announce chan struct{}            // the result of Announced
	life     time.Duration            // after which the engine ends sandboxes, which are to be carried over an hour before; 0: never
}

func newStub() *stub {
	return &stub{
		boxes: map[string]*box{}, uses: map[string]int{}, faults: map[string][]error{}, hooks: map[string]func(){},
		volumes: map[string]bool{}, blocked: map[string]chan struct{}{}, leaving: map[string]time.Time{},
		caps: engine.Capabilities{
			Isolation: "stub", Limits: []string{"cpu", "memory", "processes", "disk", "files"},
			Terminal: true, Reopen: true, Warm: true, Volumes: true, Users: true, Hostname: true, Isolated: true,
		},
	}
}

// fail makes the next calls return errs, one after the other.
func (s *stub) fail(call string, errs ...error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults[call] = append(s.faults[call], errs...)
}

func (s *stub) block(call string) (unblock func()) {
	c := make(chan struct{})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blocked[call] = c
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.blocked, call)
		close(c)
	}
}

func (s *stub) called(ctx context.Context, call string) error {
	s.mu.Lock()
	blocked, hook := s.blocked[call], s.hooks[call]
	var err error
	if errs := s.faults[call]; len(errs) > 0 {
		err, s.faults[call] = errs[0], errs[1:]
	}
	s.mu.Unlock()
	if hook != nil {
		hook()
	}
	if blocked != nil {
		select {
		case <-blocked:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return err
}

func (s *stub) Name() string                      { return "stub" }
func (s *stub) Capabilities() engine.Capabilities { return s.caps }
func (s *stub) Close() error                      { return nil }
func (s *stub) Images() image.Builder             { return stubImages{s: s} }
func (s *stub) Volumes() volume.Provider          { return stubVolumes{s: s} }

func (s *stub) add(h engine.Handle) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	h.Ref = fmt.Sprintf("ref%d", s.count)
	b := &box{s: s, handle: h, made: time.Now(), ended: make(chan struct{}), broken: make(chan struct{}),
		procs: map[string]*proc{}, net: &boxNet{more: make(chan struct{}, 100)}}
	s.boxes[h.Ref] = b
	return b
}

func (s *stub) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	if err := s.called(ctx, "create"); err != nil {
		return nil, err
	}
	spec.Stage("boot", 3*time.Millisecond)
	s.mu.Lock()
	s.specs = append(s.specs, spec)
	s.mu.Unlock()
	b := s.add(engine.Handle{ID: spec.ID})
	b.spec = spec
	return b, nil
}

func (s *stub) Open(ctx context.Context, h engine.Handle) (engine.Sandbox, error) {
	if err := s.called(ctx, "open"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.boxes[h.Ref]
	if old == nil {
		return nil, errors.Newf(errors.NotFound, "there is no %s", h.Ref)
	}
	// A new connection to the same sandbox.
	b := &box{s: s, handle: old.handle, spec: old.spec, made: old.made, ended: old.ended, end: old.end,
		broken: make(chan struct{}),
		procs:  old.procs, net: old.net}
	s.boxes[h.Ref] = b
	return b, nil
}

func (s *stub) List(ctx context.Context) ([]engine.Handle, error) {
	if err := s.called(ctx, "list"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []engine.Handle
	for _, b := range s.boxes {
		all = append(all, b.handle)
	}
	return all, nil
}

func (s *stub) Warm(ctx context.Context, _ engine.Limits) (engine.Warm, error) {
	if err := s.called(ctx, "warm"); err != nil {
		return nil, err
	}
	return stubWarm{s.add(engine.Handle{})}, nil
}

// refs lists the existing sandboxes.
func (s *stub) refs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []string
	for ref := range s.boxes {
		all = append(all, ref)
	}
	slices.Sort(all)
	return all
}

func (s *stub) box(t *testing.T, id string) *box {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.boxes {
		if b.handle.ID == id {
			return b
		}
	}
	t.Fatalf("the engine has no sandbox %s", id)
	return nil
}

type stubWarm struct{ b *box }

func (w stubWarm) Handle() engine.Handle             { return w.b.handle }
func (w stubWarm) Destroy(ctx context.Context) error { return w.b.Destroy(ctx) }
func (w stubWarm) Prepare(ctx context.Context, image string, warmUp []string) error {
	err := w.b.s.called(ctx, "prepare")
	w.b.s.mu.Lock()
	defer w.b.s.mu.Unlock()
	w.b.s.prepares = append(w.b.s.prepares, w.b.handle.Ref+" "+image+" "+strings.Join(warmUp, " "))
	return err
}
func (w stubWarm) Claim(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	if err := w.b.s.called(ctx, "claim"); err != nil {
		return nil, errors.Join(err, w.b.Destroy(context.WithoutCancel(ctx)))
	}
	w.b.s.mu.Lock()
	defer w.b.s.mu.Unlock()
	w.b.handle.ID, w.b.spec = spec.ID, spec
	w.b.s.specs = append(w.b.s.specs, spec)
	return w.b, nil
}

// box is a sandbox of stub.
type box struct {
	s      *stub
	handle engine.Handle
	spec   engine.Spec
	made   time.Time
	ended  chan struct{}
	broken chan struct{} // closed when the connection to it breaks
	end    *engine.End
	procs  map[string]*proc // guarded by s.mu
	net    *boxNet
}

func (b *box) Handle() engine.Handle { return b.handle }

// leave announces that the engine ends a sandbox soon.
func (s *stub) leave(ref string, end time.Time) {
	s.mu.Lock()
	s.leaving[ref] = end
	s.mu.Unlock()
	s.announce <- struct{}{}
}

// Announced makes it an engine.Announcer.
func (s *stub) Announced() <-chan struct{} { return s.announce }

// Ends and Carry make it an engine.Carrier.
func (b *box) Ends() (due, end time.Time) {
	b.s.mu.Lock()
	end, leaves := b.s.leaving[b.handle.Ref]
	b.s.mu.Unlock()
	if leaves {
		return end.Add(-time.Minute), end
	}
	if b.s.life == 0 {
		return time.Time{}, time.Time{}
	}
	end = b.made.Add(b.s.life)
	return end.Add(-time.Hour), end
}

func (b *box) Carry(ctx context.Context) (engine.Sandbox, error) {
	if err := b.s.called(ctx, "carry"); err != nil {
		return nil, err
	}
	return b.s.add(engine.Handle{ID: b.handle.ID}), nil
}

// die ends the sandbox without a request.
func (b *box) die(end engine.End) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.dieLocked(end)
}

func (b *box) dieLocked(end engine.End) {
	if b.end != nil {
		return
	}
	b.end = &end
	close(b.ended)
	for _, p := range b.procs {
		p.finish(engine.Exit{Code: 137, Signal: "KILL", OutOfMemory: end.OutOfMemory})
	}
}

// lose breaks the connection to it.
func (b *box) lose() {
	close(b.broken)
}

// vanish breaks the connection and removes the sandbox.
func (b *box) vanish() {
	b.s.mu.Lock()
	delete(b.s.boxes, b.handle.Ref)
	b.s.mu.Unlock()
	b.lose()
}

func (b *box) Wait(ctx context.Context) (engine.End, error) {
	select {
	case <-b.ended:
		b.s.mu.Lock()
		defer b.s.mu.Unlock()
		if b.end == nil { // it was destroyed through another connection
			return engine.End{Destroyed: true}, nil
		}
		return *b.end, nil
	case <-b.broken:
		return engine.End{}, errors.Newf(errors.Unavailable, "the connection broke")
	case <-ctx.Done():
		return engine.End{}, ctx.Err()
	}
}

func (b *box) Destroy(ctx context.Context) error {
	err := b.s.called(ctx, "destroy")
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.dieLocked(engine.End{Destroyed: true})
	if err == nil {
		delete(b.s.boxes, b.handle.Ref)
	}
	return err
}

func (b *box) CopyIn(ctx context.Context, _ string, tar io.Reader) error {
	_, err := io.Copy(io.Discard, tar)
	return errors.Join(err, b.s.called(ctx, "copyin"))
}

func (b *box) CopyOut(ctx context.Context, path string) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader(path)), b.s.called(ctx, "copyout")
}

// Start knows the programs "run", which ends when it is killed, "polite", which also ends on a signal, "stubborn",
// which survives everything, "exit", and "echo". Harvest's own programs end at once.
func (b *box) Start(ctx context.Context, cmd engine.Command) (engine.Process, error) {
	if err := b.s.called(ctx, "start"); err != nil {
		return nil, err
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	p := &proc{b: b, id: fmt.Sprintf("p%d", len(b.procs)+1), cmd: cmd, started: time.Now(), done: make(chan struct{})}
	b.procs[p.id] = p
	switch {
	case cmd.Own:
		p.finish(engine.Exit{})
	case cmd.Args[0] == "echo":
		if cmd.Stdout != nil {
			_, _ = io.WriteString(cmd.Stdout, strings.Join(cmd.Args[1:], " ")+"\n")
		}
		p.finish(engine.Exit{})
	case cmd.Args[0] == "exit":
		p.finish(engine.Exit{Code: 3})
	}
	return p, nil
}

func (b *box) Processes(ctx context.Context) ([]engine.ProcessInfo, error) {
	if err := b.s.called(ctx, "processes"); err != nil {
		return nil, err
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	var all []engine.ProcessInfo
	for _, p := range b.procs {
		all = append(all, engine.ProcessInfo{ID: p.id, Args: p.cmd.Args, Terminal: p.cmd.Terminal != nil,
			Started: p.started, Exit: p.exit})
	}
	return all, nil
}

func (b *box) OpenProcess(ctx context.Context, id string, _ engine.Stdio) (engine.Process, error) {
	if err := b.s.called(ctx, "openprocess"); err != nil {
		return nil, err
	}
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	p := b.procs[id]
	if p == nil {
		return nil, errors.Newf(errors.NotFound, "there is no command %s", id)
	}
	return &again{p, b}, nil
}

// again is a process seen through another connection.
type again struct {
	*proc
	through *box
}

func (a *again) Wait(ctx context.Context) (engine.Exit, error) { return a.wait(ctx, a.through) }

type proc struct {
	b       *box
	id      string
	cmd     engine.Command
	started time.Time
	done    chan struct{}
	exit    *engine.Exit // guarded by b.s.mu
	signals []string     // guarded by b.s.mu
	kills   int          // guarded by b.s.mu
}

// finish ends it; b.s.mu is held.
func (p *proc) finish(exit engine.Exit) {
	if p.exit == nil {
		p.exit = &exit
		close(p.done)
	}
}

func (p *proc) ID() string { return p.id }

func (p *proc) Wait(ctx context.Context) (engine.Exit, error) { return p.wait(ctx, p.b) }

func (p *proc) wait(ctx context.Context, through *box) (engine.Exit, error) {
	select {
	case <-p.done:
		p.b.s.mu.Lock()
		defer p.b.s.mu.Unlock()
		return *p.exit, nil
	case <-through.broken:
		return engine.Exit{}, errors.Newf(errors.Unavailable, "the connection broke")
	case <-ctx.Done():
		return engine.Exit{}, ctx.Err()
	}
}

func (p *proc) Signal(ctx context.Context, sig string) error {
	if err := p.b.s.called(ctx, "signal"); err != nil {
		return err
	}
	p.b.s.mu.Lock()
	defer p.b.s.mu.Unlock()
	p.signals = append(p.signals, sig)
	if p.cmd.Args[0] == "polite" {
		p.finish(engine.Exit{Code: 143, Signal: "TERM"})
	}
	return nil
}

func (p *proc) Kill(ctx context.Context) error {
	err := p.b.s.called(ctx, "kill")
	p.b.s.mu.Lock()
	defer p.b.s.mu.Unlock()
	p.kills++
	if p.cmd.Args[0] != "stubborn" {
		p.finish(engine.Exit{Code: 137, Signal: "KILL"})
	}
	return err
}

func (p *proc) Resize(context.Context, engine.Size) error {
	if p.cmd.Terminal == nil {
		return errors.Newf(errors.Conflict, "no terminal")
	}
	return nil
}

// proc returns a command of the sandbox.
func (b *box) proc(t *testing.T, id string) *proc {
	t.Helper()
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	p := b.procs[id]
	if p == nil {
		t.Fatalf("there is no command %s", id)
	}
	return p
}

func (p *proc) gotKilled() bool {
	p.b.s.mu.Lock()
	defer p.b.s.mu.Unlock()
	return p.kills > 0
}

func (s *stub) use(name string) (func(), error) {
	if err := s.called(context.Background(), "use"); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uses[name]++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.uses[name]--; s.uses[name] == 0 {
			delete(s.uses, name)
		}
	}, nil
}

type stubImages struct {
	image.Builder
	s *stub
}

var baseImage = image.Image{ID: "img_0123456789abcdef", Names: []string{"base"}, Spec: image.Spec{Base: "base"}}

func (i stubImages) List(ctx context.Context) ([]image.Image, error) {
	if err := i.s.called(ctx, "find"); err != nil {
		return nil, err
	}
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	list := slices.Clone(i.s.others)
	if !i.s.absent {
		list = append(list, i.base())
	}
	return list, nil
}

// base is the latest build of the base image. s.mu is held.
func (i stubImages) base() image.Image {
	img := baseImage
	img.Built = time.Unix(int64(i.s.builds), 0)
	return img
}

func (i stubImages) Build(ctx context.Context, spec image.Spec, opts image.BuildOptions) (image.Image, error) {
	if err := i.s.called(ctx, "build"); err != nil {
		return image.Image{}, err
	}
	if spec.Base == "none" {
		return image.Image{}, errors.Newf(errors.NotFound, "no registry has an image %q", spec.Base)
	}
	if opts.Progress != nil {
		opts.Progress(image.Progress{Step: "install " + spec.Base, Done: 1})
	}
	i.s.mu.Lock()
	defer i.s.mu.Unlock()
	i.s.builds++
	i.s.absent = false
	return i.base(), nil
}

func (i stubImages) Use(name, _ string) (func(), error) { return i.s.use(name) }

type stubVolumes struct {
	volume.Provider
	s *stub
}

func (v stubVolumes) Create(ctx context.Context, name string) (volume.Volume, error) {
	if err := v.s.called(ctx, "volume"); err != nil {
		return nil, err
	}
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	v.s.volumes[name] = true
	return nil, nil
}

func (v stubVolumes) Open(_ context.Context, name string) (volume.Volume, error) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if !v.s.volumes[name] {
		return nil, errors.Newf(errors.NotFound, "there is no volume %s", name)
	}
	return nil, nil
}

func (v stubVolumes) List(ctx context.Context) (all []volume.Info, err error) {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	for name := range v.s.volumes {
		all = append(all, volume.Info{Name: name})
	}
	return all, ctx.Err()
}

func (v stubVolumes) Delete(_ context.Context, name string) error {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	if !v.s.volumes[name] {
		return errors.Newf(errors.NotFound, "there is no volume %s", name)
	}
	delete(v.s.volumes, name)
	return nil
}

func (v stubVolumes) Use(name, _ string) (func(), error) { return v.s.use(name) }

const account = "acme"

// world is a stub engine and a store, on which servers come and go.
type world struct {
	*stub
	store  record.Store
	mu     sync.Mutex
	events []record.Event // guarded by mu
	opts   fleet.Options
}

func newWorld(t testing.TB) *world {
	w := &world{stub: newStub(), store: testdb.Open(t).Sandboxes()}
	w.opts = fleet.Options{
		Machine: spec.Machine{CPU: 8, Memory: 16 << 30},
		Event: func(e record.Event) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.events = append(w.events, e)
		},
	}
	return w
}

// open starts a server, and closes it at the end of the test.
func (w *world) open(t *testing.T) *fleet.Fleet {
	t.Helper()
	opts := w.opts
	opts.Engine, opts.Store = w.stub, w.store
	f, err := fleet.Open(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(context.Background()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return f
}

// seen lists the types of the events of a sandbox, without stages.
func (w *world) seen(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var types []string
	for _, e := range w.events {
		if e.Sandbox.ID == id && e.Type != record.EventStage {
			types = append(types, strings.TrimPrefix(string(e.Type), "sandbox."))
		}
	}
	return strings.Join(types, " ")
}

func create(t *testing.T, f *fleet.Fleet, req spec.Request) record.Sandbox {
	t.Helper()
	sb, err := f.Create(t.Context(), account, req)
	if err != nil {
		t.Fatalf("create: %v", err)
	}
	return sb
}

func get(t *testing.T, f *fleet.Fleet, ref string) record.Sandbox {
	t.Helper()
	sb, err := f.Get(t.Context(), account, ref)
	if err != nil {
		t.Fatalf("get %s: %v", ref, err)
	}
	return sb
}

func start(t *testing.T, f *fleet.Fleet, ref string, req fleet.ExecRequest) *commands.Execution {
	t.Helper()
	x, err := f.Exec(t.Context(), account, ref, req)
	if err != nil {
		t.Fatalf("exec %v: %v", req.Args, err)
	}
	return x
}

func wait(t *testing.T, x *commands.Execution) commands.Result {
	t.Helper()
	r, err := x.Wait(t.Context())
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return r
}

// wantError checks the kind, words of the text for clients, and that errors which need a remedy have one.
func wantError(t *testing.T, err error, kind errors.Kind, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error is %v (%s), want %s", err, errors.KindOf(err), kind)
		return
	}
	text := errors.Message(err) + " | " + errors.RemedyOf(err) + " | " + errors.StageOf(err)
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
}
