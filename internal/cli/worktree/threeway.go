package worktree

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// Merge is Apply for files that the user has changed in the same places: these get conflict markers, and the result is
// Conflict. The index and the branch do not change.
func Merge(ctx context.Context, top, session, repository string, patch []byte) (string, error) {
	text, err := Apply(ctx, top, session, repository, patch, false)
	if err == nil || errors.KindOf(err) != errors.Conflict || len(patch) == 0 {
		return text, err
	}
	a := applying{top: top, session: session}
	next, readErr := readPatch(ctx, top, patch)
	if readErr != nil {
		return "", readErr
	}
	return a.merge(ctx, next, err)
}

// merge applies a patch with git's three-way merge. refused is the error of the patch as it is.
func (a applying) merge(ctx context.Context, next patch, refused error) (string, error) {
	s := step{patch: next}
	index, remove, err := a.copyOf(ctx, []step{s})
	if err != nil {
		return "", err
	}
	defer remove()
	// git writes unmerged entries into the copy of the index before it fails.
	if err := a.git(ctx, index, s, "--cached", "--3way"); err != nil {
		if names, e := a.unmerged(ctx, index); e != nil || len(names) == 0 {
			return "", refused
		}
	}
	if err := a.checkLinks(ctx, index); err != nil {
		return "", err
	}
	kept, err := saveFiles(a.top, touched([]step{s}))
	if err != nil {
		return "", err
	}
	defer kept.close()
	work, removeWork, err := a.copyOf(ctx, []step{s})
	if err != nil {
		return "", err
	}
	defer removeWork()
	applied := a.git(ctx, work, s, "--3way")
	names, err := a.unmerged(ctx, work)
	switch {
	case err != nil || applied != nil && len(names) == 0:
		return "", errors.Join(refused, kept.restore())
	case applied == nil:
		return next.summary() + ": merged into the files", nil
	}
	return "", errors.Remedy(errors.Newf(errors.Conflict, "%s: merged into the files, with conflicts in %s",
		next.summary(), chat.Plain(strings.Join(names, ", "))),
		"edit these files at the lines with <<<<<<<, ======= and >>>>>>>")
}

// copyOf makes an index of the files that the steps may change, as they are, and returns it as git's environment.
func (a applying) copyOf(ctx context.Context, steps []step) (env []string, remove func(), err error) {
	dir, err := os.MkdirTemp("", "harvest-apply-")
	if err != nil {
		return nil, nil, errors.Explainf(err, errors.Unavailable, "cannot create a temporary index: %v", err)
	}
	remove = func() { _ = os.RemoveAll(dir) } // it is temporary
	env = []string{"GIT_INDEX_FILE=" + filepath.Join(dir, "index")}
	if _, err := gitWith(ctx, a.top, env, strings.NewReader(strings.Join(touched(steps), "\x00")), "update-index",
		"--add", "--remove", "-z", "--stdin"); err != nil {
		remove()
		return nil, nil, err
	}
	return env, remove, nil
}

// unmerged returns the files of an index that have conflicts.
func (a applying) unmerged(ctx context.Context, env []string) (names []string, err error) {
	out, err := gitWith(ctx, a.top, env, nil, "diff", "--name-only", "--diff-filter=U", "-z")
	for name := range strings.SplitSeq(string(out), "\x00") {
		if name != "" {
			names = append(names, name)
		}
	}
	return names, err
}
