package agents

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
	"github.com/RelevanceAI/harvest/internal/cli/worktree"
)

// attempt is one session of a comparison, as -o json prints it.
type attempt struct {
	Number  int         `json:"number"` // from 1
	Agent   string      `json:"agent"`
	Model   string      `json:"model,omitempty"`
	Session string      `json:"session_id,omitempty"` // "" if it could not be created
	Status  string      `json:"status"`               // one of the constants below
	Error   string      `json:"error,omitempty"`
	Files   int         `json:"files"` // changed
	Added   int         `json:"added"` // lines
	Removed int         `json:"removed"`
	Test    *testResult `json:"test,omitempty"` // of --test
	Cost    float64     `json:"cost_usd"`
	Seconds float64     `json:"seconds"` // of the turn
	Reply   string      `json:"reply,omitempty"`
	Kept    bool        `json:"kept"` // the session has not been ended

	doing string // for the progress; guarded by comparison.mu
}

// The states of an attempt.
const (
	attemptWorks  = "working"
	attemptDone   = "done"
	attemptFailed = "failed"
)

// testResult is the result of the command of --test in a session's sandbox.
type testResult struct {
	Passed     bool    `json:"passed"`
	ReturnCode int     `json:"returncode"`
	TimedOut   bool    `json:"timed_out,omitempty"`
	Seconds    float64 `json:"seconds"`
	Output     string  `json:"output,omitempty"` // the end of it
}

const (
	testTime   = 10 * time.Minute // time limit of --test
	testOutput = 4 << 10          // bytes of its output that are kept
)

// comparison runs the same prompt in several sessions.
type comparison struct {
	commands
	server *client.Client
	req    api.SessionRequest
	test   string

	mu       sync.Mutex
	attempts []*attempt
}

// run runs all attempts. A failed one does not affect the others. When ctx ends, their agents go on.
func (c *comparison) run(ctx context.Context) error {
	var all sync.WaitGroup
	for _, a := range c.attempts {
		all.Go(func() {
			if err := c.attempt(ctx, a); err != nil && ctx.Err() == nil {
				c.set(func() { a.Status, a.Error = attemptFailed, cli.OrElse(errors.Message(err), err.Error()) })
			}
			if ctx.Err() == nil {
				c.Hint("%s", c.line(a))
			}
		})
	}
	stop := c.progress()
	all.Wait()
	stop()
	if ctx.Err() == nil {
		return nil
	}
	ids := c.sessions(func(a *attempt) bool { return true })
	return errors.Remedy(errors.Newf(errors.Canceled, "left %d sessions; their agents continue", len(ids)),
		"follow one with harvest attach SESSION, or end all: harvest end --discard %s", strings.Join(ids, " "))
}

// attempt creates a session, waits for the end of its turn, and measures the result.
func (c *comparison) attempt(ctx context.Context, a *attempt) error {
	req := c.req
	req.Agent, req.Model = a.Agent, a.Model
	// Not canceled: otherwise the session may exist without a name to end it.
	s, err := c.server.CreateSession(context.WithoutCancel(ctx), req)
	if err != nil {
		return err
	}
	c.set(func() { a.Session, a.Kept, a.doing = s.ID, true, "getting ready" })
	end, err := c.follow(ctx, a)
	if err != nil {
		return err
	}
	if s, err = c.server.Session(ctx, s.ID); err != nil {
		return err
	}
	c.set(func() {
		a.Model, a.Cost, a.Reply, a.doing = cli.OrElse(a.Model, s.Model), s.Usage.Cost, end.Text, "reading its changes"
		if end.Message != nil {
			a.Seconds = end.Message.Ended.Sub(end.Message.Started).Seconds()
		}
	})
	patch, err := c.server.SessionDiff(ctx, s.ID, "")
	if err != nil {
		return err
	}
	files, added, removed, err := worktree.PatchSize(patch)
	if err := errors.Join(err, patch.Close()); err != nil {
		return err
	}
	c.set(func() { a.Files, a.Added, a.Removed = files, added, removed })
	if c.test != "" {
		if err := c.runTest(ctx, a, s); err != nil {
			return errors.Explainf(err, errors.KindOf(err), "cannot run the test: %s", errors.Message(err))
		}
	}
	if end.Failed || end.Interrupted {
		return turnError(s.ID, end)
	}
	c.set(func() { a.Status = attemptDone })
	return nil
}

// follow returns the end of the prompt's turn.
func (c *comparison) follow(ctx context.Context, a *attempt) (api.SessionEvent, error) {
	for e, err := range c.server.Events(ctx, client.Follow{Stream: a.Session}) {
		if err != nil {
			return api.SessionEvent{}, err
		}
		var data api.SessionEvent
		if err := json.Unmarshal(e.Data, &data); err != nil {
			return data, errors.Explainf(err, errors.Unavailable, "the server sent an invalid event")
		}
		switch e.Type {
		case "done":
			if data.Message == nil || !data.Message.Own {
				return data, nil
			}
		case "message.sent":
			c.set(func() { a.doing = "thinking" })
		case "tool.started":
			c.set(func() { a.doing = "running " + chat.Plain(data.Tool) })
		case "tool.completed":
			c.set(func() { a.doing = "thinking" })
		case "session.ended":
			c.set(func() { a.Kept = false })
			return data, errors.Newf(errors.Unavailable, "the session ended: %s", chat.Plain(data.Reason))
		}
	}
	return api.SessionEvent{}, errors.Newf(errors.Unavailable, "the events of the session ended")
}

// runTest runs the command of --test where the agent worked.
func (c *comparison) runTest(ctx context.Context, a *attempt, s api.Session) error {
	c.set(func() { a.doing = "running the test" })
	dir := s.Dir
	if c.req.Subdir != "" {
		dir += "/" + c.req.Subdir
	}
	r, err := c.server.Exec(ctx, s.SandboxID, api.ExecRequest{Args: []string{"/bin/sh", "-c", c.test}, Workdir: dir,
		TimeoutSeconds: testTime.Seconds()})
	if err != nil {
		return err
	}
	output := r.Stdout + r.Stderr + r.Why()
	output = strings.ToValidUTF8(output[max(0, len(output)-testOutput):], "")
	c.set(func() {
		a.Test = &testResult{Passed: r.ReturnCode == 0, ReturnCode: r.ReturnCode, TimedOut: r.TimedOut,
			Seconds: r.Duration, Output: output}
	})
	return nil
}

func (c *comparison) set(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

// sessions returns the ids of sessions that exist and fit.
func (c *comparison) sessions(fits func(a *attempt) bool) (ids []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, a := range c.attempts {
		if a.Session != "" && a.Kept && fits(a) {
			ids = append(ids, a.Session)
		}
	}
	return ids
}

// progressEvery is the time between two lines about the sessions that are at work, on a terminal.
const progressEvery = 10 * time.Second

// progress prints what the sessions do, until stop is called.
func (c *comparison) progress() (stop func()) {
	if _, tty := cli.Terminal(c.Err); !tty {
		return func() {}
	}
	over, ended := make(chan struct{}), make(chan struct{})
	began := time.Now()
	go func() {
		defer close(ended)
		tick := time.NewTicker(progressEvery)
		defer tick.Stop()
		for {
			select {
			case <-over:
				return
			case now := <-tick.C:
				var doing []string
				c.mu.Lock()
				for _, a := range c.attempts {
					if a.Status == attemptWorks {
						doing = append(doing, fmt.Sprintf("%d %s", a.Number, a.doing))
					}
				}
				c.mu.Unlock()
				c.Hint("(%s; %s)", strings.Join(doing, ", "), now.Sub(began).Round(time.Second))
			}
		}
	}()
	return func() { close(over); <-ended }
}

// end ends the sessions that are not kept. Their changes are discarded.
func (c *comparison) end(ctx context.Context, keep int) error {
	var all error
	for _, a := range c.attempts {
		if a.Number == keep || a.Session == "" {
			continue
		}
		if err := c.server.EndSession(ctx, a.Session); err != nil {
			all = errors.Join(all, errors.Explainf(err, errors.KindOf(err), "session %s: cannot be ended: %s",
				a.Session, errors.Message(err)))
			continue
		}
		c.set(func() { a.Kept = false })
	}
	return all
}

// line describes an attempt in one line.
func (c *comparison) line(a *attempt) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := fmt.Sprintf("%d %s: %s after %s", a.Number, a.Agent, a.Status, duration(a.Seconds))
	if a.Error != "" {
		text += ": " + chat.FirstLine(a.Error)
	}
	return text
}

// variants returns the attempts for all agents and models, n of each.
func variants(agents, models []string, n int) (all []*attempt) {
	if len(agents) == 0 {
		agents = []string{"claude"}
	}
	if len(models) == 0 {
		models = []string{""}
	}
	for _, name := range agents {
		for _, model := range models {
			for range n {
				all = append(all, &attempt{Number: len(all) + 1, Agent: name, Model: model, Status: attemptWorks,
					doing: "waiting"})
			}
		}
	}
	return all
}

// modelsDiffer reports whether the attempts have several models. Those that were not created have none.
func (c *comparison) modelsDiffer() bool {
	seen := map[string]bool{}
	for _, a := range c.attempts {
		seen[a.Model] = a.Model != ""
	}
	delete(seen, "")
	return len(seen) > 1
}
