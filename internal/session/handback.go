package session

import (
	"context"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// Diff returns the agent's changes in a repository ("" for the first) since the session began, as a patch for `git
// apply`. It does not include the user's uncommitted changes.
func (m *Manager) Diff(ctx context.Context, account, ref, repository string) ([]byte, error) {
	s, r, _, err := m.withRepository(ctx, account, ref, repository)
	if err != nil {
		return nil, err
	}
	return m.tree(s, s.SandboxID).Diff(ctx, r)
}

// Bundle returns the work branch in the format of `git bundle create`. A repository that has the session's Base can
// fetch WorkBranch from it. Uncommitted changes are in it as a commit "wip: …". Bundle returns Conflict if the agent
// has not changed anything.
func (m *Manager) Bundle(ctx context.Context, account, ref, repository string) ([]byte, error) {
	s, r, _, err := m.withRepository(ctx, account, ref, repository)
	if err != nil {
		return nil, err
	}
	out, err := m.tree(s, s.SandboxID).Bundle(ctx, r)
	if err == nil {
		fault.Point("session.committed")
	}
	return out, err
}

// Left returns the agent's changes that cannot be handed back: changes in submodules and in other work trees, and
// commits on other branches. It returns nothing for a session without a repository and for one that has ended.
func (m *Manager) Left(ctx context.Context, account, ref string) ([]string, error) {
	s, r, err := m.find(ctx, account, ref)
	if err != nil || r == nil || s.SandboxID == "" || s.Status == records.Creating {
		return nil, err
	}
	return m.tree(s, s.SandboxID).Left(ctx, workspace.Dirs(s.Repositories()))
}

// EndKeeping is like End, but returns Conflict if changes of the agent that Left reports would be lost.
func (m *Manager) EndKeeping(ctx context.Context, account, ref string) error {
	left, err := m.Left(ctx, account, ref)
	// Gone and Conflict mean that the sandbox has ended.
	if kind := errors.KindOf(err); err != nil && kind != errors.Gone && kind != errors.Conflict {
		return err
	}
	if len(left) > 0 {
		return errors.Remedy(errors.Newf(errors.Conflict, "session %s: changes that were not handed back: %s", ref,
			strings.Join(left, "; ")),
			"have the agent push or copy them, or end the session with --discard (discard=true)")
	}
	return m.End(ctx, account, ref)
}

// withRepository returns a session whose repositories are cloned, and the repository with this name, "" for the first.
// NAME/PATH is a submodule.
func (m *Manager) withRepository(ctx context.Context, account, ref, name string) (records.Session, workspace.Repository,
	*runner, error) {
	r, err := m.live(ctx, account, ref)
	if err != nil {
		return records.Session{}, workspace.Repository{}, nil, err
	}
	s := r.session()
	if s.SandboxID == "" || s.Status == records.Creating {
		return records.Session{}, workspace.Repository{}, nil,
			errors.Remedy(errors.Newf(errors.Conflict, "the repository is not cloned yet"),
				"wait until the session is ready")
	}
	name, module, _ := strings.Cut(name, "/")
	repo, err := workspace.Named(s.Repositories(), name)
	if err == nil && module != "" {
		repo, err = m.tree(s, s.SandboxID).Submodule(ctx, repo, module)
	}
	return s, repo, r, err
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
	return m.carry(ctx, account, ref, repository, git.Pushed, []string{"push"})
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
		return nil
	})
}

// letGo unblocks the next prompt.
func (r *runner) letGo(ctx context.Context) {
	_ = r.call(ctx, func() error { r.held = false; return nil }) // it fails only if the session has ended
}
