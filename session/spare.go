package session

import (
	"context"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/git"
	"github.com/RelevanceAI/harvest/internal/fault"
	"github.com/RelevanceAI/harvest/internal/ids"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/session/shell"
	"github.com/RelevanceAI/harvest/volume"
)

// waitAhead starts the agent of a session made ahead, and reports when the session can take a prompt.
func (r *runner) waitAhead(ctx context.Context) {
	if r.over != "" || !r.ready || r.catching || r.agent == nil && !r.start(ctx) {
		return
	}
	if !r.gate.closed() && !isClosed(r.warm) {
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

// giveUp ends a session made ahead. It waits for the end, and does nothing if the session was taken.
func (r *runner) giveUp(why string) {
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
func (r *runner) become(ctx context.Context, s Session, req Request, begin time.Time) error {
	repos, err := r.refresh(ctx, s, req)
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
		var first []Message
		if req.Prompt != "" {
			first = []Message{{ID: "msg_" + ids.New(), Session: r.id, Prompt: req.Prompt, State: Queued, Created: now}}
		}
		_, err := r.m.opts.Fleet.Adopt(ctx, r.account, taken.SandboxID,
			func(ctx context.Context, box sandbox.Sandbox) error {
				return r.m.opts.Store.TakeSession(ctx, taken, first, box)
			})
		if err != nil {
			return err
		}
		fault.Point("spare.taken")
		r.mu.Lock()
		r.s = taken
		r.mu.Unlock()
		r.publish(draft{EventStage, Event{Stage: &Stage{Name: "made ahead",
			MS: float64(time.Since(begin).Microseconds()) / 1000}}})
		for _, m := range first {
			r.queue = append(r.queue, m)
			r.publish(draft{EventQueued, Event{MessageID: m.ID, Message: &m, Position: len(r.queue)}})
		}
		return nil
	})
}

// refreshLimit is how long a request waits for the newest commit. After that it gets a new session, which reports why
// the repository cannot be reached.
const refreshLimit = 10 * time.Second

// startFiles are the files that agents read when they start, as patterns of git. If they have changed, the agent must
// start again.
var startFiles = []string{"CLAUDE*.md", "AGENTS.md", ".mcp.json", ".claude/**", "opencode.json*", ".opencode/**"}

// otherFiles is the exit code of refreshScript if startFiles have changed.
const otherFiles = 9

// refreshScript updates a repository in which no work has begun to its newest commit, or to that of the bundle FROM,
// and adds the user's uncommitted changes. It prints the starting commit and the agent's starting commit. Its
// parameters are startFiles, and environment variables.
const refreshScript = `
cd "$DIR"
if [ -n "$FROM" ]; then
	git fetch --quiet --no-tags --no-recurse-submodules "$FROM" "${BRANCH:+refs/heads/}${BRANCH:-HEAD}"
	new=FETCH_HEAD
elif [ -n "$ORIGIN" ]; then
	git fetch --quiet --no-recurse-submodules --no-auto-maintenance origin
	new=refs/remotes/origin/${BRANCH:-HEAD}
else
	new=HEAD
fi
old=$(git rev-parse HEAD)
base=$(git rev-parse "$new^{commit}")
[ "$base" = "$old" ] || git reset --quiet --hard "$base"
start=$base` + applyScript + `
if [ "$start" != "$old" ]; then
	git diff --quiet "$old" "$start" -- "$@" || exit 9
	git update-ref refs/harvest/reported "$start"
	git config harvest.base "$start"
fi
printf %s "$CONFIG" >>.git/config
echo "$base $start"`

// refresh brings the repository of a session made ahead to the state from which s begins.
func (r *runner) refresh(ctx context.Context, s Session, req Request) ([]Repository, error) {
	own := r.session()
	repos := append([]Repository{}, own.Repositories()...)
	ctx, cancel := context.WithTimeout(ctx, refreshLimit)
	defer cancel()
	p := preparation{m: r.m, s: own, sandbox: own.SandboxID,
		given: given{bundle: req.Bundle, uncommitted: req.Uncommitted}}
	from, patch := "", ""
	if req.Bundle != nil {
		if err := p.copyBundle(ctx); err != nil {
			return nil, err
		}
		from, patch = bundleDir+"/repo.bundle", bundleDir+"/uncommitted.patch"
	}
	var files []string
	for _, pattern := range startFiles {
		files = append(files, ":(glob)**/"+pattern)
	}
	out, result, err := r.m.in(own.Account, own.SandboxID).Run(ctx,
		shell.Script{Text: refreshScript, Params: files,
			Env: map[string]string{
				"DIR": own.Dir, "FROM": from, "ORIGIN": req.Repo, "BRANCH": own.Branch, "PATCH": patch,
				"BY": req.Uncommitted.Author.Name, "BYMAIL": req.Uncommitted.Author.Email,
				"CONFIG": configSection([2]string{"title", s.Title}), "GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file",
			}})
	switch {
	case err != nil:
		return nil, err
	case result.ReturnCode == otherFiles:
		return nil, errors.Newf(errors.Conflict, "files that the agent reads when it starts have changed")
	case result.ReturnCode != 0:
		return nil, git.Explain("cannot update the repository", result.Stderr+result.Why())
	}
	base, start, ok := strings.Cut(strings.TrimSpace(string(out)), " ")
	if !ok {
		return nil, errors.Errorf("the update of the repository printed %q", out)
	}
	repos[0].Base, repos[0].Start = base, start
	return repos, nil
}

// removeState removes the files of a session from its account's volume.
func (m *Manager) removeState(ctx context.Context, s Session) {
	if m.opts.Volumes == nil {
		return
	}
	v, err := volume.Of(m.opts.Volumes, account.Owner(s.Account)).Open(ctx, stateVolume)
	if err == nil {
		err = v.Remove(ctx, strings.TrimPrefix(s.stateDir(), stateMount+"/"))
	}
	if err != nil && errors.KindOf(err) != errors.NotFound {
		logf.Errorf(ctx, "remove the files of session %s: %v", s.ID, err)
	}
}
