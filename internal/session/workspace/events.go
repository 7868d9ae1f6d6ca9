package workspace

import (
	"context"
	"strconv"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/session/credentials"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/pipe"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// harvest-git reports its actions as lines of a file in the sandbox. A follower in the sandbox prints that file as it
// grows, and the caller converts each line to an event exactly once: events contain the number of lines that have
// become events.

// events is the file that harvest-git writes. It is local to the sandbox: agents of other sessions, which share the
// volumes, cannot write to it.
func (t Tree) events() string { return eventsDir + "/" + t.Session }

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

// Follower reads harvest-git's event lines. Its methods accept a nil Follower, which reads nothing.
type Follower struct {
	lines chan pipe.Line
	stop  chan struct{} // closed when the reader of lines stops
	ended chan struct{} // closed when the program in the sandbox has ended
}

// Follow starts a Follower at a line, the first of which is 1, in the background, so that it does not delay the agent's
// first output. It runs until ctx ends or Close is called. work counts its goroutine.
func (t Tree) Follow(ctx context.Context, work *tasks.Group, line int) *Follower {
	f := &Follower{lines: make(chan pipe.Line, 64), stop: make(chan struct{}), ended: make(chan struct{})}
	work.Go(func() {
		defer close(f.ended)
		x, err := t.Fleet.Exec(ctx, t.Account, t.ID, fleet.ExecRequest{
			Args: []string{"/bin/sh", "-euc", followScript, "sh", t.events(), strconv.Itoa(line)}, Workdir: "/",
			Timeout: pipe.Life, Detach: true, Background: true,
			Stdout: &pipe.Splitter{Lines: f.lines, Stop: f.stop},
		})
		if err != nil {
			if ctx.Err() == nil {
				logf.Infof(ctx, "follow git in session %s: %v", t.Session, err)
			}
			return
		}
		_, _ = x.Wait(ctx) // whatever the result, the next prompt starts it again
	})
	return f
}

// Lines returns the channel of event lines.
func (f *Follower) Lines() <-chan pipe.Line {
	if f == nil {
		return nil
	}
	return f.lines
}

// Runs reports whether the program in the sandbox runs.
func (f *Follower) Runs() bool {
	if f == nil {
		return false
	}
	select {
	case <-f.ended:
		return false
	default:
		return true
	}
}

// Close stops reading.
func (f *Follower) Close() {
	if f != nil {
		close(f.stop)
	}
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

// Report makes harvest-git report the agent's work in these directories since the last report.
func (t Tree) Report(ctx context.Context, dirs []string) error {
	_, _, err := t.Run(ctx, shell.Script{Text: reportScript, Params: append([]string{git.Program}, dirs...)})
	return err
}
