package session

import (
	"cmp"
	"context"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/event"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/internal/ids"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/mcp"
	"github.com/RelevanceAI/harvest/model"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/secret"
	"github.com/RelevanceAI/harvest/volume"
)

const idPrefix = "ses_"

// Options of a Manager. Fleet, Journal, Store and Agents are required; what else is zero gets the default that is named here.
type Options struct {
	Fleet   *sandbox.Fleet
	Journal *event.Journal
	Store   Store
	Agents  map[string]agent.Agent

	// Models is the way to the models of agents; nil: agents find their own. Where the engine can connect into sandboxes, and unless DirectModels,
	// agents ask through it, and no credential is in their sandboxes. Otherwise they get the credential itself.
	Models       *model.Gateway
	DirectModels bool

	Default string          // agent of requests that name none: "claude"
	Image   string          // of sandboxes of requests that name none: "agent"
	Repos   Repos           // images of repositories; nil: there are none
	Author  Author          // of requests that name none: "Harvest Agent"
	Secrets *secret.Vault   // that git's credentials come from; nil for none
	Volumes volume.Provider // of all accounts, for what is remembered; nil for none
	// GitHub returns the client for GitHub's API at the address that an account's secrets name; nil: it reaches the internet only.
	GitHub func(account string) *http.Client
	// History returns what is recorded of a session as a database, which becomes sessions/ID.db of its state volume after each turn; nil: nothing does.
	History func(ctx context.Context, id string) ([]byte, error)

	MCPWait       time.Duration // that the first prompt waits for MCP servers: 30 s
	HangAfter     time.Duration // without a sign of a model at work, until the session counts as hung: 5 minutes
	ToolHangAfter time.Duration // the same while a tool runs: 30 minutes
	QuestionWait  time.Duration // that a question of the model waits for a person where the session asks nothing: 5 minutes
	StopGrace     time.Duration // between an interrupt and the end of the agent's process: 1 s
}

// Manager holds all sessions of one server.
type Manager struct {
	opts Options
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work sync.WaitGroup

	mu      sync.Mutex
	runners map[string]*runner // guarded by mu; of sessions that have not ended
	once    map[string]bool    // guarded by mu; sandboxes in which an agent answers one prompt
}

// Open returns a Manager that goes on with the sessions of the Store. Close ends it; agents go on.
func Open(ctx context.Context, opts Options) (*Manager, error) {
	if opts.Fleet == nil || opts.Journal == nil || opts.Store == nil || len(opts.Agents) == 0 {
		return nil, errors.Errorf("a Manager needs a Fleet, a Journal, a Store and agents")
	}
	opts.Default = cmp.Or(opts.Default, "claude")
	opts.Image = cmp.Or(opts.Image, "agent")
	if opts.Author == (Author{}) {
		opts.Author = Author{Name: "Harvest Agent", Email: "agent@harvest.invalid"}
	}
	opts.MCPWait = cmp.Or(opts.MCPWait, 30*time.Second)
	opts.HangAfter = cmp.Or(opts.HangAfter, 5*time.Minute)
	opts.ToolHangAfter = cmp.Or(opts.ToolHangAfter, 30*time.Minute)
	opts.QuestionWait = cmp.Or(opts.QuestionWait, 5*time.Minute)
	opts.StopGrace = cmp.Or(opts.StopGrace, time.Second)
	m := &Manager{opts: opts, runners: map[string]*runner{}, once: map[string]bool{}}
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	live, err := opts.Store.Sessions(ctx, "", true, "", 0)
	if err != nil {
		m.stop()
		return nil, errors.Wrapf(err, "list the sessions")
	}
	for _, s := range live {
		if err := m.recover(ctx, s); err != nil {
			logf.Errorf(ctx, "recover session %s: %v", s.ID, err)
		}
	}
	return m, nil
}

// Close stops following the sessions. Their sandboxes and agents go on, and the next Manager follows them again.
func (m *Manager) Close() {
	m.stop()
	m.work.Wait()
}

// Create makes a session. It returns at once: sandbox, repository and agent are made ready in the background, and the first prompt
// waits for them. Kinds: Invalid, NotFound (no such agent).
func (m *Manager) Create(ctx context.Context, account string, req Request) (Session, error) {
	var repos []Repository
	var err error
	if req.Continues != "" {
		if repos, err = m.goOn(ctx, account, &req); err != nil {
			return Session{}, errors.Stage(err, "validate")
		}
	}
	s, err := m.plan(account, req, repos)
	if err != nil {
		return Session{}, errors.Stage(err, "validate")
	}
	if err := m.opts.Store.PutSession(ctx, s); err != nil {
		return Session{}, errors.Wrapf(err, "record the session")
	}
	fault.Point("session.recorded")
	r := m.add(s)
	r.given, r.env = given{req.Bundle, req.Shallow, req.Uncommitted}, req.Sandbox.Env
	r.publish(draft{Type: "session.created", Data: Event{Status: s.Status}})
	if req.Prompt != "" {
		if _, err := r.enqueue(ctx, req.Prompt); err != nil {
			return Session{}, err
		}
	}
	created := r.session()
	m.work.Go(func() { r.loop(logf.With(m.ctx, "session_id", s.ID)) })
	return created, nil
}

// plan validates req. The repositories are those of a session that it continues; nil: req says them.
func (m *Manager) plan(account string, req Request, repos []Repository) (Session, error) {
	name := cmp.Or(req.Agent, m.opts.Default)
	if m.opts.Agents[name] == nil {
		names := strings.Join(slices.Sorted(maps.Keys(m.opts.Agents)), ", ")
		return Session{}, errors.Remedy(errors.Newf(errors.NotFound, "there is no agent %.40q", name), "the agents are %s", names)
	}
	if req.Prompt != "" {
		if err := checkPrompt(req.Prompt); err != nil {
			return Session{}, err
		}
	}
	if l := req.Limits; l.Turns < 0 || !(l.Seconds >= 0) || !(l.USD >= 0) {
		return Session{}, errors.Newf(errors.Invalid, "limits must not be negative")
	}
	if repos == nil {
		var err error
		if repos, err = checkRepos(req); err != nil {
			return Session{}, err
		}
	}
	if err := m.checkKeys(m.opts.Agents[name], req.Sandbox.Env); err != nil {
		return Session{}, err
	}
	author := req.Author
	if author == (Author{}) {
		author = m.opts.Author
	}
	if err := checkAuthor(author); err != nil {
		return Session{}, err
	}
	if len(req.MCP) > 0 {
		if _, err := mcp.Parse(req.MCP); err != nil {
			return Session{}, err
		}
	}
	now := time.Now().UTC()
	return Session{
		ID: idPrefix + ids.New(), Account: account, Title: title(req.Prompt), Agent: name, Model: req.Model, Repo: repos[0].URL, Branch: repos[0].Branch,
		Continues: req.Continues, Conversation: req.conversation, Dir: repos[0].Dir, Subdir: req.Subdir, Repos: repos, GitSecret: req.GitSecret, Author: author, Approval: req.Approval, Limits: req.Limits, Status: Creating, Created: now, Active: now, MCP: req.MCP, Sandbox: sandboxOf(req.Sandbox, m.imageFor(name), memoryVolume(memoryOf(repos[0]))),
	}, nil
}

// imageFor returns the image of sessions that name none: an agent may say that it needs less than all agents together do.
func (m *Manager) imageFor(name string) string {
	if a, ok := m.opts.Agents[name].(interface{ Image() string }); ok {
		return a.Image()
	}
	return m.opts.Image
}

func (m *Manager) add(s Session) *runner {
	r := newRunner(m, s)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runners[s.ID] = r
	return r
}

// recover goes on with a session of an earlier server.
func (m *Manager) recover(ctx context.Context, s Session) error {
	messages, err := m.opts.Store.Messages(ctx, s.ID)
	if err != nil {
		return err
	}
	last, err := m.lastEvent(ctx, s.ID)
	if err != nil {
		return err
	}
	r := m.add(s)
	if last != nil {
		r.published, r.gitSeen = last.Offset, last.GitLines
	}
	var running []Message
	for _, msg := range messages {
		switch msg.State {
		case Running:
			running = append(running, msg)
		case Queued:
			r.queue = append(r.queue, msg)
		}
	}
	r.recoverTurns(ctx, running)
	r.recovered = true
	m.work.Go(func() { r.loop(logf.With(m.ctx, "session_id", s.ID)) })
	return nil
}

// find returns a session of the account by its id or a unique beginning of it, and its runner, nil once it has ended.
func (m *Manager) find(ctx context.Context, account, ref string) (Session, *runner, error) {
	m.mu.Lock()
	var found []*runner
	for id, r := range m.runners {
		if r.account == account && (id == ref || len(ref) > len(idPrefix) && strings.HasPrefix(id, ref)) {
			found = append(found, r)
		}
	}
	m.mu.Unlock()
	if len(found) > 1 {
		return Session{}, nil, errors.Remedy(errors.Newf(errors.Invalid, "%q is the beginning of %d sessions", ref, len(found)), "give more of the id")
	}
	if len(found) == 1 {
		return found[0].session(), found[0], nil
	}
	s, err := m.opts.Store.Session(ctx, ref)
	if err == nil && s.Account != account {
		err = NotFound(ref)
	}
	return s, nil, err
}

// live is find for what needs a session that has not ended.
func (m *Manager) live(ctx context.Context, account, ref string) (*runner, error) {
	s, r, err := m.find(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, hasEnded(s.ID)
	}
	return r, nil
}

// Get returns a session.
func (m *Manager) Get(ctx context.Context, account, ref string) (Session, error) {
	s, _, err := m.find(ctx, account, ref)
	return s, err
}

// List returns the account's sessions, newest first: at most limit (0: all), older than before unless that is "".
func (m *Manager) List(ctx context.Context, account string, live bool, before string, limit int) ([]Session, error) {
	return m.opts.Store.Sessions(ctx, account, live, before, limit)
}

// Totals returns what the account's sessions have used.
func (m *Manager) Totals(ctx context.Context, account string) (Totals, error) {
	return m.opts.Store.Totals(ctx, account)
}

// Messages returns a session's prompts, oldest first.
func (m *Manager) Messages(ctx context.Context, account, ref string) ([]Message, error) {
	s, _, err := m.find(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	return m.opts.Store.Messages(ctx, s.ID)
}

// Send queues a prompt and returns how many are before it. Kinds: Invalid, NotFound, Conflict (ended), Exhausted (the queue is full, or a limit
// of the session is reached).
func (m *Manager) Send(ctx context.Context, account, ref, prompt string) (msg Message, position int, err error) {
	if err := checkPrompt(prompt); err != nil {
		return Message{}, 0, err
	}
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return Message{}, 0, err
	}
	err = r.call(ctx, func() error {
		if err := r.exhausted(); err != nil {
			return err
		}
		msg, err = r.enqueue(ctx, prompt)
		if err != nil {
			return err
		}
		position = len(r.queue) - 1
		if r.current != nil || !r.ready {
			position++
		}
		return nil
	})
	return msg, position, err
}

// Cancel takes a prompt out of the queue. Conflict if it was sent already.
func (m *Manager) Cancel(ctx context.Context, account, ref, message string) error {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return err
	}
	return r.call(ctx, func() error { return r.cancel(message) })
}

// Stop interrupts the turn under way; prompts that wait stay. Conflict if none is.
func (m *Manager) Stop(ctx context.Context, account, ref string) error {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return err
	}
	return r.call(ctx, func() error {
		if r.current == nil {
			return errors.Remedy(errors.Newf(errors.Conflict, "the agent is not at work"), "send a prompt, or end the session")
		}
		r.interrupt("somebody stopped it")
		return nil
	})
}

// Answer answers what the agent has asked.
func (m *Manager) Answer(ctx context.Context, account, ref, question string, a agent.Answer) error {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return err
	}
	for {
		behind := false
		err := r.call(ctx, func() error {
			if behind = r.behind; behind {
				return nil
			}
			return r.answer(question, a)
		})
		if err != nil || !behind {
			return err
		}
		select { // the server has just begun, and does not know yet what was asked
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "answer in session %s", r.id)
		case <-time.After(catchUpPause):
		}
	}
}

// catchUpPause is how long to wait before it is looked again whether a session has read what its agent had printed.
const catchUpPause = 20 * time.Millisecond

// End ends the session and destroys its sandbox. Repeatable.
func (m *Manager) End(ctx context.Context, account, ref string) error {
	s, r, err := m.find(ctx, account, ref)
	if err != nil || r == nil {
		return err
	}
	if err := r.call(ctx, func() error { r.end("it was ended"); return nil }); err != nil && errors.KindOf(err) != errors.Gone {
		return err
	}
	select {
	case <-r.gone:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "end session %s", s.ID)
	}
}
