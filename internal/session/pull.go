package session

import (
	"cmp"
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/github"
	"github.com/RelevanceAI/harvest/internal/session/pulls"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// OpenPull pushes the work branch and opens a pull request for it on GitHub, as the user who owns the token. The agent
// writes its text; if it cannot, the text is a list of the commits. If one is open already, OpenPull updates it, except
// for text that a person has changed there.
func (m *Manager) OpenPull(ctx context.Context, account, ref string, req pulls.Request) (pulls.Pull, error) {
	s, repo, r, err := m.withOrigin(ctx, account, ref, req.Repository)
	if err != nil {
		return pulls.Pull{}, err
	}
	if err := req.Check(); err != nil {
		return pulls.Pull{}, err
	}
	l, err := m.credentials().Find(ctx, loginsOf(s))
	if err != nil {
		return pulls.Pull{}, err
	}
	defer l.Release()
	defer l.Revoke(context.WithoutCancel(ctx))
	hub, ok := l.GitHub(repo.URL)
	address, err := git.ParseAddress(repo.URL)
	if !ok || err != nil || strings.Count(address.Path, "/") != 1 {
		return pulls.Pull{}, errors.Remedy(errors.Newf(errors.Denied, "repository %s: no token for GitHub",
			repo.URL), "store one: harvest secret set github GITHUB_TOKEN; add GITHUB_HOST for GitHub Enterprise")
	}
	p := &pulls.Proposal{Request: req, Hub: hub, Path: address.Path, Session: s.ID, Name: s.Title,
		Branch: s.WorkBranch(), Ask: func(ctx context.Context, prompt string) (string, error) {
			return r.ask(ctx, records.PurposePull, prompt)
		}}
	old, err := hub.FindPull(ctx, p.Path, p.Branch) // before the push, so that a bad token changes nothing
	if err != nil {
		return pulls.Pull{}, err
	}
	if _, err := m.Push(ctx, account, ref, req.Repository); err != nil {
		return pulls.Pull{}, err
	}
	if p.Work, err = m.tree(s, s.SandboxID).Pushed(ctx, repo, github.Templates()); err != nil {
		return pulls.Pull{}, err
	}
	var made pulls.Pull
	switch {
	case old.Number != 0:
		made, err = p.Update(ctx, old)
	case len(p.Work.Subjects) == 0:
		err = workspace.Unchanged(s.ID)
	default:
		made, err = p.Open(ctx, cmp.Or(req.Base, repo.Branch))
	}
	if err != nil {
		return made, err
	}
	return made, r.call(ctx, func() error {
		r.change(func(s *records.Session) {
			s.Repos = slices.Clone(s.Repositories())
			for i := range s.Repos {
				if s.Repos[i].Dir == repo.Dir {
					s.Repos[i].Pull = made.URL
				}
			}
		})
		return nil
	})
}
