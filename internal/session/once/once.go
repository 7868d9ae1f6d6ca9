// Package once has an agent answer one prompt in a sandbox that belongs to no session.
package once

import (
	"context"
	"strings"
	"sync"

	"github.com/oklog/ulid/v2"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/session/models"
	"github.com/RelevanceAI/harvest/internal/session/pipe"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// inputScript runs a command with a file as its standard input. The first parameter is the file's name.
const inputScript = `f=$1; shift; exec "$@" <"$f"`

// Runner runs agents for one prompt each.
type Runner struct {
	Fleet  *fleet.Fleet
	Agents map[string]agent.Agent
	Models models.Connector
	Tag    string                          // of sandboxes that belong to a session
	Fit    func(e agent.Event) agent.Event // shortens an event that is too long

	mu   sync.Mutex
	busy map[string]bool // guarded by mu; sandboxes in which an agent is answering
}

// Run has an agent answer one prompt in an existing sandbox that belongs to no session; see Manager.RunOnce of package
// session.
func (r *Runner) Run(ctx context.Context, account, ref, name, prompt string,
	tell func(agent.Event)) (commands.Result, error) {
	program, ok := r.Agents[name].(agent.OneShot)
	if !ok {
		return commands.Result{}, errors.Newf(errors.Unsupported, "agent %.40q: does not support single prompts", name)
	}
	sb, err := r.Fleet.Get(ctx, account, ref)
	if err != nil {
		return commands.Result{}, err
	}
	if id := sb.Tags[r.Tag]; id != "" {
		return commands.Result{}, errors.Remedy(errors.Newf(errors.Conflict, "the sandbox belongs to session %s", id),
			"send the prompt to the session")
	}
	leave, err := r.enter(sb.ID)
	if err != nil {
		return commands.Result{}, err
	}
	defer leave()
	setup := agent.Setup{Dir: sb.Workdir}
	if len(sb.Volumes) > 0 {
		setup.Dir = sb.Volumes[0].Path
	}
	if setup.Access, err = r.access(ctx, r.Agents[name], sb); err != nil {
		return commands.Result{}, err
	}
	line := r.Models.Open(ctx, account, sb.ID, model.Grant{ID: sb.ID, Account: account, Secrets: sb.Secrets})
	defer line.End(ctx)
	box := shell.Sandbox{Fleet: r.Fleet, Account: account, ID: sb.ID}
	dir := "/tmp/harvest-prompt-" + strings.ToLower(ulid.Make().String())
	if err := box.CopyFile(ctx, dir, "prompt", []byte(prompt)); err != nil {
		return commands.Result{}, err
	}
	defer box.Remove(context.WithoutCancel(ctx), dir)

	overridden, err := models.Guard(ctx, box, r.Agents[name], &setup, setup.Dir)
	if err != nil {
		return commands.Result{}, err
	}
	for _, text := range overridden {
		tell(agent.Event{Type: agent.Overridden, Text: text})
	}
	cmd := program.Once(setup)
	out := &output{conv: r.Agents[name].Open(setup), fit: r.Fit, tell: tell}
	x, err := r.Fleet.Exec(ctx, account, sb.ID, fleet.ExecRequest{
		Args: append([]string{"/bin/sh", "-c", inputScript, "sh", dir + "/prompt"}, cmd.Args...), Env: cmd.Env,
		Workdir: cmd.Dir, Terminal: &engine.Size{Rows: 24, Cols: 200}, Timeout: pipe.Life, Stdout: out,
	})
	if err != nil {
		return commands.Result{}, err
	}
	result, err := x.Wait(ctx)
	if ctx.Err() != nil {
		return result, errors.Wrapf(ctx.Err(), "run an agent in %s", sb.ID)
	}
	out.end()
	return result, err
}

// enter reserves the sandbox for one prompt.
func (r *Runner) enter(id string) (leave func(), err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy[id] {
		return nil, errors.Remedy(errors.Newf(errors.Conflict, "an agent is already working in the sandbox %s", id),
			"wait for its answer")
	}
	if r.busy == nil {
		r.busy = map[string]bool{}
	}
	r.busy[id] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.busy, id)
	}, nil
}

// access is like Models.Access, but returns nil if there is no credential, so that the sandbox's own environment
// applies.
func (r *Runner) access(ctx context.Context, program agent.Agent, sb record.Sandbox) (*agent.Access, error) {
	if r.Models.Gateway == nil {
		return nil, nil
	}
	c, err := r.Models.Credential(ctx, program, sb.Account, sb.Secrets)
	if err != nil || c.Value == "" {
		return nil, err
	}
	return r.Models.Access(ctx, program, sb.Account, sb.ID, sb.Secrets)
}
