package session

import (
	"bytes"
	"cmp"
	"context"
	"strings"

	"github.com/oklog/ulid/v2"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/model"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/session/models"
	"github.com/RelevanceAI/harvest/session/pipe"
)

// onceScript runs a command with a file as its standard input. The first parameter is the file's name.
const onceScript = `f=$1; shift; exec "$@" <"$f"`

// RunOnce has an agent answer one prompt in an existing sandbox that belongs to no session. The agent runs under a
// terminal, in the directory of its first volume or else in its own. RunOnce reports the agent's events as they
// happen; it holds back the Done event, if there is one, until the agent has ended. Lines that are not events are
// reported as Other. When ctx ends, the agent and all its descendants are killed. Kinds: Invalid, NotFound,
// Unsupported (the agent has no one-shot mode), Conflict (the sandbox belongs to a session, or an agent is working in
// it).
func (m *Manager) RunOnce(ctx context.Context, account, ref, name, prompt string,
	tell func(agent.Event)) (sandbox.Result, error) {
	if err := checkPrompt(prompt); err != nil {
		return sandbox.Result{}, err
	}
	program, ok := m.opts.Agents[name].(agent.OneShot)
	if !ok {
		return sandbox.Result{}, errors.Newf(errors.Unsupported, "agent %.40q: does not support single prompts", name)
	}
	sb, err := m.opts.Fleet.Get(ctx, account, ref)
	if err != nil {
		return sandbox.Result{}, err
	}
	if id := sb.Tags[tagSession]; id != "" {
		return sandbox.Result{}, errors.Remedy(errors.Newf(errors.Conflict, "the sandbox belongs to session %s", id),
			"send the prompt to the session")
	}
	leave, err := m.enterOnce(sb.ID)
	if err != nil {
		return sandbox.Result{}, err
	}
	defer leave()
	setup := agent.Setup{Dir: sb.Workdir}
	if len(sb.Volumes) > 0 {
		setup.Dir = sb.Volumes[0].Path
	}
	if setup.Access, err = m.onceAccess(ctx, sb); err != nil {
		return sandbox.Result{}, err
	}
	line := m.models().Open(ctx, account, sb.ID, model.Grant{ID: sb.ID, Account: account, Secrets: sb.Secrets})
	defer line.End(ctx)
	dir := "/tmp/harvest-prompt-" + strings.ToLower(ulid.Make().String())
	if err := m.in(account, sb.ID).CopyFile(ctx, dir, "prompt", []byte(prompt)); err != nil {
		return sandbox.Result{}, err
	}
	defer m.in(account, sb.ID).Remove(context.WithoutCancel(ctx), dir)

	overridden, err := models.Guard(ctx, m.in(account, sb.ID), m.opts.Agents[name], &setup, setup.Dir)
	if err != nil {
		return sandbox.Result{}, err
	}
	for _, text := range overridden {
		tell(agent.Event{Type: agent.Overridden, Text: text})
	}
	cmd := program.Once(setup)
	out := &once{conv: m.opts.Agents[name].Open(setup), tell: tell}
	x, err := m.opts.Fleet.Exec(ctx, account, sb.ID, sandbox.ExecRequest{
		Args: append([]string{"/bin/sh", "-c", onceScript, "sh", dir + "/prompt"}, cmd.Args...), Env: cmd.Env,
		Workdir:  cmd.Dir,
		Terminal: &engine.Size{Rows: 24, Cols: 200}, Timeout: agentLife, Stdout: out,
	})
	if err != nil {
		return sandbox.Result{}, err
	}
	result, err := x.Wait(ctx)
	if ctx.Err() != nil {
		return result, errors.Wrapf(ctx.Err(), "run an agent in %s", sb.ID)
	}
	out.end()
	return result, err
}

// enterOnce reserves the sandbox for one prompt.
func (m *Manager) enterOnce(id string) (leave func(), err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.once[id] {
		return nil, errors.Remedy(errors.Newf(errors.Conflict, "an agent is already working in the sandbox %s", id),
			"wait for its answer")
	}
	m.once[id] = true
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.once, id)
	}, nil
}

// onceAccess is like Access, but returns nil if there is no credential, so that the sandbox's own environment
// applies.
func (m *Manager) onceAccess(ctx context.Context, sb sandbox.Sandbox) (*agent.Access, error) {
	if m.opts.Models == nil {
		return nil, nil
	}
	c, err := m.opts.Models.Credential(ctx, sb.Account, sb.Secrets)
	if err != nil || c.Value == "" {
		return nil, err
	}
	return m.models().Access(ctx, sb.Account, sb.ID, sb.Secrets)
}

// terminalCodes matches terminal control sequences. Text in JSON has these characters escaped.
var terminalCodes = pattern.New(`\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_=>78])`)

// once converts an agent's terminal output to events.
type once struct {
	conv agent.Conversation
	tell func(agent.Event)
	line []byte
	cut  bool
	done *agent.Event // reported at the end
}

// Write implements io.Writer.
func (o *once) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		text, after, whole := bytes.Cut(b, []byte{'\n'})
		if room := pipe.MaxLine - len(o.line); len(text) > room {
			text, o.cut = text[:room], true
		}
		o.line = append(o.line, text...)
		if whole {
			o.take()
		}
		b = after
	}
	return n, nil
}

// take reports a line.
func (o *once) take() {
	text := bytes.TrimSpace(terminalCodes().ReplaceAll(bytes.TrimRight(o.line, "\r"), nil))
	if o.cut {
		text = []byte("a line that is too long")
	}
	o.line, o.cut = o.line[:0], false
	if len(text) == 0 {
		return
	}
	for _, e := range o.conv.Decode(text) {
		if e.Type == agent.Done {
			o.done = &e
			continue
		}
		o.tell(fit(Event{Event: e}).Event)
	}
}

// end reports the rest of the output.
func (o *once) end() {
	o.take()
	if o.done != nil {
		done := fit(Event{Event: *o.done}).Event
		done.Text = cmp.Or(done.Text, done.Reason)
		o.tell(done)
	}
}
