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
	"unicode"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/release"
	"github.com/RelevanceAI/harvest/internal/session/credentials"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
	"github.com/RelevanceAI/harvest/internal/session/inputs"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/session/once"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/shell"
	"github.com/RelevanceAI/harvest/internal/session/spares"
	"github.com/RelevanceAI/harvest/internal/session/text"
	"github.com/RelevanceAI/harvest/internal/session/uploads"
	"github.com/RelevanceAI/harvest/internal/session/volumes"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

const idPrefix = "ses_"

// Options of a Manager. Fleet, Journal, Store and Agents are required. Other zero fields get the default given in
// their comments.
type Options struct {
	Fleet   *fleet.Fleet
	Journal *event.Journal
	Store   records.Store
	Agents  map[string]agent.Agent
	Command func(command string) agent.Agent // of a command that a user names; nil: only Agents
	// Releases are the versions of agents, by name, of sessions that name none.
	Releases map[string]string

	// Models is the gateway to the models of agents; nil: agents reach models on their own. If the engine can connect
	// into sandboxes and DirectModels is not set, agents send their requests through the gateway, and their sandboxes
	// contain no credential. Otherwise they receive the credential itself.
	Models       *model.Gateway
	DirectModels bool

	Default string            // agent of requests without one: "claude"
	Image   string            // image of sandboxes of requests without one: "agent"
	Repos   preparation.Repos // images of repositories; nil for none
	Author  workspace.Author  // author of requests without one: "Harvest Agent"
	Secrets *secret.Vault     // source of git credentials; nil for none
	Volumes volume.Provider   // volumes of all accounts, for memories; nil for none
	// GitHub returns the client for GitHub's API at the address in an account's secrets; nil: a client that reaches
	// the internet only.
	GitHub func(account string) *http.Client
	// History returns a session's record as a database, which becomes sessions/ID.db in its state volume after each
	// turn; nil: no history is written.
	History func(ctx context.Context, id string) ([]byte, error)

	Inbox *inbox.Box // gets what waits for a person; nil for none

	// Uploads keeps the files that clients send ahead; nil: one in a temporary directory.
	Uploads *uploads.Store

	// Spares is how many sessions of each kind in use wait for the next request: 0. SpareLife is how long they wait: 30
	// minutes.
	Spares    int
	SpareLife time.Duration

	MCPWait       time.Duration // maximum wait of the first prompt for MCP servers: 30 s
	HangAfter     time.Duration // time without activity of the model until the session counts as hung: 5 minutes
	ToolHangAfter time.Duration // the same while a tool runs: 30 minutes
	// BackgroundLimit is how long background tasks of the agent keep the sandbox from becoming idle after the last of
	// them began or ended: 6 hours.
	BackgroundLimit time.Duration
	// QuestionWait is how long the model's questions wait for a person who follows a session that asks nothing: 5
	// minutes. If nobody follows it, they do not wait.
	QuestionWait time.Duration
	SummaryWait  time.Duration // time limit for the agent's summary of a pull request: 3 minutes
	StopGrace    time.Duration // time between an interrupt and the kill of the agent's process: 1 s
}

// Manager holds all sessions of one server.
type Manager struct {
	opts Options
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work tasks.Group

	mu      sync.Mutex
	runners map[string]*runner    // guarded by mu; of sessions that have not ended
	labels  sync.Mutex            // held while the record of a session that has ended changes
	spares  *spares.Pool[*runner] // nil without sessions made ahead
	once    once.Runner
	inputs  inputs.Files
}

// Open returns a Manager that resumes the sessions of the Store. Close stops the Manager; agents keep running.
func Open(ctx context.Context, opts Options) (*Manager, error) {
	if opts.Fleet == nil || opts.Journal == nil || opts.Store == nil || len(opts.Agents) == 0 {
		return nil, errors.Errorf("a Manager needs a Fleet, a Journal, a Store and agents")
	}
	chosen := opts.Default
	opts.Default = cmp.Or(opts.Default, "claude")
	opts.Image = cmp.Or(opts.Image, "agent")
	if opts.Author == (workspace.Author{}) {
		opts.Author = workspace.Author{Name: "Harvest Agent", Email: "agent@harvest.invalid"}
	}
	opts.MCPWait = cmp.Or(opts.MCPWait, 30*time.Second)
	opts.HangAfter = cmp.Or(opts.HangAfter, 5*time.Minute)
	opts.BackgroundLimit = cmp.Or(opts.BackgroundLimit, 6*time.Hour)
	opts.ToolHangAfter = cmp.Or(opts.ToolHangAfter, 30*time.Minute)
	opts.QuestionWait = cmp.Or(opts.QuestionWait, 5*time.Minute)
	opts.SummaryWait = cmp.Or(opts.SummaryWait, 3*time.Minute)
	opts.SpareLife = cmp.Or(opts.SpareLife, 30*time.Minute)
	opts.StopGrace = cmp.Or(opts.StopGrace, time.Second)
	m := &Manager{opts: opts, runners: map[string]*runner{}}
	if chosen != "" && programOf(m, chosen) == nil {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "agents.default: unknown agent %.40q", chosen),
			"use one of %s", agentNames(m))
	}
	var err error
	if m.inputs, err = inputs.Open(opts.Uploads); err != nil {
		return nil, err
	}
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	m.once = once.Runner{Fleet: opts.Fleet, Agents: opts.Agents, Models: m.models(), Tag: preparation.Tag,
		Fit: func(e agent.Event) agent.Event { return records.Fit(records.Event{Event: e}).Event }}
	live, err := opts.Store.Sessions(ctx, "", true, "", 0)
	if err != nil {
		m.stop()
		m.inputs.Close()
		return nil, errors.Wrapf(err, "list the sessions")
	}
	m.inputs.Retain(ctx, live)
	if err := retainInbox(ctx, opts.Inbox, live); err != nil {
		logf.Errorf(ctx, "withdraw inbox items of ended sessions: %v", err)
	}
	m.openSpares(ctx, live)
	for _, s := range live {
		if s.Spare {
			continue
		}
		if err := m.recover(ctx, s); err != nil {
			logf.Errorf(ctx, "recover session %s: %v", s.ID, err)
		}
	}
	return m, nil
}

// Close stops following the sessions. Their sandboxes and agents keep running, and the next Manager follows them
// again. Close ends the sessions made ahead that nobody has taken.
func (m *Manager) Close() {
	m.closeSpares()
	m.stop()
	m.work.Close()
	m.inputs.Close()
}

// Create creates a session. It returns at once: sandbox, repository and agent are prepared in the background, and the
// first prompt waits for them. Kinds: Invalid, NotFound (no such agent).
func (m *Manager) Create(ctx context.Context, account string, req Request) (records.Session, error) {
	var repos []workspace.Repository
	var err error
	if req.Continues != "" {
		if repos, err = m.goOn(ctx, account, &req); err != nil {
			return records.Session{}, errors.Stage(err, "validate")
		}
	}
	s, err := m.plan(account, req, repos)
	if err != nil {
		return records.Session{}, errors.Stage(err, "validate")
	}
	given, err := m.inputs.Take(account, s.ID, req.inputs())
	if err != nil {
		return records.Session{}, errors.Stage(err, "validate")
	}
	if taken, ok := m.takeSpare(ctx, s, req, given); ok {
		m.inputs.Release(ctx, s.ID)
		return taken, nil
	}
	if err := m.opts.Store.PutSession(ctx, s); err != nil {
		m.inputs.Release(ctx, s.ID)
		return records.Session{}, errors.Wrapf(err, "record the session")
	}
	fault.Point("session.recorded")
	r := m.add(s)
	r.given, r.env = given, req.Sandbox.Env
	r.publish(draft{Type: "session.created", Data: records.Event{Status: s.Status}})
	if req.Prompt != "" {
		if _, err := r.enqueue(ctx, req.Prompt, ""); err != nil {
			return records.Session{}, err
		}
	}
	seen(ctx, m, account, req.Continues)
	created := r.session()
	m.work.Go(func() { r.loop(logf.With(m.ctx, "session_id", s.ID)) })
	return created, nil
}

// Check returns the error of Manager.Create for a request that is wrong, and creates nothing.
func Check(m *Manager, account string, req Request) error {
	if req.Continues != "" {
		return errors.Remedy(errors.Newf(errors.Invalid, "continues: not possible in a schedule"),
			"omit continues")
	}
	_, err := m.plan(account, req, nil)
	return errors.Stage(err, "validate")
}

// plan validates req. repos are the repositories of the session that req continues; nil: req names them.
func (m *Manager) plan(account string, req Request, repos []workspace.Repository) (records.Session, error) {
	name := cmp.Or(req.Agent, m.opts.Default)
	if programOf(m, name) == nil {
		return records.Session{}, errors.Remedy(errors.Newf(errors.NotFound, "unknown agent %.40q", name),
			"use one of %s, or a command with arguments that speaks ACP", agentNames(m))
	}
	if req.Prompt != "" {
		if err := records.CheckPrompt(req.Prompt); err != nil {
			return records.Session{}, err
		}
	}
	if err := checkOptions(records.Options{Model: req.Model, Effort: req.Effort, Approval: req.Approval},
		req.Limits); err != nil {
		return records.Session{}, err
	}
	if repos == nil {
		var err error
		if repos, err = workspace.Check(req.repositories()); err != nil {
			return records.Session{}, err
		}
	}
	if req.Sandbox.IdleAction != "" || len(req.Sandbox.StartCommand) > 0 {
		err := errors.Newf(errors.Invalid, "idle_action and start_command are not for sandboxes of sessions")
		return records.Session{}, errors.Remedy(err,
			"omit them: the next prompt continues a session whose sandbox has ended, with its files")
	}
	if err := m.models().CheckKeys(programOf(m, name), req.Sandbox.Env); err != nil {
		return records.Session{}, err
	}
	version := cmp.Or(req.Release, m.opts.Releases[name])
	if version != "" {
		if _, err := release.Of(name, programOf(m, name), version); err != nil {
			return records.Session{}, err
		}
	}
	author := req.Author
	if author == (workspace.Author{}) {
		author = m.opts.Author
	}
	if err := workspace.CheckAuthor(author); err != nil {
		return records.Session{}, err
	}
	if len(req.MCP) > 0 {
		if _, err := mcp.Parse(req.MCP); err != nil {
			return records.Session{}, err
		}
	}
	now := time.Now().UTC()
	return records.Session{
		ID: idPrefix + ids.New(), Account: account, Title: cmp.Or(req.title, text.Title(req.Prompt)), Agent: name,
		Release: version, Model: req.Model, Effort: req.Effort, Repo: repos[0].URL, Branch: repos[0].Branch,
		Continues: req.Continues, Conversation: req.conversation, Dir: repos[0].Dir, Subdir: req.Subdir, Repos: repos,
		GitSecret: req.GitSecret, PerTurn: req.PerTurn, Author: author, Approval: req.Approval, Limits: req.Limits,
		Status:  records.Creating,
		Created: now, Active: now, MCP: req.MCP, Sandbox: preparation.Request(req.Sandbox, m.imageFor(name),
			volumes.Memory(repos[0]), m.opts.Fleet.Capabilities().Volumes),
	}, nil
}

// programOf returns the agent of a name, or of a command: a name with a space or a slash. It returns nil if there
// is none.
func programOf(m *Manager, name string) agent.Agent {
	if a := m.opts.Agents[name]; a != nil || m.opts.Command == nil || !strings.ContainsAny(name, " /") ||
		len(name) > maxCommand || strings.ContainsFunc(name, unicode.IsControl) {
		return a
	}
	return m.opts.Command(name)
}

func agentNames(m *Manager) string {
	return strings.Join(slices.Sorted(maps.Keys(m.opts.Agents)), ", ")
}

// maxCommand is the size limit for an agent's command, in bytes.
const maxCommand = 4 << 10

// imageFor returns the image for sessions that do not name one. An agent may name a smaller image than the one for
// all agents.
func (m *Manager) imageFor(name string) string {
	if a, ok := programOf(m, name).(interface{ Image() string }); ok {
		return a.Image()
	}
	return m.opts.Image
}

func (m *Manager) add(s records.Session) *runner {
	r := newRunner(m, s)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.runners[s.ID] = r
	return r
}

// forget removes the runner of a session that has ended.
func (m *Manager) forget(id string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.runners, id)
}

// recover resumes a session of an earlier server.
func (m *Manager) recover(ctx context.Context, s records.Session) error {
	messages, err := m.opts.Store.Messages(ctx, s.ID)
	if err != nil {
		return err
	}
	last, err := records.LastEvent(ctx, m.opts.Journal, s.ID)
	if err != nil {
		return err
	}
	r := m.add(s)
	if last != nil {
		r.published, r.gitSeen, r.denials = last.Offset, last.GitLines, last.Denials
	}
	var running []records.Message
	for _, msg := range messages {
		switch msg.State {
		case records.Running:
			running = append(running, msg)
		case records.Queued:
			if msg.Purpose != "" { // its caller is gone
				r.drop(msg, "the server was restarted")
				continue
			}
			r.queue = append(r.queue, msg)
		case records.Held:
			r.onHold = append(r.onHold, msg)
		}
	}
	r.recoverTurns(ctx, running)
	r.recovered, r.given = true, m.inputs.Find(ctx, s.ID)
	m.work.Go(func() { r.loop(logf.With(m.ctx, "session_id", s.ID)) })
	return nil
}

// find returns a session of the account by its ID or a unique prefix of it, and its runner; the runner is nil if the
// session has ended.
func (m *Manager) find(ctx context.Context, account, ref string) (records.Session, *runner, error) {
	m.mu.Lock()
	var found []*runner
	for id, r := range m.runners {
		if r.account == account && !r.session().Spare && (id == ref || len(ref) > len(idPrefix) &&
			strings.HasPrefix(id, ref)) {
			found = append(found, r)
		}
	}
	m.mu.Unlock()
	if len(found) > 1 {
		return records.Session{}, nil, errors.Remedy(errors.Newf(errors.Invalid,
			"%q is ambiguous: %d sessions start with it", ref, len(found)), "give more characters of the id")
	}
	if len(found) == 1 {
		return found[0].session(), found[0], nil
	}
	s, err := m.opts.Store.Session(ctx, ref)
	if err == nil && (s.Account != account || s.Spare) {
		err = records.NotFound(ref)
	}
	return s, nil, err
}

// live is find for operations on a session that has not ended.
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

// RunOnce has an agent answer one prompt in an existing sandbox that belongs to no session. The agent runs under a
// terminal, in the directory of its first volume or else in its own. RunOnce reports the agent's events as they
// happen; it holds back the Done event, if there is one, until the agent has ended. Lines that are not events are
// reported as Other. When ctx ends, the agent and all its descendants are killed. Kinds: Invalid, NotFound,
// Unsupported (the agent has no one-shot mode), Conflict (the sandbox belongs to a session, or an agent is working in
// it).
func (m *Manager) RunOnce(ctx context.Context, account, ref, name, prompt string,
	tell func(agent.Event)) (commands.Result, error) {
	if err := records.CheckPrompt(prompt); err != nil {
		return commands.Result{}, err
	}
	return m.once.Run(ctx, account, ref, name, prompt, tell)
}

// in returns a sandbox of an account, to run scripts in it.
func (m *Manager) in(account, box string) shell.Sandbox {
	return shell.Sandbox{Fleet: m.opts.Fleet, Account: account, ID: box}
}

// tree returns the work of a session in a sandbox.
func (m *Manager) tree(s records.Session, box string) workspace.Tree {
	return workspace.Tree{Sandbox: m.in(s.Account, box), Session: s.ID, Title: s.Title, Author: s.Author}
}

// credentials is the source of git's credentials.
func (m *Manager) credentials() credentials.Source {
	return credentials.Source{Secrets: m.opts.Secrets, GitHub: m.opts.GitHub}
}

// loginsOf describes the credentials for the session's repositories.
func loginsOf(s records.Session) credentials.Request {
	req := credentials.Request{Account: s.Account, Secret: s.GitSecret}
	for _, r := range s.Repositories() {
		req.URLs = append(req.URLs, r.URL)
	}
	return req
}

// Get returns a session.
func (m *Manager) Get(ctx context.Context, account, ref string) (records.Session, error) {
	s, _, err := m.find(ctx, account, ref)
	return s, err
}

// Filter selects sessions of an account. The zero Filter selects those that have not ended.
type Filter struct {
	All      bool   // also those that have ended, without archived ones
	Archived bool   // only archived ones
	Pinned   bool   // only pinned ones
	Text     string // only those that mention this text; with All archived ones, too
}

// List returns sessions of an account, newest first. A session mentions a text that is in its ID, title, repository,
// agent or status, in a person's prompt, or in the last words of a reply.
func (m *Manager) List(ctx context.Context, account string, f Filter) ([]records.Session, error) {
	all, err := m.opts.Store.Sessions(ctx, account, !f.All && !f.Archived, "", 0)
	if err != nil {
		return nil, err
	}
	wanted := strings.ToLower(strings.TrimSpace(f.Text))
	var mentioning map[string]bool
	if wanted != "" {
		if mentioning, err = m.opts.Store.Mentioning(ctx, account, wanted); err != nil {
			return nil, err
		}
	}
	return slices.DeleteFunc(all, func(s records.Session) bool {
		about := strings.ToLower(strings.Join([]string{s.ID, s.Title, s.Repo, s.Agent, string(s.Status)}, "\n"))
		return f.Pinned && !s.Pinned || f.Archived && !s.Archived || !f.Archived && wanted == "" && s.Archived ||
			wanted != "" && !mentioning[s.ID] && !strings.Contains(about, wanted)
	}), nil
}

// Totals returns the account's total usage over all sessions.
func (m *Manager) Totals(ctx context.Context, account string) (records.Totals, error) {
	return m.opts.Store.Totals(ctx, account)
}

// Messages returns a session's prompts, oldest first.
func (m *Manager) Messages(ctx context.Context, account, ref string) ([]records.Message, error) {
	s, _, err := m.find(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	return m.opts.Store.Messages(ctx, s.ID)
}

// Send queues a prompt and returns the number of prompts before it. Kinds: Invalid, NotFound, Conflict (ended),
// Exhausted (the queue is full, or a limit of the session is reached).
func (m *Manager) Send(ctx context.Context, account, ref, prompt string) (msg records.Message, position int,
	err error) {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return records.Message{}, 0, err
	}
	err = r.call(ctx, func() error {
		if err := r.exhausted(); err != nil {
			return err
		}
		msg, err = r.enqueue(ctx, prompt, "")
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

// Cancel removes a prompt that is queued or held. It returns Conflict if the prompt was sent already.
func (m *Manager) Cancel(ctx context.Context, account, ref, message string) error {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return err
	}
	return r.call(ctx, func() error { return r.cancel(message) })
}

// Stop interrupts the current turn. Queued prompts stay. It returns Conflict if no turn is under way.
func (m *Manager) Stop(ctx context.Context, account, ref string) error {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return err
	}
	return r.call(ctx, r.stop)
}

// Answer answers a question of the agent.
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
		select { // the server has just started and does not know the open questions yet
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "answer in session %s", r.id)
		case <-time.After(catchUpPause):
		}
	}
}

// catchUpPause is the pause between checks whether a session has read the earlier output of its agent.
const catchUpPause = 20 * time.Millisecond

// endedByRequest is the reason of the end of a session that End ended.
const endedByRequest = "it was ended"

// End ends the session and destroys its sandbox. It is idempotent.
func (m *Manager) End(ctx context.Context, account, ref string) error {
	s, r, err := m.find(ctx, account, ref)
	if err != nil || r == nil {
		return err
	}
	if err := r.call(ctx, func() error { r.end(endedByRequest); return nil }); err != nil &&
		errors.KindOf(err) != errors.Gone {
		return err
	}
	select {
	case <-r.gone:
		seen(ctx, m, account, s.ID)
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "end session %s", s.ID)
	}
}

// Uploads returns the store of the files that clients send ahead of their sessions.
func (m *Manager) Uploads() *uploads.Store { return m.inputs.Store }
