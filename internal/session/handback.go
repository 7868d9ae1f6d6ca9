package session

import (
	"context"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// Diff returns the agent's changes in a repository ("" for the first) since the session began, as a patch for `git
// apply`. It does not include the user's uncommitted changes.
func (m *Manager) Diff(ctx context.Context, account, ref, repository string) ([]byte, error) {
	v, err := m.view(ctx, account, ref, repository)
	if err != nil {
		return nil, err
	}
	defer v.close()
	return v.tree.Diff(ctx, v.repo)
}

// Bundle returns the work branch in the format of `git bundle create`. A repository that has the session's Base can
// fetch WorkBranch from it. Uncommitted changes are in it as a commit "wip: …". changes is the Digest of Diff.
// Bundle returns Conflict if the agent has not changed anything.
func (m *Manager) Bundle(ctx context.Context, account, ref, repository string) (bundle []byte, changes string,
	err error) {
	v, err := m.view(ctx, account, ref, repository)
	if err != nil {
		return nil, "", err
	}
	defer v.close()
	patch, err := v.tree.Diff(ctx, v.repo) // first: later changes are not taken
	if err != nil {
		return nil, "", err
	}
	if bundle, err = v.tree.Bundle(ctx, v.repo); err != nil {
		return nil, "", err
	}
	fault.Point("session.committed")
	return bundle, Digest(patch), nil
}

// withRepository returns a session whose sandbox runs, and the repository with this name, "" for the first.
// NAME/PATH is a submodule.
func (m *Manager) withRepository(ctx context.Context, account, ref, name string) (records.Session, workspace.Repository,
	*runner, error) {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return records.Session{}, workspace.Repository{}, nil, err
	}
	s, err := awake(ctx, r)
	if err != nil {
		return records.Session{}, workspace.Repository{}, nil, err
	}
	repo, err := m.named(ctx, m.tree(s, s.SandboxID), s, name)
	return s, repo, r, err
}

// named returns the repository of a session with this name, "" for the first. NAME/PATH is a submodule.
func (m *Manager) named(ctx context.Context, tree workspace.Tree, s records.Session,
	name string) (workspace.Repository, error) {
	name, module, _ := strings.Cut(name, "/")
	repo, err := workspace.Named(s.Repositories(), name)
	if err == nil && module != "" {
		repo, err = tree.Submodule(ctx, repo, module)
	}
	return repo, err
}

// withOrigin is withRepository for work that reaches the repository's origin.
func (m *Manager) withOrigin(ctx context.Context, account, ref, name string) (records.Session, workspace.Repository,
	*runner, error) {
	s, repo, r, err := m.withRepository(ctx, account, ref, name)
	if err == nil && repo.URL == "" {
		err = errors.Remedy(errors.Newf(errors.Conflict, "the repository has no origin"),
			"bring the branch into the local repository with \"harvest checkout\"")
	}
	return s, repo, r, err
}

// Sync contains the parameters of carrying a session's work forward.
type Sync struct {
	Repository string // "" means the first
	Branch     string // upstream branch; "" means the session's starting branch
	Rewritten  bool   // a person confirmed that the branch was rewritten on purpose
}

// Sync carries the work forward onto upstream commits (Safe-Carry-Forward): snapshot, fetch, rebase. If that fails,
// the repository is restored. The event is published in any case and lists the attempts. Sync returns Conflict while
// the agent is working.
func (m *Manager) Sync(ctx context.Context, account, ref string, req Sync) (git.Event, error) {
	if err := git.CheckBranch(req.Branch); err != nil {
		return git.Event{}, err
	}
	params := []string{"sync"}
	if req.Rewritten {
		params = append(params, "--rewritten")
	}
	if req.Branch != "" {
		params = append(params, req.Branch)
	}
	return m.carry(ctx, account, ref, req.Repository, git.Synced, params)
}

// Push squashes the "wip:" commits and pushes the work branch to its origin. It returns Conflict while the agent is
// working, and if another client has pushed to the branch.
func (m *Manager) Push(ctx context.Context, account, ref, repository string) (git.Event, error) {
	done, err := m.carry(ctx, account, ref, repository, git.Pushed, []string{"push"})
	if err != nil || done.Failed {
		return done, err
	}
	changes, err := m.Diff(ctx, account, ref, repository) // the push has all of them
	if err == nil {
		err = m.Taken(ctx, account, ref, repository, Digest(changes))
	}
	if err != nil { // the push has succeeded
		logf.Infof(ctx, "note the pushed changes of session %s: %v", ref, err)
	}
	return done, nil
}

// carry runs harvest-git for a session whose agent is idle, and returns the last event of this kind.
func (m *Manager) carry(ctx context.Context, account, ref, name, kind string, params []string) (git.Event, error) {
	s, repo, r, err := m.withOrigin(ctx, account, ref, name)
	if err != nil {
		return git.Event{}, err
	}
	if err := r.hold(ctx); err != nil {
		return git.Event{}, err
	}
	defer r.letGo(context.WithoutCancel(ctx))
	fresh, err := m.credentials().Refresh(ctx, loginsOf(s), m.in(s.Account, s.SandboxID))
	if err != nil {
		return git.Event{}, err
	}
	if len(fresh) > 0 {
		r.creds.Take(fresh)
	}
	lines, failed, err := m.tree(s, s.SandboxID).Carry(ctx, repo, params)
	if err != nil {
		return git.Event{}, err
	}
	last := git.Event{Dir: repo.Dir, Branch: s.WorkBranch()}
	err = r.call(ctx, func() error {
		for text := range strings.Lines(lines) {
			if k, e, ok := git.ParseEvent(text); ok {
				r.gitEvent(k, e)
				if k == kind {
					last = e
				}
			}
		}
		return nil
	})
	if err == nil && !last.Failed {
		err = failed
	}
	return last, err
}

// hold blocks the next prompt. It returns Conflict while the agent is working.
func (r *runner) hold(ctx context.Context) error {
	return r.call(ctx, func() error {
		if r.current != nil || r.held || !r.ready {
			return errors.Remedy(errors.Newf(errors.Conflict, "the agent is at work in the repository"),
				"wait until its turn is done, or stop it")
		}
		r.held = true
		lendCredentials(r)
		return nil
	})
}

// letGo unblocks the next prompt.
func (r *runner) letGo(ctx context.Context) {
	_ = r.call(ctx, func() error { r.held = false; return nil }) // it fails only if the session has ended
}
