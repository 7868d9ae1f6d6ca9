package session_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// provider runs sandboxes for Harvest, and may end them on its own.
type provider struct {
	*gvisor.Engine

	mu     sync.Mutex
	boxes  map[string]*rented // guarded by mu, like all below; by Spec.ID
	taken  map[string]bool    // by Spec.ID
	events []string           // of sandboxes, and why
}

// rented is a provider's sandbox.
type rented struct {
	*gvisor.Sandbox
	p *provider
}

func (p *provider) Create(ctx context.Context, spec engine.Spec) (engine.Sandbox, error) {
	box, err := p.Engine.Create(ctx, spec)
	if err != nil {
		return nil, err
	}
	r := &rented{box.(*gvisor.Sandbox), p}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.boxes[spec.ID] = r
	return r, nil
}

func (p *provider) Open(ctx context.Context, h engine.Handle) (engine.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.taken[h.ID] {
		return nil, errors.Newf(errors.NotFound, "the provider has ended %s", h.ID)
	}
	return p.Engine.Open(ctx, h)
}

// take ends a sandbox without notice.
func (p *provider) take(ctx context.Context, id string) error {
	p.mu.Lock()
	p.taken[id] = true
	r := p.boxes[id]
	p.mu.Unlock()
	return r.Sandbox.Destroy(ctx)
}

func (r *rented) Wait(ctx context.Context) (engine.End, error) {
	end, err := r.Sandbox.Wait(ctx)
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	if err == nil && r.p.taken[r.Handle().ID] {
		end = engine.End{Lost: true, Detail: "The provider ended it."}
	}
	return end, err
}

func (p *provider) note(e record.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.events = append(p.events, string(e.Type)+" "+e.Sandbox.ID+" "+e.Sandbox.Reason)
}

// TestSandboxTaken checks that a session continues in another sandbox when the provider has ended its sandbox: the
// current turn fails, and the next does not.
//
// mission: E4
func TestSandboxTaken(t *testing.T) {
	t.Parallel()
	p := &provider{boxes: map[string]*rented{}, taken: map[string]bool{}}
	h := newHouseOf(t, session.Options{}, p)
	s := h.create(t, session.Request{Prompt: "/say hello"})
	w := h.watch(s.ID)
	w.status(t, records.Done)
	h.send(t, s.ID, "/run sleep 600")
	w.until(t, string(agent.ToolStarted))
	first := mustGet(t, h, s.ID).SandboxID
	if err := p.take(t.Context(), first); err != nil {
		t.Fatal(err)
	}
	if done := w.until(t, "done"); !done.data.Failed || done.data.Text == "" {
		t.Errorf("the turn under way: %+v", done.data)
	}
	h.send(t, s.ID, "/say here again")
	if done := w.until(t, "done"); done.data.Failed {
		t.Errorf("the next turn: %+v\n%s", done.data, w)
	}
	if now := mustGet(t, h, s.ID); now.SandboxID == first {
		t.Error("the sandbox is the first one")
	}
	sb, err := h.fleet.Ended(t.Context(), account, first)
	const quicker = "it was destroyed on request" // by the session, whose command had ended, before its end was seen
	if err != nil || sb.Status != record.Terminated || sb.Reason != "The provider ended it." && sb.Reason != quicker {
		t.Errorf("%s: %s, %v", sb.Status, sb.Reason, err)
	}
	if sb.Reason == quicker {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.ContainsFunc(p.events, func(e string) bool {
		return strings.HasPrefix(e,
			"sandbox.lost "+first+" The provider")
	}) {
		t.Errorf("it was never lost: %q", p.events)
	}
}
