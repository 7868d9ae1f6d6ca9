package kubernetes

import (
	"context"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/kubernetes/pod"
)

// Sandbox is the sandbox of a pod. Beside what wire.Keeper implements, it implements engine.Sandbox, engine.Filer and
// engine.ProcessOpener.
type Sandbox struct {
	wire.Keeper
	e *Engine
	h engine.Handle
}

var (
	_ engine.Sandbox       = (*Sandbox)(nil)
	_ engine.ProcessOpener = (*Sandbox)(nil)
	_ engine.Filer         = (*Sandbox)(nil)
	_ engine.Networker     = (*Sandbox)(nil)
	_ engine.Interceptor   = (*Sandbox)(nil)
	_ engine.Dialer        = (*Sandbox)(nil)
	_ engine.Meter         = (*Sandbox)(nil)
	_ engine.Snapshotter   = (*Sandbox)(nil)
	_ engine.Carrier       = (*Sandbox)(nil)
	_ engine.Described     = (*Sandbox)(nil)
)

func (e *Engine) sandbox(h engine.Handle) *Sandbox {
	s := &Sandbox{e: e, h: h}
	s.Keeper = wire.Keeper{Client: wire.Client{ID: h.ID, Connect: s.connect}}
	return s
}

// Handle implements engine.Sandbox.
func (s *Sandbox) Handle() engine.Handle { return s.h }

// connect connects to the keeper. Conflict if the sandbox has ended.
func (s *Sandbox) connect(ctx context.Context) (*wire.Conn, error) {
	conn, err := s.e.connect(ctx, s.h.Ref, s.h.ID)
	if err == nil || ctx.Err() != nil {
		return conn, err
	}
	if end := s.e.end(s.h.Ref); end != nil {
		return nil, errors.Explainf(err, errors.Conflict, "the sandbox %q has ended: %s", s.h.ID, end.Detail)
	}
	return nil, err
}

// connect connects to the agent of a pod, whose identity is the sandbox's ID, or the pod's name before a claim. If the
// agent does not prove it, because its credentials have expired, connect gives it new ones.
func (e *Engine) connect(ctx context.Context, name, id string) (*wire.Conn, error) {
	conn, stranger, err := e.attempt(ctx, name, id)
	if !stranger {
		return conn, err
	}
	logf.Infof(ctx, "give the pod %s new credentials: %v", name, err)
	c, renewed := e.authority.Keeper(id)
	if renewed == nil {
		renewed = e.api.greet(ctx, name, c)
	}
	if renewed != nil {
		return nil, errors.Join(err, renewed)
	}
	conn, _, err = e.attempt(ctx, name, id)
	return conn, err
}

// attempt connects to the agent of a pod. It reports whether something there answers that is not the agent.
func (e *Engine) attempt(ctx context.Context, name, id string) (secured *wire.Conn, stranger bool, err error) {
	if err := ctx.Err(); err != nil {
		return nil, false, errors.Wrapf(err, "connect to the pod %s", name)
	}
	p := e.pods.get(name)
	if p == nil {
		return nil, false, errors.Newf(errors.Unavailable, "there is no pod %s", name)
	}
	limited, cancel := context.WithTimeout(ctx, reachTime)
	defer cancel()
	life := e.lifeOf(name)
	defer context.AfterFunc(life, cancel)()
	conn, err := e.dial(limited, p)
	if err == nil {
		secured, err = e.authority.Connect(limited, tied(conn, life), id)
		stranger = errors.Is(err, errors.Denied)
	}
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = errors.Explainf(err, errors.Unavailable, "the pod %s does not answer", name)
	}
	return secured, stranger, err
}

// end returns how the sandbox of a pod has ended, nil if it can still run.
func (e *Engine) end(name string) *engine.End {
	h := e.holdingOf(name)
	e.mu.Lock()
	destroyed := h == nil || h.ending
	e.mu.Unlock()
	if destroyed {
		return &engine.End{Destroyed: true, Detail: "the sandbox was destroyed"}
	}
	p := e.pods.get(name)
	if p == nil {
		return &gone
	}
	return endOf(p)
}

// lookAgain is how often Wait asks a pod again that it cannot reach.
const lookAgain = time.Second

// Wait implements engine.Sandbox.
func (s *Sandbox) Wait(ctx context.Context) (engine.End, error) {
	for {
		changed := s.e.pods.next()
		reply, err := s.ask(ctx)
		if err == nil && reply.End != nil && !reply.End.Destroyed {
			return *reply.End, nil
		}
		if ctx.Err() != nil {
			return engine.End{}, errors.Wrapf(ctx.Err(), "wait for sandbox %s", s.h.ID)
		}
		// The pod's own engine also says that the sandbox was destroyed when Kubernetes ends the pod.
		if end := s.e.end(s.h.Ref); end != nil {
			return *end, nil
		}
		select {
		case <-changed:
		case <-time.After(lookAgain):
		case <-ctx.Done():
			return engine.End{}, errors.Wrapf(ctx.Err(), "wait for sandbox %s", s.h.ID)
		}
	}
}

// ask asks the pod how the sandbox has ended. If Kubernetes ends the pod meanwhile, it may still answer for a moment.
func (s *Sandbox) ask(ctx context.Context) (wire.Reply, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		if s.e.pods.wait(ctx, func() (bool, error) { return s.e.end(s.h.Ref) != nil, nil }) != nil {
			return
		}
		select {
		case <-time.After(lastWords):
			cancel()
		case <-ctx.Done():
		}
	}()
	return s.Call(ctx, wire.Request{Op: wire.Wait})
}

// endTime is how long Destroy waits for the keeper before it deletes the pod.
const endTime = 5 * time.Second

// Destroy implements engine.Sandbox. It returns when the processes of the sandbox have ended, if the pod can be
// reached, and Kubernetes has accepted the deletion of the pod.
func (s *Sandbox) Destroy(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	if h := s.e.holdingOf(s.h.Ref); h != nil {
		_, err := s.Call(limited, wire.Request{Op: wire.Destroy})
		if err != nil && !errors.Is(err, errors.Conflict) {
			logf.Warnf(ctx, "the keeper of sandbox %s does not end it: %v", s.h.ID, err)
		}
		if err := s.e.volumes.keep(ctx, s.h.Ref); err != nil {
			return errors.Stage(err, "destroy")
		}
		s.dismiss(limited)
	}
	return s.e.destroy(ctx, s.h.Ref)
}

// dismiss lets a pod end that Kubernetes has asked to, and that lingers. It is best effort: Kubernetes kills it later.
func (s *Sandbox) dismiss(ctx context.Context) {
	if p := s.e.pods.get(s.h.Ref); p == nil || p.DeletionTimestamp == nil {
		return
	}
	conn, err := s.connect(ctx)
	if err == nil {
		err = pod.Leave(ctx, conn)
	}
	if err != nil {
		logf.Infof(ctx, "the pod %s ends later: %v", s.h.Ref, err)
	}
}

// The agents' credentials live for a day. They are renewed long before, and anew after the server was away for longer.
const (
	renewEach    = 4 * time.Hour
	identifyTime = time.Minute // of one pod, so that one that does not answer does not hold up the others
)

// renew renews the credentials of all pods again and again.
func (e *Engine) renew(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(renewEach):
		}
		e.mu.Lock()
		ids := map[string]string{}
		for name, h := range e.known {
			ids[name] = h.id
			if h.id == "" {
				ids[name] = name
			}
		}
		e.mu.Unlock()
		for name, id := range ids {
			if err := e.identify(ctx, name, id); err != nil && ctx.Err() == nil {
				logf.Warnf(ctx, "the credentials of the pod %s were not renewed: %v", name, err)
			}
		}
	}
}

func (e *Engine) identify(ctx context.Context, name, id string) error {
	ctx, cancel := context.WithTimeout(ctx, identifyTime)
	defer cancel()
	c, err := e.authority.Keeper(id)
	if err != nil {
		return err
	}
	conn, err := e.connect(ctx, name, id)
	if err != nil {
		return err
	}
	return pod.Identify(ctx, conn, c)
}
