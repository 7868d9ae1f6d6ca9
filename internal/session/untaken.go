package session

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// Digest identifies the changes of an agent in a repository, as Diff returns them.
func Digest(patch []byte) string {
	sum := sha256.Sum256(patch)
	return hex.EncodeToString(sum[:])
}

// Taken records that a client has the changes of a repository ("" for the first) with this Digest, so that EndKeeping
// does not refuse. It does nothing for a session that has ended.
func (m *Manager) Taken(ctx context.Context, account, ref, repository, changes string) error {
	s, r, err := m.find(ctx, account, ref)
	if err != nil || r == nil || strings.Contains(repository, "/") { // Left watches submodules
		return err
	}
	repo, err := workspace.Named(s.Repositories(), repository)
	if err != nil {
		return err
	}
	err = r.call(ctx, func() error {
		r.change(func(s *records.Session) {
			s.Repos = slices.Clone(s.Repositories())
			for i := range s.Repos {
				if s.Repos[i].Dir == repo.Dir {
					s.Repos[i].Taken = changes
				}
			}
		})
		return nil
	})
	if errors.KindOf(err) == errors.Gone {
		return nil
	}
	return err
}

// patchFiles matches the first line of each file in a patch.
var patchFiles = pattern.New(`(?m)^diff --git `)

// untaken describes the changes that would be lost at the end of a session, and how many repositories have some that
// checkout can fetch.
func (m *Manager) untaken(ctx context.Context, r *runner) (lost []string, fetch int, err error) {
	if s := r.session(); s.SandboxID == "" || s.Status == records.Creating {
		return nil, 0, nil
	}
	s, err := awake(ctx, r)
	if errors.KindOf(err) == errors.Gone { // nothing is left to lose
		return nil, 0, nil
	}
	if err != nil {
		return nil, 0, err
	}
	tree := m.tree(s, s.SandboxID)
	for _, repo := range s.Repositories() {
		patch, err := tree.Diff(ctx, repo)
		if err != nil {
			return nil, 0, err
		}
		if len(patch) == 0 || Digest(patch) == repo.Taken {
			continue
		}
		n, text := len(patchFiles().FindAllIndex(patch, -1)), "1 file changed, not taken"
		if n != 1 {
			text = fmt.Sprintf("%d files changed, not taken", n)
		}
		if len(s.Repositories()) > 1 {
			text = repo.Name() + ": " + text
		}
		lost = append(lost, text)
		fetch++
	}
	left, err := tree.Left(ctx, workspace.Dirs(s.Repositories()))
	return append(lost, left...), fetch, err
}

// EndKeeping is like End, but returns Conflict if changes of the agent would be lost: those that no client has taken
// with checkout, apply, push or a diff, and those that cannot be handed back.
func (m *Manager) EndKeeping(ctx context.Context, account, ref string) error {
	s, r, err := m.find(ctx, account, ref)
	if err != nil || r == nil {
		return err
	}
	lost, fetch, err := m.untaken(ctx, r)
	if err != nil {
		return errors.Remedy(errors.Explainf(err, errors.KindOf(err),
			"session %s: it is unknown whether changes would be lost: %s", s.ID, errors.Message(err)),
			"try again, or end the session with --discard (discard=true)")
	}
	if len(lost) == 0 {
		return m.End(ctx, account, ref)
	}
	remedy := "have the agent push or copy them, or end the session with --discard (discard=true)"
	if fetch > 0 {
		remedy = "take them with \"harvest checkout " + s.ID + "\", or end the session with --discard (discard=true)"
	}
	return errors.Remedy(errors.Newf(errors.Conflict, "session %s: %s", s.ID, strings.Join(lost, "; ")), "%s", remedy)
}

// view is the work of a session for reading.
type view struct {
	session records.Session
	tree    workspace.Tree
	repo    workspace.Repository
	close   func()
}

// view returns the work of a session in a repository ("" for the first). The files of a session that has ended are read
// in a temporary sandbox. The caller closes the view.
func (m *Manager) view(ctx context.Context, account, ref, repository string) (v view, err error) {
	s, r, err := m.find(ctx, account, ref)
	if err != nil {
		return v, err
	}
	v.close = func() {}
	if r != nil {
		v.session, v.repo, _, err = m.withRepository(ctx, account, ref, repository)
		v.tree = m.tree(v.session, v.session.SandboxID)
		return v, err
	}
	files, err := m.filesOf(ctx, s)
	if err != nil {
		return v, err
	}
	req := s.Sandbox
	req.Image, req.Name, req.SnapshotOnEnd, req.Volumes, req.S3, req.Secrets = files, "", false, nil, nil, nil
	req.IdleTimeoutSeconds, req.GPU, req.Ports = viewIdle, "", nil
	made, err := m.opts.Fleet.Create(ctx, account, req)
	if err != nil {
		return v, err
	}
	v.close = func() {
		if err := m.opts.Fleet.Destroy(context.WithoutCancel(ctx), account, made.ID); err != nil {
			logf.Errorf(ctx, "destroy the sandbox for reading session %s: %v", s.ID, err)
		}
	}
	v.session, v.tree = s, m.tree(s, made.ID)
	if v.repo, err = m.named(ctx, v.tree, s, repository); err != nil {
		v.close()
	}
	return v, err
}

// viewIdle is the idle limit of a temporary sandbox in seconds: it ends even if the server does not destroy it.
const viewIdle = 300

// filesOf returns the image with the last files of a session that has ended. Kinds: Gone, Conflict (they are still
// being stored).
func (m *Manager) filesOf(ctx context.Context, s records.Session) (string, error) {
	box, err := m.opts.Fleet.Get(ctx, s.Account, s.SandboxID)
	switch {
	// The session never had a sandbox, or its record was deleted.
	case errors.KindOf(err) == errors.NotFound || errors.KindOf(err) == errors.Invalid:
		return "", filesGone(s.ID)
	case err != nil:
		return "", err
	case !box.Status.Ended():
		return "", errors.Remedy(errors.Newf(errors.Conflict, "the files of session %s are still being stored", s.ID),
			"try again in a moment")
	case box.SnapshotID == "":
		return "", filesGone(s.ID)
	}
	_, err = m.opts.Fleet.ImageID(ctx, s.Account, box.SnapshotID)
	if errors.KindOf(err) == errors.NotFound { // collected, or removed by the user
		return "", filesGone(s.ID)
	}
	return box.SnapshotID, err
}
