package session

import (
	"context"
	"path"
	"slices"
	"strconv"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/git"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/session/credentials"
	"github.com/RelevanceAI/harvest/session/pipe"
	"github.com/RelevanceAI/harvest/session/shell"
)

// harvest-git reports its actions as lines of a file in the sandbox. A follower in the sandbox prints that file as it
// grows, and the runner converts each line to an event exactly once: events contain the number of lines that have
// become events.

// gitEvents is the file that harvest-git writes. It is local to the sandbox: agents of other sessions, which share
// the volumes, cannot write to it.
func (s Session) gitEvents() string { return eventsDir + "/" + s.ID }

const eventsDir = "/var/lib/harvest-git"

// followScript prints a file from a given line on, and new lines as they are appended: FILE LINE. It kills the
// follower that an earlier server started.
const followScript = `
mkdir -p ` + credentials.Dir + `
pid=` + credentials.Dir + `/follower
if [ -f "$pid" ]; then
	old=$(cat "$pid")
	if tr '\0' ' ' <"/proc/$old/cmdline" 2>/dev/null | grep -qF -- "-F $1"; then kill "$old" || true; fi
fi
: >>"$1"
echo $$ >"$pid"
exec tail -n "+$2" -F "$1" 2>/dev/null`

// follower prints harvest-git's event lines.
type follower struct {
	lines chan pipe.Line
	stop  chan struct{} // closed when the reader of lines stops
	ended chan struct{} // closed when the follower has ended
}

// gitLines returns the channel of event lines; nil if no follower runs.
func (r *runner) gitLines() <-chan pipe.Line {
	if r.follower == nil {
		return nil
	}
	return r.follower.lines
}

// followGit starts a follower unless one runs.
func (r *runner) followGit(ctx context.Context) {
	if r.follower != nil {
		select {
		case <-r.follower.ended:
		default:
			return
		}
	}
	r.letGitGo()
	s, from := r.session(), r.gitSeen+1
	f := &follower{lines: make(chan pipe.Line, 64), stop: make(chan struct{}), ended: make(chan struct{})}
	r.follower = f
	r.m.work.Go(func() { // in the background, so that it does not delay the agent's first output
		defer close(f.ended)
		x, err := r.m.opts.Fleet.Exec(r.m.ctx, r.account, s.SandboxID, sandbox.ExecRequest{
			Args: []string{"/bin/sh", "-euc", followScript, "sh", s.gitEvents(), strconv.Itoa(from)}, Workdir: "/",
			Timeout: agentLife, Detach: true, Background: true,
			Stdout: &pipe.Splitter{Lines: f.lines, Stop: f.stop},
		})
		if err != nil {
			if r.m.ctx.Err() == nil {
				logf.Infof(ctx, "follow git in session %s: %v", r.id, err)
			}
			return
		}
		_, _ = x.Wait(r.m.ctx) // whatever the result, the next prompt starts it again
	})
}

// letGitGo stops the follower.
func (r *runner) letGitGo() {
	if r.follower != nil {
		close(r.follower.stop)
		r.follower = nil
	}
}

// gitLine converts a line to an event.
func (r *runner) gitLine(l pipe.Line) {
	r.gitSeen++
	if kind, e, ok := git.ParseEvent(string(l.Text)); ok && !l.Cut {
		r.gitEvent(kind, e)
	}
}

// gitEvent publishes an event of git. Panic ends the turn and drops the queued prompts.
func (r *runner) gitEvent(kind string, e git.Event) {
	r.publish(draft{kind, Event{Git: &e}})
	if kind != git.Panic {
		return
	}
	for _, m := range r.queue {
		r.drop(m, "the agent has pressed the panic button")
	}
	r.queue = nil
	if r.current != nil {
		r.panicked = &e
		r.interrupt("the agent has pressed the panic button")
		return
	}
	if s := r.session().Status; s == Done || s == Ready {
		r.setStatus(Failed, e.Report())
	}
}

// panicEnds marks the end of a turn as caused by Panic, if a panic happened.
func (r *runner) panicEnds(e agent.Event) agent.Event {
	if r.panicked == nil {
		return e
	}
	e.Failed, e.Interrupted, e.Reason, e.Text = true, false, "panic", r.panicked.Report()
	r.panicked, r.stopped = nil, ""
	return e
}

// reportScript makes harvest-git report the agent's direct commits, pushes and stash entries, and changes that are
// not handed back: PROGRAM DIRECTORY… It starts git only in repositories that may have changed.
const reportScript = `
program=$1
shift
for d; do
	cd "$d" || continue
	if [ -d .git/logs ] && [ -n "$(find .git/logs -type f -newer .git/harvest-reported 2>/dev/null | head -n 1)" -o ! -e .git/harvest-reported ]; then :
	elif [ -e .git/logs/refs/stash ] || [ -d .git/worktrees ] || [ -f .gitmodules ]; then :
	else continue
	fi
	: >.git/harvest-reported
	sh -c "$program" ` + git.ProgramName + ` report || true
done`

// reportGit reports the commits and pushes of a turn, in the background.
func (r *runner) reportGit() {
	s := r.session()
	if r.over != "" || !r.ready || s.SandboxID == "" {
		return
	}
	params := append([]string{git.Program}, s.dirs()...)
	r.m.work.Go(func() {
		if _, _, err := r.m.in(s.Account, s.SandboxID).Run(r.m.ctx,
			shell.Script{Text: reportScript, Params: params}); err != nil && r.m.ctx.Err() == nil {
			logf.Infof(r.m.ctx, "the git events of session %s are unknown: %v", r.id, err)
		}
	})
}

// dirs returns the directories of the session's repositories.
func (s Session) dirs() (all []string) {
	for _, repo := range s.Repositories() {
		all = append(all, repo.Dir)
	}
	return all
}

// repository returns the repository whose directory has this name, or the first one for "".
func (s Session) repository(name string) (Repository, int, error) {
	all := s.Repositories()
	if name == "" {
		return all[0], 0, nil
	}
	if i := slices.IndexFunc(all, func(r Repository) bool { return path.Base(r.Dir) == name }); i >= 0 {
		return all[i], i, nil
	}
	names := ""
	for _, r := range all {
		names += " " + path.Base(r.Dir)
	}
	return Repository{}, 0, errors.Remedy(errors.Newf(errors.NotFound, "the session has no repository %.100q", name),
		"it has%s", names)
}
