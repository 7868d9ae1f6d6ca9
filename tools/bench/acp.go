package main

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
)

// byHand starts an agent without Harvest.
//
//go:embed byhand.py
var byHand string

const (
	handSide = "by hand"
	handFile = "/tmp/by-hand.json" // of the sandbox

)

// acpAgents are agents that speak the Agent Client Protocol, with the variable of the address of the model's API.
var acpAgents = []struct{ name, base, path, key, model string }{
	{"opencode-acp", "ANTHROPIC_BASE_URL", "", "ANTHROPIC_API_KEY", "anthropic/claude-haiku-4-5"},
	{"claude-acp", "ANTHROPIC_BASE_URL", "", "ANTHROPIC_API_KEY", "haiku"},
	{"codex", "OPENAI_BASE_URL", "/v1", "OPENAI_API_KEY", "gpt-6.2-sol"},
}

// benchACP measures a prompt to a session whose agent does not run, until the model is asked, beside the same agent
// started by hand in the same sandbox. There are no MCP servers: Harvest waits for them; a program by hand does not.
func benchACP(ctx context.Context, l *lab, r *recorder) error {
	_, from, _, err := l.agentLibrary(ctx)
	if err != nil {
		r.missing("the agent image", err)
		return nil
	}
	for _, a := range acpAgents {
		data := filepath.Join(l.dir, "acp-"+a.name)
		images := filepath.Join(data, "images")
		if err := errors.Join(os.Mkdir(data, 0o700), ownImage(l.opts.images, images, "base"),
			ownImage(from, images, "agent")); err != nil {
			return errors.Wrapf(err, "make a data directory")
		}
		model := newAskedModel()
		err := withServer(ctx, l, data, func(d *daemon) error {
			return (&handmade{d: d, model: model, row: r}).measure(ctx, a.name, a.model)
		}, "HARVEST_POOL=0", "HARVEST_AGENTS_IMAGE=agent", "HARVEST_AGENTS_SPARES=0", a.base+"="+model.URL+a.path,
			a.key+"="+askedKey)
		model.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// handmade is a session whose agent also starts by hand.
type handmade struct {
	d       *daemon
	model   *askedModel
	row     *recorder
	session api.Session
	count   int
	last    int64 // the newest event that was read
}

func (h *handmade) measure(ctx context.Context, name, model string) error {
	env := map[string]string{}
	registry, err := exec.CommandContext(ctx, "npm", "config", "get", "registry").Output()
	if err == nil { // without npm, the sandbox uses the public registry
		env["NPM_CONFIG_REGISTRY"] = strings.TrimSpace(string(registry))
	}
	h.session, err = h.d.CreateSession(ctx, api.SessionRequest{Agent: name, Model: model,
		Sandbox: api.SandboxRequest{Env: env}})
	if err != nil {
		return err
	}
	if err := h.event(ctx, "session.status_changed"); err != nil { // ready
		return err
	}
	if h.session, err = h.d.Session(ctx, h.session.ID); err != nil {
		return err
	}
	files := []string{"rm", "-f"}
	for _, s := range mcp.Servers() {
		if len(s.Command) > 1 {
			files = append(files, s.Command[1]) // the program; before it stands Node.js
		}
	}
	if err := h.inside(ctx, "root", files...); err != nil {
		return err
	}
	find := func() error { return h.inside(ctx, "root", "python3", "-c", byHand, "find", handFile) }
	if _, err := h.harvest(ctx, find); err != nil {
		return err
	}
	if err := h.inside(ctx, "root", "chmod", "a+r", handFile); err != nil {
		return err
	}
	m := h.row.measure(name+": prompt to an agent that does not run, until the model is asked", "ms")
	m.Aim = &Aim{Peer: handSide, AtMost: 1.15}
	run := func(f func(context.Context) (float64, error)) func(context.Context) (sample, error) {
		return func(ctx context.Context) (sample, error) {
			took, err := f(ctx)
			return sample{m.Name: took}, err
		}
	}
	return h.row.turns(ctx, h.row.count(2, 10), []*Measure{m},
		side{harvest, run(func(ctx context.Context) (float64, error) { return h.harvest(ctx, nil) })},
		side{handSide, run(h.hand)})
}

// prompt returns a prompt that was not sent before.
func (h *handmade) prompt() string {
	h.count++
	prompt := fmt.Sprintf("Say hello to turn (%d) of the benchmark.", h.count)
	h.model.prompt.Store(&prompt)
	select {
	case <-h.model.asked: // by a repeated request
	default:
	}
	return prompt
}

// harvest sends a prompt to the session, whose agent has ended, and stops the turn when the model was asked. The agent
// stays: without it, the session has no way to the model. then is called before the stop.
func (h *handmade) harvest(ctx context.Context, then func() error) (took float64, err error) {
	if err := h.end(ctx, "harvest"); err != nil {
		return 0, err
	}
	begin := time.Now()
	if _, err := h.d.Send(ctx, h.session.ID, h.prompt()); err != nil {
		return 0, err
	}
	if _, err := h.d.asked(ctx, h.model, h.session.ID, h.last); err != nil {
		return 0, err
	}
	took = ms(time.Since(begin))
	if then != nil {
		if err := then(); err != nil {
			return 0, err
		}
	}
	if err := h.d.StopSession(ctx, h.session.ID); err != nil {
		return 0, err
	}
	return took, h.event(ctx, "done")
}

// hand starts the agent by hand, and ends it when the model was asked.
func (h *handmade) hand(ctx context.Context) (took float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	begin := time.Now()
	ended := make(chan error, 1)
	prompt := h.prompt()
	go func() { ended <- h.inside(ctx, "", "python3", "-c", byHand, "start", handFile, prompt) }()
	select {
	case <-h.model.asked:
		took = ms(time.Since(begin))
	case err := <-ended:
		return 0, errors.Errorf("the agent by hand has ended: %v", err)
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	err = h.end(ctx, "hand")
	<-ended // killed
	return took, err
}

// end ends the agents of a way. The session needs a moment to see it.
func (h *handmade) end(ctx context.Context, way string) error {
	if err := h.inside(ctx, "root", "python3", "-c", byHand, "end", way); err != nil {
		return err
	}
	return pause(ctx, time.Second)
}

// inside runs a command in the sandbox.
func (h *handmade) inside(ctx context.Context, user string, args ...string) error {
	result, err := h.d.Exec(ctx, h.session.SandboxID, api.ExecRequest{Args: args, User: user})
	if err == nil && result.ReturnCode != 0 {
		err = errors.Errorf("%.60q ended with %d: %s", args, result.ReturnCode, result.Stderr)
	}
	return err
}

// event waits for the next event of a type.
func (h *handmade) event(ctx context.Context, kind string) error {
	for e, err := range h.d.Events(ctx, client.Follow{Stream: h.session.ID, After: h.last}) {
		if err != nil {
			return err
		}
		h.last = e.ID
		switch e.Type {
		case kind:
			return nil
		case "session.ended":
			return errors.Errorf("the session has ended: %s", e.Data)
		}
	}
	return errors.Errorf("the events have ended")
}
