package session

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/cause"
	"github.com/RelevanceAI/harvest/internal/session/credentials"
	"github.com/RelevanceAI/harvest/internal/session/egress"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/session/models"
	"github.com/RelevanceAI/harvest/internal/session/pipe"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/questions"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/servers"
	"github.com/RelevanceAI/harvest/internal/session/volumes"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// runner owns a session that has not ended. One goroutine, its loop, processes all operations on the session in
// sequence.
type runner struct {
	m           *Manager
	id, account string
	do          chan func()   // functions to run on the loop
	gone        chan struct{} // closed when the loop has ended

	mu sync.Mutex
	s  records.Session // guarded by mu for readers outside of the loop; only the loop changes it
	// used is the usage of the turn's requests so far, as the gateway has counted; guarded by mu. When the turn ends,
	// the agent's own total counts, if it has one.
	used    agent.Usage
	answers model.Answers // of the model to the turn's requests

	people atomic.Int32 // who follow the session and can answer

	// Only the loop uses the remaining fields.
	given     workspace.Given   // input of the session, until the repository is cloned
	env       map[string]string // of the first sandbox
	recovered bool
	opened    time.Time               // when this server created or recovered the session
	ready     bool                    // sandbox and repository are ready
	prepared  chan preparation.Result // receives the result of the preparation; nil if none is under way
	preparing preparing               // tells callers how it ends
	stages    chan records.Stage
	undo      context.CancelFunc
	queue     []records.Message
	onHold    []records.Message // prompts that wait for a release
	current   *records.Message  // the turn under way
	deferred  *records.Message  // a prompt that the agent postponed because it began a turn by itself; nil for none
	began     time.Time         // start of the turn
	heard     time.Time         // last sign of activity of the agent
	killAt    time.Time         // when an interrupted turn is killed; zero if none is interrupted
	stopped   string            // why the turn was interrupted
	sent      string            // ID of the last prompt for which EventSent was published
	renewAt   time.Time         // when an agent that ends, so that its options change, is killed; zero if none does
	crashed   string            // ID of the prompt whose turn restarted after the agent crashed
	ahead     bool              // startAhead has run
	early     string            // ID of the prompt for which a crashed agent restarted before it received the prompt
	agent     *pipe.Process     // nil while none runs
	busy      busy              // the sandbox, during a turn
	occupied  time.Time         // until when background tasks keep the sandbox busy; zero without them
	gate      *servers.Gate     // nil when prompts may be sent
	line      *models.Line      // to the model; nil unless an agent runs that needs one
	conv      agent.Conversation
	tools     map[string]time.Time            // running tools and their start; zero if unknown
	timed     bool                            // the turn began under this server, so that durations of tools are known
	asked     map[string]questions.Question   // questions that wait for an answer
	waiters   map[string]chan records.Message // callers that wait for the end of a message, by its ID
	published int64                           // bytes of the process's output that have become events
	recheck   bool                            // redeliver has not run yet
	lost      []records.Delivery              // deliveries of an earlier server, which the agent may not have received
	behind    bool                            // output that an earlier server published is being read again
	over      string                          // why the session ends
	failed    bool                            // preparation failed

	follower *workspace.Follower // of harvest-git's event lines; nil if none runs
	gitSeen  int                 // number of its lines that have become events
	panicked *git.Event          // the panic that ends the turn
	network  egress.Watch        // of the sandbox
	denied   egress.Turn         // destinations that network has reported since the last prompt
	denials  int64               // ID of the last event of the sandbox's stream that network has reported
	catching bool                // the repository is updated to the newest commit in the background
	held     bool                // an operation on the repository is under way without the agent
	awaited  awaited             // by the agent of a person, in the inbox
	creds    *credentials.Keeper // in the sandbox
	history  volumes.History

	// The remaining fields are for sessions made ahead.
	warm   chan struct{} // closed by the loop when a prompt could be sent
	warmed bool          // warm is closed
}

// draft is an event to publish.
type draft struct {
	Type string
	Data records.Event
}

func newRunner(m *Manager, s records.Session) *runner {
	r := &runner{m: m, id: s.ID, account: s.Account, do: make(chan func()), gone: make(chan struct{}), s: s,
		tools: map[string]time.Time{}, asked: map[string]questions.Question{},
		waiters: map[string]chan records.Message{}, opened: time.Now(), warm: make(chan struct{})}
	r.creds = credentials.NewKeeper(m.ctx, &m.work, s.ID, func(ctx context.Context) (credentials.Logins, error) {
		s := r.session()
		return m.credentials().Refresh(ctx, loginsOf(s), m.in(s.Account, s.SandboxID))
	})
	r.history = volumes.History{Context: m.ctx, Work: &m.work, Volumes: m.opts.Volumes, Read: m.opts.History,
		Owner: s.Account, Session: s.ID}
	return r
}

// session returns the current record.
func (r *runner) session() records.Session {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.s
}

// call runs f on the loop. It returns Gone if the session has ended.
func (r *runner) call(ctx context.Context, f func() error) error {
	done := make(chan error, 1)
	select {
	case r.do <- func() { done <- f() }:
		return <-done
	case <-r.gone:
		return hasEnded(r.id)
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "session %s", r.id)
	}
}

// hasEnded is the error of a session that has ended.
func hasEnded(id string) error {
	return errors.Remedy(errors.Newf(errors.Gone, "session %s has ended", id),
		"continue with its files and its conversation: harvest agent --continue %s", id)
}

// loop runs the session until the session or ctx ends. After the end of ctx, the next server resumes the session.
func (r *runner) loop(ctx context.Context) {
	defer close(r.gone)
	defer r.busy.end()
	r.begin(ctx)
	if r.recovered && ctx.Err() == nil {
		r.advance(ctx) // nothing else may wake the loop: a prompt that an earlier server queued waits
		reportAwaited(r)
	}
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for r.over == "" {
		r.keepBusy(ctx)
		if r.ready {
			r.network.On(r.m.ctx, &r.m.work, r.m.opts.Journal, r.session().SandboxID, r.denials)
		}
		timer.Reset(r.wait())
		select {
		case <-ctx.Done():
			r.leave()
			return
		case f := <-r.do:
			f()
		case stage := <-r.stages:
			r.staged(stage)
		case p := <-r.prepared:
			r.prepare(ctx, p)
		case l := <-r.agent.Lines():
			r.read(l)
		case end := <-r.agent.Ended():
			r.exited(ctx, end)
		case l := <-r.follower.Lines():
			r.gitLine(l)
		case d := <-r.network.Denials():
			if r.denials = d.Event; r.denied.Add(d.Denial) {
				r.publish(draft{string(record.EventDenied), records.Event{Denial: &d.Denial}})
			}
		case <-timer.C:
			r.watch(ctx)
		}
		r.advance(ctx)
		lendCredentials(r)
		reportAwaited(r)
	}
	r.finish(ctx)
}

// begin prepares the session, or attaches to its running agent.
func (r *runner) begin(ctx context.Context) {
	s := r.session()
	if r.recovered && s.SandboxID != "" && s.Status != records.Creating {
		r.ready = true
		forgetLater(r)
		if s.Process != "" {
			r.attach(ctx, s)
		}
		if ctx.Err() != nil {
			return
		}
		if r.agent == nil && r.current != nil {
			r.turnEnded(agent.Event{Type: agent.Done, Failed: true, Reason: "lost",
				Text: "the agent was gone when the server came back"}, 0)
		}
		if r.current == nil && s.Status.Working() { // the earlier server recorded only the end of the turn
			r.setStatus(records.Done, "")
		}
		if m := r.m; m.credentials().Serves(loginsOf(r.session())) {
			r.creds.Find()
		}
		if r.current != nil {
			r.followGit()
		}
		return
	}
	r.makeReady(ctx)
}

// leave stops following the session. The agent keeps running.
func (r *runner) leave() {
	if r.undo != nil {
		r.undo()
		<-r.prepared
	}
	r.agent.Detach()
	r.line.Close()
	r.letGitGo()
	r.network.Close()
	r.creds.Close()
}

// change changes the record and stores it. It logs failures to store it; the next change stores it again.
func (r *runner) change(f func(s *records.Session)) {
	relabel(r, func(s *records.Session) {
		f(s)
		s.Active = time.Now().UTC()
	})
}

// relabel is change for what is not an activity of the session.
func relabel(r *runner, f func(s *records.Session)) {
	r.mu.Lock()
	f(&r.s)
	s := r.s
	r.mu.Unlock()
	if err := r.m.opts.Store.PutSession(context.WithoutCancel(r.m.ctx), s); err != nil {
		logf.Errorf(r.m.ctx, "record session %s: %v", r.id, err)
	}
}

// setStatus changes the state and publishes the change. It does nothing if the state is the same.
func (r *runner) setStatus(to records.Status, reason string) {
	from := r.session().Status
	if from == to {
		return
	}
	if !from.May(to) {
		logf.Errorf(r.m.ctx, "session %s cannot become %s from %s", r.id, to, from)
		return
	}
	r.change(func(s *records.Session) { s.Status, s.Reason = to, reason })
	r.publish(draft{records.EventStatus, records.Event{Event: agent.Event{Reason: reason}, Status: to}})
}

// publishRetry is the pause before a failed attempt to persist events is retried.
const publishRetry = time.Second

// publish persists events. It retries until they are persisted; the agent waits meanwhile.
func (r *runner) publish(drafts ...draft) {
	var out []event.Draft
	for _, d := range drafts {
		d.Data = records.Fit(d.Data)
		d.Data.Type = agent.Type(d.Type)
		d.Data.Offset, d.Data.GitLines, d.Data.Denials = max(d.Data.Offset, r.published), r.gitSeen, r.denials
		if d.Data.MessageID == "" && r.current != nil {
			d.Data.MessageID = r.current.ID
		}
		out = append(out, event.Draft{Stream: r.id, Type: d.Type, Data: d.Data})
	}
	for len(out) > 0 {
		n := min(len(out), event.MaxDrafts)
		err := r.m.opts.Journal.Publish(context.WithoutCancel(r.m.ctx), out[:n]...)
		if err == nil {
			out = out[n:]
			continue
		}
		logf.Errorf(r.m.ctx, "events of session %s: %v", r.id, err)
		if errors.KindOf(err) == errors.Invalid {
			return // permanent: do not retry
		}
		select {
		case <-r.m.ctx.Done():
			return
		case <-time.After(publishRetry):
		}
	}
}

// putMessage stores a message.
func (r *runner) putMessage(m records.Message) {
	if err := r.m.opts.Store.PutMessage(context.WithoutCancel(r.m.ctx), m); err != nil {
		logf.Errorf(r.m.ctx, "record message %s: %v", m.ID, err)
	}
}

// advance sends the next prompt if no turn is under way.
func (r *runner) advance(ctx context.Context) {
	if r.session().Spare {
		r.waitAhead(ctx)
		return
	}
	r.redeliver(ctx)
	r.startAhead(ctx)
	for r.over == "" && r.ready && !r.held && r.current == nil && len(r.queue) > 0 {
		if l := r.session().Limits; l.USD > 0 && r.session().Usage.Cost >= l.USD {
			for _, m := range r.queue {
				r.drop(m, "the session's limit of cost is reached")
			}
			r.queue = nil
			return
		}
		if !renew(ctx, r) {
			return
		}
		if r.agent == nil && !r.start(ctx) {
			if r.prepared != nil { // in a new sandbox
				return
			}
			continue // the prompt has failed
		}
		if !r.serversReady() {
			return
		}
		m := r.queue[0]
		r.queue = r.queue[1:]
		r.lost = nil // they belong to completed turns
		m.State, m.Started = records.Running, time.Now().UTC()
		if m.Note == "" && !agent.IsCommand(m.Prompt) { // the agent would not recognize a command after a note
			m.Note = r.denied.Next()
		}
		r.putMessage(m)
		r.makeCurrent(&m)
		fault.Point("turn.started")
		if r.sent != m.ID {
			r.sent = m.ID
			r.publish(draft{records.EventSent, records.Event{Message: &m}})
		}
		text := r.conv.Prompt(r.promptID(m), r.prompt(ctx, m))
		sent := r.delivery(m.ID, len(text), nil)
		r.change(func(s *records.Session) { s.RecordDelivery(sent) })
		r.setStatus(records.Thinking, "")
		fault.Point("turn.recorded")
		r.agent.Write(text)
		r.gate.Sent()
		r.followGit()
	}
	if r.over == "" && r.current == nil {
		r.serversReady()
	}
}

// makeCurrent makes m the current turn.
func (r *runner) makeCurrent(m *records.Message) {
	r.current, r.began, r.heard, r.killAt, r.stopped, r.timed = m, time.Now(), time.Now(), time.Time{}, "", true
	lendCredentials(r)
}

// lendCredentials lets the sandbox of a session with credentials per turn use them while it is prepared, also by
// commands in the background, and while a turn or an operation on the repository is under way. Otherwise it ends that.
func lendCredentials(r *runner) {
	if s := r.session(); s.PerTurn && s.SandboxID != "" {
		fleet.LendNow(r.m.opts.Fleet, s.SandboxID, !r.ready || len(s.Later) > 0 || r.current != nil || r.held)
	}
}

// read converts a line to events, and all further lines that are available.
func (r *runner) read(l pipe.Line) {
	const batch = 200 // lines
	var drafts []draft
	fresh := false // whether this server is the first to read it
	for n := 0; ; n++ {
		events := []agent.Event{agent.OtherLine([]byte("a line that is too long"))}
		if !l.Cut {
			events = r.conv.Decode(l.Text)
		}
		if lost := min(l.Lost, l.Gap-r.published); lost > 0 {
			drafts = append(drafts, draft{records.EventOutputLost, records.Event{Event: agent.Event{
				Reason: fmt.Sprintf("%d bytes of the agent's output are missing: the server's disk has not kept them",
					lost)}}})
		}
		if l.End > r.published {
			fresh = true
			if !isStatus(events) {
				r.heard = time.Now()
			}
		}
		for _, e := range events {
			took := r.took(e)
			r.track(e)
			e.Interrupted = e.Interrupted || e.Type == agent.ToolCompleted && e.Failed && r.stopped != ""
			status := gateEvents(r.gate.Hear(e))
			if l.End <= r.published {
				continue // published by an earlier server
			}
			drafts = append(drafts, status...)
			switch {
			case e.Type == agent.MCPStatus || e.Type == agent.MCPRestarted || e.Type == agent.Background:
				continue
			case e.Type == agent.Done:
				r.done(e, l.End, drafts...)
				drafts = nil
				continue
			case e.Type == agent.Ready && e.Own && r.stopped == "" && (r.current == nil || !r.current.Own):
				r.beginOwn(e.Text, l.End, drafts...)
				drafts, e.Text = nil, ""
			}
			drafts = append(drafts, draft{string(e.Type), records.Event{Event: e, Took: took, Deadline: r.deadlineOf(e),
				Offset: l.End}})
		}
		more := false
		if n < batch {
			select {
			case next := <-r.agent.Lines():
				l, more = next, true
			default:
			}
		}
		if !more {
			break
		}
	}
	r.behind = r.behind && l.End < r.published
	if l.End < r.published || !fresh && r.session().Status == records.Hung {
		return // the earlier server set the state already
	}
	r.publishLines(drafts, l.End)
	for id, q := range maps.Clone(r.asked) {
		r.answerItself(id, q)
	}
	r.showWork()
}

// isStatus reports whether a line is no sign that the turn goes on: an answer about MCP servers, which is independent
// of the turn, or a report of silence.
func isStatus(events []agent.Event) bool {
	return len(events) == 1 && (events[0].Type == agent.MCPStatus || events[0].Type == agent.MCPRestarted ||
		events[0].Type == agent.Silent)
}

// publishLines publishes the events of the lines up to end.
func (r *runner) publishLines(drafts []draft, end int64) {
	if len(drafts) > 0 {
		r.publish(drafts...)
	}
	r.published = max(r.published, end)
}

// took returns the duration in milliseconds of the tool call that e ends; 0 if it is unknown.
func (r *runner) took(e agent.Event) float64 {
	began := r.tools[e.ID]
	if e.Type != agent.ToolCompleted || began.IsZero() {
		return 0
	}
	return float64(time.Since(began).Microseconds()) / 1000
}

// track records the running tools and open questions.
func (r *runner) track(e agent.Event) {
	switch e.Type {
	case agent.Ready:
		s := r.session()
		if e.Conversation != "" && e.Conversation != s.Conversation || e.Model != "" && e.Model != s.Model {
			r.change(func(s *records.Session) {
				s.Conversation, s.Model = cmp.Or(e.Conversation, s.Conversation), cmp.Or(e.Model, s.Model)
			})
		}
	case agent.ToolStarted:
		r.tools[e.ID] = time.Time{}
		if r.timed {
			r.tools[e.ID] = time.Now()
		}
		r.awaited.name(e)
	case agent.ToolCompleted:
		delete(r.tools, e.ID)
	case agent.Asked:
		if slices.Contains(r.session().Answered, e.ID) {
			return
		}
		r.open(e)
	case agent.Withdrawn:
		delete(r.asked, e.ID)
	case agent.Background:
		r.occupied = time.Time{}
		if e.Tasks > 0 {
			r.occupied = time.Now().Add(r.m.opts.BackgroundLimit)
		}
	case agent.Done:
		clear(r.tools)
		clear(r.asked)
	}
}

// showWork sets the state according to the current activity.
func (r *runner) showWork() {
	switch {
	case r.current == nil:
	case len(r.asked) > 0:
		r.setStatus(records.Waiting, "")
	case len(r.tools) > 0:
		r.setStatus(records.RunningTool, "")
	default:
		r.setStatus(records.Thinking, "")
	}
}

// turnEnded records the end of the turn, which the agent reported in the line up to end (0: no line). It publishes
// the end after drafts, all or none, so that the next server knows what this one has published.
func (r *runner) turnEnded(e agent.Event, end int64, drafts ...draft) {
	e = r.panicEnds(e)
	m := *r.current
	m.Ended, m.Reply, m.State = time.Now().UTC(), logf.Redacted(e.Text), records.Completed
	status, reason, permanent := records.Done, "", cause.Cause("")
	if m.Usage = r.usage(e.Usage); m.Usage != (agent.Usage{}) {
		e.Usage = &m.Usage
	}
	if r.stopped != "" { // regardless of the agent's own description
		e.Interrupted, e.Failed, e.Reason = true, true, r.stopped
	}
	answer := r.answers.Take()
	e = believed(e, answer)
	switch {
	case e.Interrupted:
		m.State, reason = records.Stopped, "the turn was interrupted"
		if r.stopped != "" {
			reason += ": " + r.stopped
		}
	case e.Failed:
		e.Text, permanent = failedTurn(e, r.overspent(), answer)
		m.State, m.Reply, status = records.Broken, logf.Redacted(e.Text), records.Failed
		reason = cmp.Or(e.Text, e.Reason, "the turn failed")
	}
	clear(r.tools)
	clear(r.asked)
	reportTurn(r, m, e)
	r.putMessage(m)
	r.change(func(s *records.Session) {
		s.Turns++
		s.Usage.Add(m.Usage)
		s.Answered, s.Asked, s.Stopping, r.used = nil, nil, "", agent.Usage{}
	})
	r.publish(append(drafts, draft{string(agent.Done), records.Event{Event: e, Message: &m, Cause: permanent,
		Offset: end}})...)
	r.published = max(r.published, end)
	r.current, r.killAt, r.stopped = nil, time.Time{}, ""
	r.setStatus(status, reason)
	r.tellWaiter(m)
	r.reportGit()
	r.history.Keep(r.session().Sandbox.Volumes, r.session().Active)
}

// interrupt ends the current turn: it asks the agent to stop, and kills it after StopGrace.
func (r *runner) interrupt(why string) {
	if r.stopped != "" {
		return
	}
	r.stopped, r.killAt = why, time.Now().Add(stopGrace(r))
	r.change(func(s *records.Session) { s.Stopping = why })
	r.agent.Write(r.conv.Interrupt())
}

// stopGrace returns the time between the interrupt of a turn and the kill of the agent's process.
func stopGrace(r *runner) time.Duration {
	if s, ok := programOf(r.m, r.session().Agent).(agent.Stopper); ok {
		return max(r.m.opts.StopGrace, s.StopGrace())
	}
	return r.m.opts.StopGrace
}

// answer sends the answer to the agent's question.
func (r *runner) answer(question string, a agent.Answer) error {
	if r.agent == nil {
		return errors.Newf(errors.Conflict, "the agent has no current turn")
	}
	if slices.Contains(r.session().Answered, question) {
		return errors.Remedy(errors.Newf(errors.NotFound, "question %.80q: already answered", question),
			"see the session's events")
	}
	q, open := r.asked[question]
	if open {
		if err := q.Answerable(a); err != nil {
			return err
		}
	}
	text, err := r.conv.Answer(question, a)
	if err != nil {
		return err
	}
	if a.Allow && a.Always {
		r.allow(q.Tool)
	}
	delete(r.asked, question)
	r.heard = time.Now()
	var turn string
	if r.current != nil {
		turn = r.current.ID
	}
	sent := r.delivery(turn, len(text), text)
	r.change(func(s *records.Session) {
		s.Answered = append(slices.Clone(s.Answered), question)
		s.RecordDelivery(sent)
	})
	fault.Point("answer.recorded")
	r.agent.Write(text)
	shown := questions.Public(a)
	r.awaited.answer(turn, question, q.Answered(*shown))
	r.publish(draft{string(agent.Withdrawn), records.Event{Event: agent.Event{ID: question, Answer: shown,
		Text: q.Answered(*shown)}}})
	r.showWork()
	return nil
}

// wait returns how long the loop may sleep before watch must run.
func (r *runner) wait() time.Duration {
	due := r.gate.Due()
	if r.current == nil {
		if !r.renewAt.IsZero() && (due.IsZero() || r.renewAt.Before(due)) {
			due = r.renewAt
		}
		if time.Now().Before(r.occupied) && (due.IsZero() || r.occupied.Before(due)) {
			due = r.occupied
		}
		if due.IsZero() {
			return time.Hour
		}
		return max(time.Until(due), time.Millisecond)
	}
	at := r.heard.Add(r.patience())
	if !due.IsZero() && due.Before(at) {
		at = due
	}
	if d := r.answerDue(); !d.IsZero() && d.Before(at) {
		at = d
	}
	if !r.killAt.IsZero() && r.killAt.Before(at) {
		at = r.killAt
	}
	if d := r.deadline(); !d.IsZero() && r.stopped == "" && d.Before(at) {
		at = d
	}
	return max(time.Until(at), time.Millisecond)
}

// patience returns how long the agent may be silent before the turn counts as hung.
func (r *runner) patience() time.Duration {
	switch {
	case len(r.asked) > 0 || r.session().Status == records.Hung:
		return 24 * time.Hour
	case len(r.tools) > 0:
		return r.m.opts.ToolHangAfter
	}
	return r.m.opts.HangAfter
}

// deadline returns when the turn must end; zero if it has no limit.
func (r *runner) deadline() time.Time {
	seconds := r.session().Limits.Seconds
	if seconds <= 0 {
		return time.Time{}
	}
	return r.began.Add(time.Duration(seconds * float64(time.Second)))
}

// watch handles timeouts that are due.
func (r *runner) watch(ctx context.Context) {
	now := time.Now()
	r.watchGate(now)
	if r.current == nil {
		if !r.renewAt.IsZero() && !now.Before(r.renewAt) {
			r.renewAt = now.Add(stopGrace(r))
			r.agent.Kill(ctx)
		}
		return
	}
	r.answerLate(now)
	switch d := r.deadline(); {
	case !r.killAt.IsZero() && !now.Before(r.killAt):
		r.killAt = time.Time{}
		r.agent.Kill(ctx)
	case !d.IsZero() && r.stopped == "" && !now.Before(d):
		r.interrupt(fmt.Sprintf("it took longer than its limit of %g s", r.session().Limits.Seconds))
	case now.Sub(r.heard) >= r.patience():
		r.setStatus(records.Hung, fmt.Sprintf("nothing was heard of the agent for %s", r.patience()))
	}
}

// end requests the end of the session.
func (r *runner) end(why string) { r.over = why }

// finish ends the session: it destroys agent and sandbox and keeps the record.
func (r *runner) finish(ctx context.Context) {
	if r.undo != nil {
		r.undo()
		p := <-r.prepared
		r.creds.Take(p.Logins)
		if p.Sandbox != "" {
			r.change(func(s *records.Session) { s.SandboxID = p.Sandbox })
		}
	}
	r.preparing.end(hasEnded(r.id))
	r.dropAll(r.over)
	if r.deferred != nil {
		r.drop(*r.deferred, r.over)
		r.deferred = nil
	}
	if r.current != nil {
		r.stopped = r.over
		r.turnEnded(agent.Event{Type: agent.Done}, 0)
	}
	r.behind = false
	reportAwaited(r)
	defer r.agent.Close()
	r.agent.Detach()
	r.line.Close()
	r.letGitGo()
	r.creds.End(ctx)
	if id := r.session().SandboxID; id != "" {
		if err := r.m.opts.Fleet.Destroy(context.WithoutCancel(ctx), r.account, id); err != nil &&
			errors.KindOf(err) != errors.NotFound {
			logf.Errorf(ctx, "destroy the sandbox of session %s: %v", r.id, err)
		}
	}
	if s := r.session(); s.Spare {
		r.m.dropSpare(ctx, s)
		r.m.forget(r.id)
		return
	}
	status := records.Ended
	if r.failed {
		status = records.Failed
	}
	if r.over != endedByRequest {
		reportEnd(r)
	}
	r.change(func(s *records.Session) {
		s.Status, s.Reason, s.Ended, s.Process = status, r.over, time.Now().UTC(), ""
	})
	r.publish(draft{records.EventEnded, records.Event{Event: agent.Event{Reason: r.over}, Status: status}})
	r.history.Keep(r.session().Sandbox.Volumes, r.session().Active)
	r.m.inputs.Release(ctx, r.id)
	r.m.forget(r.id)
}
