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
)

// What harvest-git does in the sandbox, it tells by lines of a file. A follower in the sandbox prints that file as it grows, and each line becomes
// an event, once: events say how many lines had become events before.

// gitEvents is the file that harvest-git writes. It is the sandbox's own: agents of other sessions, which have the same volumes, cannot write there.
func (s Session) gitEvents() string { return eventsDir + "/" + s.ID }

const eventsDir = "/var/lib/harvest-git"

// followScript prints the lines of a file from one on, and those that follow: FILE LINE. What an earlier server has started ends.
const followScript = `
mkdir -p ` + credentialsDir + `
pid=` + credentialsDir + `/follower
if [ -f "$pid" ]; then
	old=$(cat "$pid")
	if tr '\0' ' ' <"/proc/$old/cmdline" 2>/dev/null | grep -qF -- "-F $1"; then kill "$old" || true; fi
fi
: >>"$1"
echo $$ >"$pid"
exec tail -n "+$2" -F "$1" 2>/dev/null`

// follower prints what harvest-git tells.
type follower struct {
	lines chan line
	stop  chan struct{} // closed when nobody takes lines any more
	ended chan struct{} // closed when it has ended
}

// gitLines is where lines come from; nil if nobody follows.
func (r *runner) gitLines() <-chan line {
	if r.follower == nil {
		return nil
	}
	return r.follower.lines
}

// followGit sees to it that somebody follows, as long as the sandbox is there.
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
	f := &follower{lines: make(chan line, 64), stop: make(chan struct{}), ended: make(chan struct{})}
	r.follower = f
	r.m.work.Go(func() { // the agent's first word does not wait for it
		defer close(f.ended)
		x, err := r.m.opts.Fleet.Exec(r.m.ctx, r.account, s.SandboxID, sandbox.ExecRequest{
			Args: []string{"/bin/sh", "-euc", followScript, "sh", s.gitEvents(), strconv.Itoa(from)}, Workdir: "/", Timeout: agentLife, Detach: true, Background: true,
			Stdout: &splitter{lines: f.lines, stop: f.stop},
		})
		if err != nil {
			if r.m.ctx.Err() == nil {
				logf.Infof(ctx, "follow what git does in session %s: %v", r.id, err)
			}
			return
		}
		_, _ = x.Wait(r.m.ctx) // however it ends, the next prompt starts it again
	})
}

// letGitGo stops following.
func (r *runner) letGitGo() {
	if r.follower != nil {
		close(r.follower.stop)
		r.follower = nil
	}
}

// gitLine makes an event of a line.
func (r *runner) gitLine(l line) {
	r.gitSeen++
	if kind, e, ok := git.ParseEvent(string(l.text)); ok && !l.cut {
		r.gitEvent(kind, e)
	}
}

// gitEvent publishes what git has done. Panic ends the turn, and what waits behind it.
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

// panicEnds makes the end of a turn one that panic brought about, if it did.
func (r *runner) panicEnds(e agent.Event) agent.Event {
	if r.panicked == nil {
		return e
	}
	e.Failed, e.Interrupted, e.Reason, e.Text = true, false, "panic", r.panicked.Report()
	r.panicked, r.stopped = nil, ""
	return e
}

// reportScript has harvest-git report what an agent has committed, pushed and stashed without it, and what is not handed back:
// PROGRAM DIRECTORY… It starts git only where something may have changed.
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

// reportGit has what was committed and pushed in a turn told, in the background.
func (r *runner) reportGit() {
	s := r.session()
	if r.over != "" || !r.ready || s.SandboxID == "" {
		return
	}
	params := append([]string{git.Program}, s.dirs()...)
	r.m.work.Go(func() {
		if _, _, err := r.m.inSandbox(r.m.ctx, s, s.SandboxID, shell{script: reportScript, params: params}); err != nil && r.m.ctx.Err() == nil {
			logf.Infof(r.m.ctx, "what git did in session %s is not known: %v", r.id, err)
		}
	})
}

// dirs are the directories of the session's repositories.
func (s Session) dirs() (all []string) {
	for _, repo := range s.Repositories() {
		all = append(all, repo.Dir)
	}
	return all
}

// repository returns the one of that name, the directory's, or the first one for "".
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
	return Repository{}, 0, errors.Remedy(errors.Newf(errors.NotFound, "the session has no repository %.100q", name), "it has%s", names)
}
