// Package commands runs the commands of a sandbox: it enforces their time limits, keeps their results, and counts the
// activities that keep the sandbox from becoming idle.
package commands

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// Sandbox is the sandbox of a Set. Its functions may be called concurrently. The caller must not hold a lock that they
// take.
type Sandbox struct {
	ID      string
	Capture int             // bytes of each stream that a Result keeps
	Grace   time.Duration   // between SIGTERM and SIGKILL
	Context context.Context // ends when the server closes; commands continue
	Tasks   *sync.WaitGroup // counts the goroutines that follow commands
	Ended   <-chan struct{} // closed once the sandbox has ended

	Record  func() record.Sandbox // its current record
	Save    func(context.Context) // stores the record, with the list of commands
	Leave   func()                // ends an activity, as Set.Leave does, and records the time
	Carried func() bool           // reports whether the sandbox is being carried over
}

// Set has the running commands of a sandbox. All methods may be called concurrently.
type Set struct {
	sandbox Sandbox

	mu      sync.Mutex
	running map[*Execution]struct{} // guarded by mu
	busy    int                     // guarded by mu; activities, without background commands
	watched int                     // guarded by mu; attachments to background commands
	overdue []record.Command        // guarded by mu; the last ones that were killed at their time limits
}

// maxOverdue is the number of commands whose time limits are remembered as the reason of their ends.
const maxOverdue = 100

// New returns the empty Set of a new sandbox.
func New(sandbox Sandbox) *Set { return &Set{sandbox: sandbox, running: map[*Execution]struct{}{}} }

// Enter begins an activity that keeps the sandbox from becoming idle until Leave.
func (s *Set) Enter() { s.count(1) }

// Leave ends an activity.
func (s *Set) Leave() { s.count(-1) }

func (s *Set) count(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.busy += n
}

// Busy reports whether an activity keeps the sandbox from becoming idle.
func (s *Set) Busy() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.busy > 0
}

// Held returns the number of activities that need the sandbox as it is, such as copies, connections and commands that
// a client follows. detached is the number of the other commands that keep the sandbox from becoming idle: they could
// continue in a copy of it with its processes.
func (s *Set) Held() (held, detached int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for x := range s.running {
		if x.detached && !x.background {
			detached++
		}
	}
	return s.busy - detached + s.watched, detached
}

// Len returns the number of running commands.
func (s *Set) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.running)
}

// Records returns the running commands and those that were killed at their time limits, for the record of the sandbox.
func (s *Set) Records() []record.Command {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.overdue)
	for x := range s.running {
		if _, killed := s.reason(x.ID()); killed {
			continue
		}
		all = append(all, record.Command{ID: x.ID(), Deadline: x.deadline, Detached: x.detached,
			Background: x.background})
	}
	slices.SortFunc(all, func(a, b record.Command) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// Limits returns the time limits of the running commands by their IDs, and the IDs of those that run in the
// background. Commands of a sandbox that was restored are older than its start, began: their limits count from there.
func (s *Set) Limits(began time.Time) (limits map[string]time.Duration, background []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limits = map[string]time.Duration{}
	for x := range s.running {
		limits[x.ID()] = x.deadline.Sub(latest(x.started, began))
		if x.background {
			background = append(background, x.ID())
		}
	}
	return limits, background
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// reason returns why a command was killed, if that was its time limit. s.mu is held.
func (s *Set) reason(id string) (string, bool) {
	for _, c := range s.overdue {
		if c.ID == id {
			return c.Overdue, true
		}
	}
	return "", false
}

// remember keeps the reason of a command that is killed at its time limit, for those who attach to it. s.mu is held.
func (s *Set) remember(c record.Command) {
	if _, known := s.reason(c.ID); known {
		return
	}
	s.overdue = append(s.overdue, c)
	s.overdue = s.overdue[max(0, len(s.overdue)-maxOverdue):]
}

// Options of Start.
type Options struct {
	Limit      time.Duration // time limit of the command
	Detach     bool          // the command continues when ctx of Start ends, and its Result has no output
	Background bool          // the command does not keep the sandbox from becoming idle
}

// Start starts a command in box, the sandbox. Output without a writer is kept for the Result.
func (s *Set) Start(ctx context.Context, box engine.Sandbox, cmd engine.Command, opts Options) (*Execution, error) {
	x := &Execution{set: s, terminal: cmd.Terminal != nil, detached: opts.Detach, background: opts.Background,
		done: make(chan struct{})}
	if !opts.Detach {
		x.ctx = ctx
		x.capture(&cmd)
		x.noteMissing(&cmd)
	}
	x.started = time.Now().UTC() // with the monotonic clock, which clock changes do not affect
	x.deadline = x.started.Add(opts.Limit)
	var err error
	if x.proc, err = box.Start(ctx, cmd); err != nil {
		return nil, errors.Stage(err, "exec")
	}
	fault.Point("exec.started")
	logf.Infof(logf.With(ctx, "sandbox_id", s.sandbox.ID), "command %s started", x.proc.ID())
	s.run(ctx, x)
	return x, nil
}

// Attach connects to a command that was started earlier. When ctx ends, the attachment ends, but the command
// continues.
func (s *Set) Attach(ctx context.Context, opener engine.ProcessOpener, id string,
	stdio engine.Stdio) (*Execution, error) {
	x := &Execution{set: s, ctx: ctx, attached: true, started: time.Now().UTC(), done: make(chan struct{})}
	infos, err := opener.Processes(ctx)
	if err != nil {
		return nil, errors.Stage(err, "attach")
	}
	for _, info := range infos {
		if info.ID == id {
			x.started, x.terminal = info.Started, info.Terminal
		}
	}
	if x.proc, err = opener.OpenProcess(ctx, id, stdio); err != nil {
		return nil, errors.Stage(err, "attach")
	}
	s.mu.Lock()
	for other := range s.running {
		x.background = x.background || other.background && other.ID() == id
	}
	s.mu.Unlock()
	logf.Infof(logf.With(ctx, "sandbox_id", s.sandbox.ID), "attached to command %s", id)
	s.run(ctx, x)
	return x, nil
}

// Adopt restores the time limits of commands that an earlier connection to the sandbox started. sb is the record,
// with the commands of an earlier server. Commands in no record get the time limit, from their start.
func (s *Set) Adopt(ctx context.Context, box engine.Sandbox, sb record.Sandbox, limit time.Duration) {
	opener, ok := box.(engine.ProcessOpener)
	if !ok {
		return
	}
	found, err := opener.Processes(ctx)
	if err != nil {
		logf.Warnf(ctx, "list the commands of a sandbox that was found: %v", err)
		return
	}
	known := map[string]record.Command{}
	// The running ones were started by this server, before the sandbox was lost.
	for _, c := range slices.Concat(sb.Commands, s.Records()) {
		known[c.ID] = c
		if c.Overdue != "" {
			s.mu.Lock()
			s.remember(c)
			s.mu.Unlock()
		}
	}
	for _, info := range found {
		if info.Exit != nil {
			continue
		}
		info.Started = latest(info.Started, sb.Started) // commands of a restored sandbox are older than the sandbox
		c, ok := known[info.ID]
		if !ok { // it was started a moment before
			c = record.Command{ID: info.ID, Deadline: info.Started.Add(limit)}
		}
		proc, err := opener.OpenProcess(s.sandbox.Context, info.ID, engine.Stdio{})
		if err != nil {
			logf.Warnf(ctx, "take up command %s: %v", info.ID, err)
			continue
		}
		s.run(ctx, &Execution{set: s, proc: proc, started: info.Started, deadline: c.Deadline,
			terminal: info.Terminal, detached: true, background: c.Background, done: make(chan struct{})})
	}
}

// run supervises a started command until its end, in the background.
func (s *Set) run(ctx context.Context, x *Execution) {
	ctx = logf.With(context.WithoutCancel(ctx), "sandbox_id", s.sandbox.ID)
	s.mu.Lock()
	if !x.attached {
		s.running[x] = struct{}{}
	}
	if !x.background {
		s.busy++
	} else if x.attached {
		s.watched++
	}
	s.mu.Unlock()
	s.sandbox.Tasks.Go(func() {
		defer close(x.done)
		recorded := x.follow(ctx)
		if s.sandbox.Context.Err() != nil {
			return // the command continues, and its record stays for the next server
		}
		s.mu.Lock()
		delete(s.running, x)
		if x.background && x.attached {
			s.watched--
		}
		s.mu.Unlock()
		if !x.background {
			s.sandbox.Leave()
		}
		if recorded {
			s.sandbox.Save(ctx)
		}
		if !x.attached {
			logf.Infof(ctx, "command %s ended with %d after %.3f s (timed out: %t)", x.ID(), x.result.ReturnCode,
				x.result.Duration, x.result.TimedOut)
		}
	})
}
