package editor

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// thread is an open thread of the editor.
type thread struct {
	face   *face
	server *client.Client
	id     string          // of the thread
	mcp    json.RawMessage // servers of new sessions
	turns  chan struct{}   // closed once the prompts before the next one were sent; used by the reader only

	mu      sync.Mutex
	record  record                        // guarded by mu
	session api.Session                   // guarded by mu; the current one
	ended   bool                          // guarded by mu; the session has ended
	busy    bool                          // guarded by mu; a turn runs
	prompts []*prompt                     // guarded by mu; of the editor, which wait for their end
	sending []string                      // guarded by mu; prompts whose ID is not known yet
	early   map[string]outcome            // guarded by mu; ends of turns that came while a prompt was being sent
	asked   map[string]context.CancelFunc // guarded by mu; withdraw the open questions in the editor
	open    map[string]api.SessionEvent   // guarded by mu; questions of a replay that have no answer
	view    *view                         // guarded by mu
	muted   bool                          // guarded by mu; updates are not sent
	follows context.CancelFunc            // guarded by mu; ends the follower of the session
	flush   *time.Timer                   // guarded by mu; sends output; nil if there is none to send
	notes   []string                      // guarded by mu; about the session, for its first prompt
	offered []api.AgentCommand            // guarded by mu; of the agent
	live    bool                          // guarded by mu; the editor knows the thread
	last    int64                         // guarded by mu; ID of the last event of the replay
	ctx     context.Context               // of the thread
	leaves  context.CancelFunc
}

// flushTime is how long output of tools is collected before it is sent. Each update repeats all of the output.
const flushTime = 200 * time.Millisecond

func newThread(f *face, server *client.Client, r record) *thread {
	f.mu.Lock()
	notices := f.able.Session.Notices != nil
	f.mu.Unlock()
	sent := make(chan struct{})
	close(sent)
	t := &thread{face: f, server: server, record: r, turns: sent, early: map[string]outcome{},
		asked: map[string]context.CancelFunc{}, open: map[string]api.SessionEvent{}, view: newView(paths{}, notices)}
	t.ctx, t.leaves = context.WithCancel(f.ctx)
	return t
}

// send sends updates to the editor.
func (t *thread) send(all ...update) {
	for _, u := range all {
		t.face.write(jsonrpc.NewRequest(nil, "session/update", map[string]any{"sessionId": t.id, "update": u}))
	}
}

// say sends a text of Harvest as a message.
func (t *thread) say(text string) {
	t.send(update{Kind: "agent_message_chunk", Content: textBlock(text + "\n")})
}

// note sends a note about the session.
func (t *thread) note(severity, title, more string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.send(t.view.notice(severity, title, more)...)
}

// opened sends what the editor learns after the answer to the request that opened the thread.
func (t *thread) opened() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.send(offers(t))
	t.muted, t.live = false, true
	t.follow(t.record.current(), t.last)
	for _, e := range t.open {
		t.ask(e)
	}
	clear(t.open)
}

// missing reports MCP servers of the editor that the session does not have.
func (t *thread) missing(names []string) {
	t.mu.Lock()
	names = slices.DeleteFunc(names, func(name string) bool { return slices.Contains(t.record.Servers, name) })
	t.mu.Unlock()
	for _, name := range names {
		t.note("warning", "MCP server "+name+" is not a part of this session",
			"Servers are chosen when a session begins")
	}
}

// leave closes the thread. Its session continues.
func (t *thread) leave() {
	t.leaves()
	t.fail(errors.Newf(errors.Canceled, "the session was opened again"))
}

// fail ends all prompts with an error.
func (t *thread) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.prompts {
		p.end(outcome{err: err})
	}
}

// paths returns the mapping of files between this machine and the session.
func (t *thread) paths() paths {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.view.paths
}

// options returns the options of the thread.
func (t *thread) options() options {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.current()
}

// current is options. t.mu is held.
func (t *thread) current() options {
	s := t.record.Settings
	s.Agent = cmp.Or(s.Agent, t.session.Agent)
	return newOptions(s, t.face.Offers, t.record.Prompted)
}

// save stores the record. t.mu is held. Best effort: without it, the session can still be loaded by its ID.
func (t *thread) save() {
	if err := t.record.write(t.face.Records, t.id); err != nil {
		t.send(t.view.notice("warning", "The editor may not find this session again", errors.Message(err))...)
	}
}

// create creates a session for the thread and follows it. A session that it replaces had no prompt, and ends.
func (t *thread) create(ctx context.Context) error {
	var notes []string
	t.mu.Lock()
	old := t.record.current()
	wish := Wish{Settings: t.record.Settings, Dir: t.record.Dir, MCP: t.mcp}
	t.mu.Unlock()
	wish.Hint = func(format string, args ...any) { notes = append(notes, sprint(format, args)) }
	begun, err := t.face.Create(ctx, t.server, wish)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.record.Root, t.record.Work, t.notes = begun.Root, begun.Work, notes
	t.mu.Unlock()
	t.enter(begun.Session, false)
	if old != "" {
		_ = t.server.EndSession(context.WithoutCancel(ctx), old) // otherwise it ends after its idle time
	}
	return nil
}

// enter makes a new session the current one and follows it from the beginning. continues means that the conversation
// has begun.
func (t *thread) enter(s api.Session, continues bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.id == "" {
		t.id = s.ID
	}
	t.record.Sessions = append(t.record.Sessions, s.ID)
	t.record.Prompted = continues
	t.record.Changed = false
	t.become(s)
	t.view.start, t.view.at = preparation{}, len(t.record.Sessions)-1
	t.save()
	if t.live {
		t.follow(s.ID, 0)
	}
}

// become sets the current session. t.mu is held.
func (t *thread) become(s api.Session) {
	t.session, t.ended, t.busy = s, !s.Ended.IsZero(), false
	if !t.record.Changed {
		t.record.Effort, t.record.Approval = s.Effort, s.Approval // the model may be one that the agent has reported
	}
	t.view.paths = paths{}
	if t.record.Root != "" && len(s.Repositories) > 0 {
		t.view.paths = paths{local: t.record.Root, inside: s.Repositories[0].Dir}
	}
}

// restore returns the thread of an earlier session.
func (f *face) restore(ctx context.Context, server *client.Client, p sessionParams) (*thread, error) {
	r, ok := readRecord(f.Records, p.Session)
	if !ok {
		r = record{Dir: p.Dir, Root: f.Root(ctx, p.Dir), Sessions: []string{p.Session}, Prompted: true}
	}
	s, err := server.Session(ctx, r.current())
	if err != nil {
		return nil, err
	}
	if !ok {
		r.Model = s.Model
	}
	t := newThread(f, server, r)
	t.id = p.Session
	if t.mcp, _, err = mergeServers(f.MCP, p.MCP); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.become(s)
	return t, nil
}

// replay sends the events of the thread's sessions to the editor, unless shown is false, and follows the last one.
func (t *thread) replay(ctx context.Context, shown bool) error {
	t.mu.Lock()
	t.muted, t.view.past = !shown, true
	sessions := t.record.Sessions
	t.mu.Unlock()
	var last int64
	for i, id := range sessions {
		var err error
		last, err = t.replayOne(ctx, id)
		if err != nil && i == len(sessions)-1 {
			return err
		} // of an earlier session, the events may be gone
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if held := t.view.live(); !t.muted {
		t.send(held...)
	}
	if t.record.Prompted {
		t.view.start.over = true
	}
	t.last = last
	return nil
}

// replayOne handles the events of a session until now, and returns the ID of the last one.
func (t *thread) replayOne(ctx context.Context, session string) (last int64, err error) {
	if last, err = chat.LastEvent(ctx, t.server, session); err != nil || last == 0 {
		return 0, err
	}
	for e, err := range t.server.Events(ctx, client.Follow{Stream: session}) {
		if err != nil {
			return 0, err
		}
		t.event(session, e)
		if e.ID >= last {
			break
		}
	}
	return last, nil
}

// follow handles the events of a session after one, until the thread is closed or follows another session. t.mu is
// held.
func (t *thread) follow(session string, after int64) {
	if t.follows != nil {
		t.follows()
	}
	ctx, stop := context.WithCancel(t.ctx)
	t.follows = stop
	go func() {
		for e, err := range t.server.Events(ctx, client.Follow{Stream: session, After: after, Attended: true}) {
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				t.broken(session, err)
				return
			}
			t.event(session, e)
		}
	}()
}

// broken fails the prompts of a session whose events cannot be read.
func (t *thread) broken(session string, err error) {
	t.mu.Lock()
	current := t.record.current()
	t.mu.Unlock()
	if session == current {
		t.fail(err)
	}
}
