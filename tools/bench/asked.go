package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/mcp"
)

// askedKey is the key of the model's API.
const askedKey = "sk-ant-benchmark"

// askedModel is a model's API that reports the first request with the prompt and tools, and answers none.
type askedModel struct {
	*httptest.Server
	prompt atomic.Pointer[string] // differs in each session
	asked  chan []byte            // the body of that request
	done   chan struct{}
}

func newAskedModel() *askedModel {
	m := &askedModel{asked: make(chan []byte, 1), done: make(chan struct{})}
	m.Server = httptest.NewServer(m)
	return m
}

func (m *askedModel) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil || r.Method != http.MethodPost {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if bytes.Contains(body, []byte(*m.prompt.Load())) && bytes.Contains(body, []byte(`"tools":[{`)) {
		select {
		case m.asked <- body:
		default: // a repeated request
		}
	}
	select { // the session ends while its agent waits
	case <-r.Context().Done():
	case <-m.done:
	}
}

func (m *askedModel) Close() {
	close(m.done)
	m.CloseClientConnections()
	m.Server.Close()
}

// benchAsked measures sessions with the real Claude Code and its four MCP servers, from their creation until the model
// receives the prompt.
func benchAsked(ctx context.Context, l *lab, r *recorder) error {
	_, from, _, err := l.agentLibrary(ctx)
	if err != nil {
		r.missing("Claude Code", err)
		return nil
	}
	data := filepath.Join(l.dir, "session-asked")
	images := filepath.Join(data, "images")
	if err := errors.Join(os.Mkdir(data, 0o700), ownImage(l.opts.images, images, "base"),
		ownImage(from, images, "agent")); err != nil {
		return errors.Wrapf(err, "make a data directory")
	}
	model := newAskedModel()
	defer model.Close()
	m := r.measure("cold, Claude Code with four MCP servers: create, until the model is asked", "ms")
	m.Aim = &Aim{AtMost: 5000}
	count := 0
	// Without it, requests have only the names of MCP servers' tools.
	whole := api.SandboxRequest{Env: map[string]string{"ENABLE_TOOL_SEARCH": "false"}}
	return withServer(ctx, l, data, func(d *daemon) error {
		return r.turns(ctx, r.count(2, 10), []*Measure{m}, side{harvest, func(ctx context.Context) (sample, error) {
			count++
			prompt := fmt.Sprintf("Say hello to turn (%d) of the benchmark.", count)
			model.prompt.Store(&prompt)
			select {
			case <-model.asked: // by a repeated request
			default:
			}
			begin := time.Now()
			made, err := d.CreateSession(ctx, api.SessionRequest{Agent: "claude", Prompt: prompt, Sandbox: whole})
			if err != nil {
				return nil, err
			}
			body, err := d.asked(ctx, model, made.ID, 0)
			took := ms(time.Since(begin))
			if err = errors.Join(err, d.EndSession(context.WithoutCancel(ctx), made.ID)); err != nil {
				return nil, err
			}
			for _, s := range mcp.Servers() {
				if s.Secret == "" && !bytes.Contains(body, []byte(`"name":"mcp__`+s.Name+`__`)) {
					return nil, errors.Errorf("the model was asked without the tools of %s", s.Name)
				}
			}
			return sample{m.Name: took}, nil
		}})
	}, "HARVEST_POOL=0", "HARVEST_AGENTS_IMAGE=agent", "HARVEST_AGENTS_SPARES=0", "ANTHROPIC_BASE_URL="+model.URL,
		"ANTHROPIC_API_KEY="+askedKey)
}

// asked waits until the session's agent asks the model, and returns the request. after is the last known event.
func (d *daemon) asked(ctx context.Context, model *askedModel, id string, after int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() {
		for e, err := range d.Events(ctx, client.Follow{Stream: id, After: after}) {
			if err != nil {
				ended <- err
				return
			}
			if e.Type == "session.ended" || e.Type == "done" {
				ended <- errors.Errorf("the session did not ask the model: %s", e.Data)
				return
			}
		}
		ended <- errors.Errorf("the events have ended")
	}()
	select {
	case body := <-model.asked:
		return body, nil
	case err := <-ended:
		return nil, err
	}
}
