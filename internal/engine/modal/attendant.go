package modal

import (
	"context"
	"sync"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
	"github.com/RelevanceAI/harvest/internal/image"
)

// attendedDir is the directory in an attendant where its volume is mounted.
const attendedDir = "/volume"

// tagAttendant marks sandboxes that the engine starts for itself, without a Spec.
const tagAttendant = "harvest-attendant"

// attendantIdle is how long an unused attendant keeps running. attendantLife limits its lifetime, so that one
// that a crash has left behind ends.
const (
	attendantIdle = time.Minute
	attendantLife = time.Hour
)

// attendants are the sandboxes through which the engine reads and changes the files of volumes, because the SDK
// offers no other way. Each volume in use has one, which is started on demand and ends when it has been idle
// for a while.
type attendants struct {
	e     *Engine
	idle  time.Duration
	swept chan struct{} // closed when the attendants of an earlier process have ended

	mu     sync.Mutex
	closed bool                  // guarded by mu
	all    map[string]*attendant // guarded by mu; by the volume's name at Modal
}

// attendant is the attendant of one volume.
type attendant struct {
	ready chan struct{} // closed when sb and err are set
	sb    *Sandbox
	err   error
	users int         // guarded by attendants.mu
	over  bool        // guarded by attendants.mu; takes no new users, and ends with its last one
	rest  *time.Timer // guarded by attendants.mu; ends the idle attendant; nil while it is in use
}

// wake stops the idle timer. attendants.mu is held.
func (at *attendant) wake() {
	if at.rest != nil {
		at.rest.Stop()
		at.rest = nil
	}
}

// sweep ends the attendants that an earlier process left behind.
func (a *attendants) sweep() {
	defer close(a.swept)
	left, err := a.e.tagged(a.e.ctx, tagAttendant)
	for _, box := range left {
		err = errors.Join(err, a.e.terminate(a.e.ctx, box))
	}
	if err != nil && a.e.ctx.Err() == nil { // those that remain end after attendantLife
		logf.Warnf(a.e.ctx, "end leftovers of an earlier server at Modal: %v", err)
	}
}

// begin waits for the end of sweep.
func (a *attendants) begin(ctx context.Context) error {
	select {
	case <-a.swept:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "begin to work at Modal")
	}
}

// attend returns the attendant of a volume, which shows the committed files and is kept until release is
// called.
func (a *attendants) attend(ctx context.Context, n records.Volume) (sb *Sandbox, release func(), err error) {
	for {
		at, fresh, alone := a.take(n)
		if at == nil {
			return nil, nil, errors.Newf(errors.Conflict, "the engine modal is closed")
		}
		release = sync.OnceFunc(func() { a.release(n.Modal, at) })
		select {
		case <-at.ready:
		case <-ctx.Done():
			release()
			return nil, nil, errors.Wrapf(ctx.Err(), "look into a volume")
		}
		err := at.err
		if err == nil && !fresh && alone {
			// Reloading fetches commits of other sandboxes, and fails if the attendant has ended.
			err = a.e.reload(ctx, at.sb.box)
		}
		if err == nil {
			return at.sb, release, nil
		}
		release()
		if ctx.Err() != nil || fresh {
			a.drop(n.Modal, at)
			return nil, nil, errors.Stage(err, "volume")
		}
		logf.Debugf(ctx, "the helper of volume %s no longer works: %v", n.Name, err)
		a.drop(n.Modal, at)
	}
}

// take returns the attendant of a volume. fresh reports that it is only being started, alone that the caller is
// its only user.
func (a *attendants) take(n records.Volume) (at *attendant, fresh, alone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, false, false
	}
	at = a.all[n.Modal]
	if at == nil {
		at, fresh = &attendant{ready: make(chan struct{})}, true
		a.all[n.Modal] = at
		go func() {
			defer close(at.ready)
			at.sb, at.err = a.start(n)
		}()
	}
	at.wake()
	at.users++
	return at, fresh, at.users == 1
}

// there returns the attendant of a volume if one is running and ready.
func (a *attendants) there(name string) (*Sandbox, func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := a.all[name]
	if at == nil {
		return nil, nil
	}
	select {
	case <-at.ready:
	default:
		return nil, nil
	}
	if at.err != nil {
		return nil, nil
	}
	at.wake()
	at.users++
	return at.sb, func() { a.release(name, at) }
}

// release gives an attendant back. Without users, it ends after the idle time.
func (a *attendants) release(name string, at *attendant) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at.users--
	switch {
	case at.users > 0 || a.closed:
	case at.over:
		go a.finish(context.WithoutCancel(a.e.ctx), at)
	default:
		at.rest = time.AfterFunc(a.idle, func() { a.drop(name, at) })
	}
}

// drop retires an attendant: it ends when its last user is gone. Later callers get a new one.
func (a *attendants) drop(name string, at *attendant) {
	a.mu.Lock()
	if a.all[name] == at {
		delete(a.all, name)
	}
	at.wake()
	at.over = true
	busy := at.users > 0
	a.mu.Unlock()
	if !busy {
		a.finish(context.WithoutCancel(a.e.ctx), at)
	}
}

// end ends the attendant of a volume, if there is one.
func (a *attendants) end(ctx context.Context, name string) {
	a.mu.Lock()
	at := a.all[name]
	if at == nil {
		a.mu.Unlock()
		return
	}
	delete(a.all, name)
	at.wake()
	a.mu.Unlock()
	a.finish(ctx, at)
}

func (a *attendants) finish(ctx context.Context, at *attendant) {
	select {
	case <-at.ready:
	case <-ctx.Done():
		return
	}
	if at.sb == nil {
		return
	}
	if err := at.sb.Destroy(ctx); err != nil {
		logf.Warnf(ctx, "end the attendant of a volume: %v", err)
	}
}

// close ends all attendants.
func (a *attendants) close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	a.closed = true
	all := a.all
	a.all = map[string]*attendant{}
	for _, at := range all {
		at.wake()
	}
	a.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(a.e.ctx), a.e.patience.Call)
	defer cancel()
	var wg sync.WaitGroup
	for _, at := range all {
		wg.Go(func() { a.finish(ctx, at) })
	}
	wg.Wait()
}

// start starts an attendant. Closing the engine cancels the start.
func (a *attendants) start(n records.Volume) (*Sandbox, error) {
	ctx, e := a.e.ctx, a.e
	if err := a.begin(ctx); err != nil {
		return nil, err
	}
	img, err := e.images.owned(ctx, "", ownImage)
	if errors.KindOf(err) == errors.NotFound {
		if _, err = e.images.Build(ctx, image.Spec{Base: ownImage}, image.BuildOptions{}); err == nil {
			img, err = e.images.owned(ctx, "", ownImage)
		}
	}
	if err != nil {
		return nil, err
	}
	vol, err := e.volumes.at(ctx, n)
	if err != nil {
		return nil, err
	}
	params := &sdk.SandboxCreateParams{
		Timeout: attendantLife, BlockNetwork: true, Volumes: map[string]*sdk.Volume{attendedDir: vol},
		Tags: map[string]string{tagServer: e.server, tagAttendant: "yes"},
	}
	if err := e.helper.mount(ctx, img, params); err != nil {
		return nil, err
	}
	box, err := e.start(ctx, img, params)
	if err != nil {
		return nil, err
	}
	return e.sandbox(engine.Handle{ID: "of the volume " + n.Name, Ref: box.SandboxID}, box), nil
}

// ownImage is the image of attendants.
const ownImage = "base"

// agentImage is another image of Harvest's own. Harvest builds it on this machine rather than at Modal.
const agentImage = "agent"

// tagged returns the running sandboxes of this installation that have a tag, in the apps of all accounts.
func (e *Engine) tagged(ctx context.Context, tag string) (found []*sdk.Sandbox, err error) {
	apps, err := e.apps.all(ctx)
	if err != nil {
		return nil, err
	}
	for _, app := range apps {
		some, err := ask(ctx, e, "list the sandboxes", func(ctx context.Context) (some []*sdk.Sandbox, err error) {
			all, err := e.client.Sandboxes.List(ctx, &sdk.SandboxListParams{AppID: app.AppID,
				Tags: map[string]string{tagServer: e.server, tag: "yes"}})
			if err != nil {
				return nil, err
			}
			for box, err := range all {
				if err != nil {
					return nil, err
				}
				some = append(some, box)
			}
			return some, nil
		})
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// terminate ends a sandbox. It is not an error if the sandbox has already ended.
func (e *Engine) terminate(ctx context.Context, box *sdk.Sandbox) error {
	_, err := ask(ctx, e, "end a sandbox", func(ctx context.Context) (int, error) {
		return box.Terminate(ctx, &sdk.SandboxTerminateParams{Wait: true})
	})
	if errors.KindOf(err) == errors.NotFound {
		return nil
	}
	return err
}
