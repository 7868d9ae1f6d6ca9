package session

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/spares"
	"github.com/RelevanceAI/harvest/internal/session/volumes"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// settle is the pause before a session that was taken is replaced: the agent of the new session has priority.
const settle = 2 * time.Second

// openSpares removes the sessions that an earlier server made ahead, and starts making others.
func (m *Manager) openSpares(ctx context.Context, live []records.Session) {
	for _, s := range live {
		if s.Spare {
			m.dropSpare(ctx, s)
		}
	}
	if m.opts.Spares > 0 {
		m.spares = spares.NewPool[*runner](m.ctx, &m.work, m.opts.Spares, m.opts.SpareLife)
	}
}

// dropSpare removes the record of a session made ahead, whose sandbox has ended, and its traces: events, and files in
// the account's volume.
func (m *Manager) dropSpare(ctx context.Context, s records.Session) {
	ctx = context.WithoutCancel(ctx)
	volumes.RemoveState(ctx, m.opts.Volumes, s.Account, s.ID)
	_, err := m.opts.Journal.Prune(ctx, s.ID, time.Now().Add(time.Hour))
	if err := errors.Join(err, m.opts.Store.DropSession(ctx, s.ID)); err != nil {
		logf.Errorf(ctx, "remove spare session %s: %v", s.ID, err)
	}
}

// kindOfSpare returns the kind of a planned session, or false if such sessions are not made ahead: those that differ
// from every other one, and those with resources that another sandbox must not hold.
func (m *Manager) kindOfSpare(ctx context.Context, s records.Session, req Request) (key spares.Key, ok bool) {
	if m.spares == nil {
		return key, false
	}
	box, first := req.Sandbox, s.Repos[0]
	unlike := req.Continues != "" || len(s.Repos) > 1 || first.Depth != 0 || first.LFS || first.Submodules ||
		len(req.Shallow) > 0 || req.Repo == "" && req.sendsCommits()
	holds := box.Name != "" || box.S3 != nil || box.GPU != "" || len(box.Volumes) > 0
	if unlike || holds {
		return key, false
	}
	name := s.Sandbox.Image
	img := m.preparer().RepoImage(ctx, m.preparation(s), s.Sandbox)
	if img != nil {
		name = img.Image
	}
	id, err := m.opts.Fleet.ImageID(ctx, s.Account, name)
	if err != nil {
		return key, false // making a session ahead must not be the first to build an image
	}
	var secrets []secret.Secret
	if m.opts.Secrets != nil {
		if secrets, err = m.opts.Secrets.List(ctx, s.Account); err != nil {
			return key, false
		}
	}
	for i := range secrets {
		secrets[i].Used = time.Time{}
	}
	text, err := json.Marshal(struct {
		Account, Agent, Model, Repo, Branch, Dir, Subdir, GitSecret, Image string
		Release, Effort, Approval                                          string
		PerTurn                                                            bool
		Author                                                             workspace.Author
		MCP                                                                []byte
		Sandbox                                                            spec.Request
		// Secrets are there since a changed secret is another kind.
		Secrets []secret.Secret
	}{s.Account, s.Agent, s.Model, s.Repo, s.Branch, s.Dir, s.Subdir, s.GitSecret, id, s.Release, s.Effort,
		string(s.Approval), s.PerTurn,
		s.Author, s.MCP, box, secrets})
	if err != nil {
		logf.Errorf(ctx, "the kind of a session: %v", err)
		return key, false
	}
	return sha256.Sum256(text), true
}

// wantSpare makes sessions of a kind, like req, wait for the next request, from after on.
func (m *Manager) wantSpare(key spares.Key, account string, req Request, after time.Time) {
	req.Prompt, req.Bundle, req.Uncommitted, req.Limits = "", nil, workspace.Uncommitted{}, records.Limits{}
	req.BundleID, req.PatchID = "", ""
	m.spares.Want(key, account, after, func(ctx context.Context) (*runner, error) {
		return m.createSpare(ctx, account, req)
	})
}

// closeSpares ends all sessions made ahead that were not taken.
func (m *Manager) closeSpares() {
	if m.spares == nil {
		return
	}
	m.spares.Close()
	var ends sync.WaitGroup
	for _, r := range m.spareRunners() {
		ends.Go(func() { r.GiveUp("the server is shutting down") })
	}
	ends.Wait()
}

// spareRunners returns the sessions made ahead that were not taken.
func (m *Manager) spareRunners() (all []*runner) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.runners {
		if r.session().Spare {
			all = append(all, r)
		}
	}
	return all
}

// createSpare starts making a session ahead.
func (m *Manager) createSpare(ctx context.Context, account string, req Request) (*runner, error) {
	s, err := m.plan(account, req, nil)
	if err != nil {
		return nil, err
	}
	s.Spare = true
	if err := m.opts.Store.PutSession(ctx, s); err != nil {
		return nil, errors.Wrapf(err, "record a spare session")
	}
	fault.Point("spare.recorded")
	r := newRunner(m, s)
	r.env = req.Sandbox.Env
	r.publish(draft{Type: records.EventCreated, Data: records.Event{Status: s.Status}})
	if !m.addSpare(r) {
		m.dropSpare(ctx, s)
		return nil, errors.Newf(errors.Unavailable, "the server is shutting down")
	}
	m.work.Go(func() { r.loop(logf.With(m.ctx, "session_id", s.ID)) })
	return r, nil
}

// addSpare adds the runner of a session made ahead, unless the server ends.
func (m *Manager) addSpare(r *runner) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.spares.Admit(func() { m.runners[r.id] = r })
}

// Warm makes sessions like req wait for the next request, if the Manager makes sessions ahead. It returns the errors
// of Create.
func (m *Manager) Warm(ctx context.Context, account string, req Request) error {
	s, err := m.plan(account, req, nil)
	if err != nil {
		return errors.Stage(err, "validate")
	}
	if key, ok := m.kindOfSpare(ctx, s, req); ok {
		m.wantSpare(key, account, req, time.Time{})
	}
	return nil
}

// Spares returns how many sessions made ahead wait, and how many are being made.
func (m *Manager) Spares() (waiting, making int) { return m.spares.Counts() }

// takeSpare returns a session made ahead that has become the planned session s, or false.
func (m *Manager) takeSpare(ctx context.Context, s records.Session, req Request,
	given workspace.Given) (records.Session, bool) {
	key, ok := m.kindOfSpare(ctx, s, req)
	if !ok {
		return records.Session{}, false
	}
	defer func() { m.wantSpare(key, s.Account, req, time.Now().Add(settle)) }()
	r, ok := m.spares.Pop(key)
	if !ok {
		return records.Session{}, false
	}
	begin := time.Now()
	err := r.become(ctx, s, req, given, begin)
	m.spares.Took(key, err == nil)
	if err != nil {
		logf.Infof(ctx, "spare session %s: unusable: %v", r.id, err)
		m.work.Go(func() { r.GiveUp("it is unusable") })
		return records.Session{}, false
	}
	return r.session(), true
}

// placeNow returns the place of a session that begins now.
func placeNow() string { return idPrefix + ids.New() }

// waitAhead starts the agent of a session made ahead, and reports when the session can take a prompt.
func (r *runner) waitAhead(ctx context.Context) {
	if r.over != "" || !r.ready || r.catching || r.agent == nil && !r.start(ctx) {
		return
	}
	if !r.gate.Closed() && !r.warmed {
		r.warmed = true
		close(r.warm)
	}
}

// startAhead starts the agent of a new session before its first prompt, on a server that makes sessions ahead. If that
// fails, the prompt starts the agent and reports why.
func (r *runner) startAhead(ctx context.Context) {
	if r.m.spares == nil || r.ahead || r.over != "" || !r.ready || r.catching {
		return
	}
	r.ahead = true
	if s := r.session(); r.agent == nil && s.Turns == 0 && len(r.queue) == 0 && r.current == nil && !r.recovered {
		r.start(ctx)
	}
}

// Warm implements spares.Session.
func (r *runner) Warm() <-chan struct{} { return r.warm }

// Gone implements spares.Session.
func (r *runner) Gone() <-chan struct{} { return r.gone }

// GiveUp implements spares.Session.
func (r *runner) GiveUp(why string) {
	ctx := context.WithoutCancel(r.m.ctx)
	err := r.call(ctx, func() error {
		if !r.session().Spare {
			return errors.Newf(errors.Conflict, "session %s: already taken", r.id)
		}
		r.end(why)
		return nil
	})
	if err == nil {
		<-r.gone
	}
}

// become makes a session made ahead the planned session s: its repository is updated first, then the store moves
// session, sandbox and prompt to the account in one transaction. On an error the session is of no use.
func (r *runner) become(ctx context.Context, s records.Session, req Request, given workspace.Given,
	begin time.Time) error {
	repos, err := r.refresh(ctx, s, req, given)
	if err != nil {
		return err
	}
	fault.Point("spare.fresh")
	return r.call(ctx, func() error {
		now := time.Now().UTC()
		taken := r.session()
		if r.over != "" || r.agent == nil || !taken.Spare {
			return errors.Newf(errors.Conflict, "session %s: has ended", r.id)
		}
		taken.Spare, taken.Place, taken.Title, taken.Limits, taken.Created, taken.Active = false, placeNow(), s.Title,
			s.Limits, now, now
		taken.Repos, taken.Base = repos, repos[0].Base
		var first []records.Message
		if req.Prompt != "" {
			first = []records.Message{{ID: "msg_" + ids.New(), Session: r.id, Prompt: req.Prompt,
				State: records.Queued, Created: now}}
		}
		_, err := r.m.opts.Fleet.Adopt(ctx, r.account, taken.SandboxID,
			func(ctx context.Context, box record.Sandbox) error {
				return r.m.opts.Store.TakeSession(ctx, taken, first, box)
			})
		if err != nil {
			return err
		}
		fault.Point("spare.taken")
		r.mu.Lock()
		r.s = taken
		r.mu.Unlock()
		r.publish(draft{records.EventStage, records.Event{Stage: &records.Stage{Name: "made ahead",
			MS: float64(time.Since(begin).Microseconds()) / 1000}}})
		for _, m := range first {
			r.queue = append(r.queue, m)
			r.publish(draft{records.EventQueued, records.Event{MessageID: m.ID, Message: &m, Position: len(r.queue)}})
		}
		return nil
	})
}

// refreshLimit is how long a request waits for the newest commit. After that it gets a new session, which reports why
// the repository cannot be reached.
const refreshLimit = 10 * time.Second

// refresh brings the repository of a session made ahead to the state from which s begins.
func (r *runner) refresh(ctx context.Context, s records.Session, req Request,
	given workspace.Given) ([]workspace.Repository, error) {
	own := r.session()
	repos := append([]workspace.Repository{}, own.Repositories()...)
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	tree := r.m.tree(own, own.SandboxID)
	tree.Title = s.Title
	given.Shallow = nil
	base, start, err := tree.Refresh(ctx, workspace.Repository{Dir: own.Dir, Branch: own.Branch}, req.Repo, given)
	if err != nil {
		return nil, err
	}
	repos[0].Base, repos[0].Start = base, start
	return repos, nil
}
