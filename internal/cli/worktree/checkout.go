package worktree

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// Checkout fetches the branches in a bundle of a session into the repository at top: the agent's branch, as
// branch or, if that is "", under its own name, and those of its stashes. It returns their local names.
func Checkout(ctx context.Context, top string, s api.Session, branch,
	bundle string) (made string, stashes []string, err error) {
	t := taking{top: top, session: s.ID, work: s.WorkBranch, branch: cmp.Or(branch, s.WorkBranch), named: branch != ""}
	all, err := t.run(ctx, bundle)
	if err != nil {
		return "", nil, err
	}
	for _, name := range all {
		if name == t.branch {
			made = name
		} else {
			stashes = append(stashes, name)
		}
	}
	return made, stashes, nil
}

// taking is the transfer of a session's work into a local repository.
type taking struct {
	top     string // of the repository
	session string
	work    string // the branch's name in the bundle
	branch  string // its name here
	named   bool   // the user chose the name
}

// incoming is the ref prefix of fetched commits until all branches are checked.
const incoming = "refs/harvest/incoming/"

// run fetches the branches of a bundle and returns their local names. It moves all branches or none, and never
// a branch whose commits would be lost.
func (t taking) run(ctx context.Context, bundle string) ([]string, error) {
	heads, err := gitIn(ctx, t.top, nil, "bundle", "list-heads", bundle)
	if err != nil {
		return nil, err
	}
	var made []string
	fetch := []string{"-c", "fetch.fsckObjects=true", "fetch", "--quiet", "--no-tags", "--no-recurse-submodules",
		"--no-write-fetch-head", "--force", bundle}
	for head := range strings.Lines(string(heads)) {
		_, ref, _ := strings.Cut(strings.TrimSpace(head), " ")
		suffix, ok := strings.CutPrefix(ref, "refs/heads/"+t.work)
		if !ok || suffix != "" && !strings.HasPrefix(suffix, "-stash-") {
			continue
		}
		made = append(made, t.branch+suffix)
		fetch = append(fetch, ref+":"+incoming+t.branch+suffix)
	}
	defer func() {
		for _, name := range made {
			// Best effort: the ref holds no commit that a branch does not hold, too.
			_, _ = gitIn(context.WithoutCancel(ctx), t.top, nil, "update-ref", "-d", incoming+name)
		}
	}()
	if _, err := gitIn(ctx, t.top, nil, fetch...); err != nil {
		return nil, err
	}
	var moves strings.Builder
	for _, name := range made {
		next, old, err := t.check(ctx, name)
		if err != nil {
			return nil, err
		}
		if next != old {
			fmt.Fprintf(&moves, "update refs/heads/%s %s %s\n", name, next,
				cmp.Or(old, strings.Repeat("0", len(next))))
		}
	}
	if _, err := gitIn(ctx, t.top, strings.NewReader(moves.String()), "update-ref", "-m", "harvest checkout "+t.session,
		"--stdin"); err != nil {
		return nil, err
	}
	for _, name := range made {
		if err := t.record(ctx, name); err != nil {
			return nil, err
		}
	}
	return made, nil
}

// check returns the target commit and the current commit of a branch, "" if the branch does not exist. Both are
// equal if the branch need not move. Conflict if commits would be lost or the branch is checked out.
func (t taking) check(ctx context.Context, name string) (next, old string, err error) {
	if next, err = t.commit(ctx, incoming+name); err != nil {
		return "", "", err
	}
	if old, err = t.commit(ctx, "refs/heads/"+name); err != nil || old == "" || old == next {
		return next, old, err
	}
	taken := t.taken(ctx, name)
	if t.named && name == t.branch && taken == "" {
		return "", "", errors.Remedy(errors.Newf(errors.Conflict,
			"branch %q: already exists, and does not belong to session %s", name, t.session),
			"choose another name for --branch")
	}
	list := []string{"log", "--format=%h %s", old, "--not", next}
	if taken != "" {
		list = append(list, taken)
	}
	own, err := gitIn(ctx, t.top, nil, append(list, "--")...)
	if err != nil {
		return "", "", err
	}
	if len(own) > 0 {
		if t.contains(ctx, old, next) {
			return old, old, nil // the user's branch contains all of the agent's commits
		}
		other := t.free(ctx)
		return "", "", errors.Remedy(errors.Newf(errors.Conflict,
			"branch %q: not moved, because it has %s of your own: %s", name,
			chat.Count(strings.Count(string(own), "\n"), "commit"), chat.FirstLine(string(own))),
			"harvest checkout %s --branch %s, then combine the branches with git rebase or git merge", t.session, other)
	}
	// A dry run applies git's own rules for branches that are checked out, rebased or bisected in any work
	// tree.
	if _, err := gitIn(ctx, t.top, nil, "fetch", "--quiet", "--dry-run", "--no-write-fetch-head", "--force", ".",
		incoming+name+":refs/heads/"+name); err != nil {
		return "", "", err
	}
	return next, old, nil
}

// commit returns the commit of a ref, "" if the ref does not exist.
func (t taking) commit(ctx context.Context, ref string) (string, error) {
	out, err := gitIn(ctx, t.top, nil, "for-each-ref", "--format=%(objectname)", ref)
	return strings.TrimSpace(string(out)), err
}

// contains reports whether commit has ancestor as an ancestor.
func (t taking) contains(ctx context.Context, commit, ancestor string) bool {
	_, err := gitIn(ctx, t.top, nil, "merge-base", "--is-ancestor", ancestor, commit)
	return err == nil
}

// takenKey is the git setting with the session and the commit that a branch was last taken from. git removes it
// together with the branch.
func takenKey(branch string) string { return "branch." + branch + ".harvestTaken" }

// record stores the session and the commit of a taken branch.
func (t taking) record(ctx context.Context, name string) error {
	next, err := t.commit(ctx, incoming+name)
	if err == nil {
		_, err = gitIn(ctx, t.top, nil, "config", takenKey(name), t.session+" "+next)
	}
	return err
}

// taken returns the commit at which the branch was last taken from this session, "" without one or if the
// commit is gone.
func (t taking) taken(ctx context.Context, name string) string {
	out, err := gitIn(ctx, t.top, nil, "config", "--get", takenKey(name))
	if err != nil {
		return ""
	}
	session, commit, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	if session != t.session || !t.contains(ctx, commit, commit) {
		return ""
	}
	return commit
}

// free returns an unused branch name.
func (t taking) free(ctx context.Context) string {
	for n := 2; ; n++ {
		name := fmt.Sprintf("%s-%d", t.branch, n)
		if commit, err := t.commit(ctx, "refs/heads/"+name); err != nil || commit == "" {
			return name
		}
	}
}
