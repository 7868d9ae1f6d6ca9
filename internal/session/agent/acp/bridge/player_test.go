package bridge

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/acp"
	"github.com/RelevanceAI/harvest/internal/session/agent/agenttest"
)

// player plays the agent's side of a transcript. The clock is that of the transcript.
type player struct {
	t      *testing.T
	s      *session
	conv   agent.Conversation
	clock  time.Time
	begun  time.Time
	outbox []jsonrpc.Message          // requests of the session that the transcript has not reached
	sent   []jsonrpc.Message          // all messages of the session
	ids    map[string]json.RawMessage // of the session's requests, by the ID in the transcript
	events []agent.Event
}

// entry is a line of a transcript.
type entry struct {
	Dir string
	T   int64
	Msg json.RawMessage
}

func newPlayer(t *testing.T, o options) *player {
	t.Helper()
	p := &player{t: t, ids: map[string]json.RawMessage{}, begun: time.Unix(1e9, 0),
		conv: acp.Agent{}.Open(agent.Setup{})}
	p.clock = p.begun
	if o.dir == "" {
		o.dir = t.TempDir()
	}
	if o.name == "" {
		o.name = "the agent"
	}
	p.s = newSession(o)
	p.s.now = func() time.Time { return p.clock }
	p.s.write = func(line []byte) {
		var m jsonrpc.Message
		if err := json.Unmarshal(line, &m); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		p.sent, p.outbox = append(p.sent, m), append(p.outbox, m)
	}
	p.s.print = func(l acp.Line) {
		line, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		p.events = append(p.events, p.conv.Decode(line)...)
	}
	p.s.start()
	return p
}

// feed gives the session a message of the agent.
func (p *player) feed(text string) {
	p.s.read(jsonrpc.Line{Text: []byte(text)})
	p.options()
}

// options answers the requests that set options: the recorded client set others.
func (p *player) options() {
	for i := 0; i < len(p.outbox); i++ {
		if m := p.outbox[i]; strings.HasPrefix(m.Method, "session/set_") {
			p.outbox = append(p.outbox[:i:i], p.outbox[i+1:]...)
			i = -1
			p.s.read(jsonrpc.Line{Text: []byte(`{"jsonrpc":"2.0","id":` + string(m.ID) + `,"result":{}}`)})
		}
	}
}

// wait moves the clock to a time, and runs the timers until then.
func (p *player) wait(until time.Time) {
	for due := p.s.due(); p.s.over == nil && !due.IsZero() && !due.After(until); due = p.s.due() {
		p.clock = due
		p.s.tick()
		p.options()
	}
	if until.After(p.clock) {
		p.clock = until
	}
}

// take returns the next request of the session with a method.
func (p *player) take(method string) (jsonrpc.Message, bool) {
	for i, m := range p.outbox {
		if m.Method == method {
			p.outbox = append(p.outbox[:i:i], p.outbox[i+1:]...)
			return m, true
		}
	}
	return jsonrpc.Message{}, false
}

// play plays a transcript.
func (p *player) play(transcript []byte) {
	for line := range bytes.Lines(transcript) {
		var e entry
		var m jsonrpc.Message
		if err := json.Unmarshal(line, &e); err != nil {
			p.t.Fatal(err)
		}
		if json.Unmarshal(e.Msg, &m) != nil {
			continue // a line without JSON, which tested the agent
		}
		p.wait(p.begun.Add(time.Duration(e.T) * time.Millisecond))
		if p.s.over != nil {
			break
		}
		if e.Dir == ">" {
			p.client(m)
		} else {
			p.agent(m, e.Msg)
		}
	}
	p.wait(p.clock.Add(time.Minute))
	if p.s.over != nil {
		p.s.ends(p.s.over, "")
	}
}

// client makes the session do what the recorded client did, unless the session never does that.
func (p *player) client(m jsonrpc.Message) {
	switch m.Method {
	case "initialize", "session/new", "session/load", "session/resume":
		if sent, ok := p.take(m.Method); ok {
			p.ids[string(m.ID)] = sent.ID
		}
	case "session/prompt":
		if p.s.turn != nil {
			return // the session would queue it
		}
		for i := 0; !p.s.ready && i < 10; i++ {
			p.wait(p.clock.Add(time.Second))
		}
		p.s.handle(acp.Request{Op: "prompt", ID: "prompt " + string(m.ID), Text: "go"})
		if sent, ok := p.take(m.Method); ok {
			p.ids[string(m.ID)] = sent.ID
		}
	case "session/cancel":
		if p.s.turn != nil {
			p.s.handle(acp.Request{Op: "interrupt"})
		}
	case "":
		p.answer(m)
	}
}

// answer answers the open question as the recorded client did.
func (p *player) answer(m jsonrpc.Message) {
	for id, q := range p.s.questions {
		if string(q.request) != string(m.ID) {
			continue
		}
		var r struct{ Outcome struct{ OptionID string } }
		jsonrpc.Decode(m.Result, &r)
		a := agent.Answer{}
		for _, o := range q.options {
			if o.ID == r.Outcome.OptionID {
				a.Allow, a.Always = strings.HasPrefix(o.Kind, "allow"), o.Kind == "allow_always"
			}
		}
		line, err := p.conv.Answer(id, a)
		var req acp.Request
		if err != nil || json.Unmarshal(line, &req) != nil {
			p.t.Fatalf("%s, %v", line, err)
		}
		p.s.handle(req)
		return
	}
}

// agent gives the session a message of the recorded agent.
func (p *player) agent(m jsonrpc.Message, raw json.RawMessage) {
	if m.Method != "" {
		p.feed(string(raw))
		return
	}
	id, ok := p.ids[string(m.ID)]
	if !ok {
		return // the answer to a request that the session never sends
	}
	delete(p.ids, string(m.ID))
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(raw, &fields); err != nil {
		p.t.Fatal(err)
	}
	fields["id"] = id
	text, err := json.Marshal(fields)
	if err != nil {
		p.t.Fatal(err)
	}
	if p.s.session != "" { // the recorded client loaded its session
		text = bytes.ReplaceAll(text, []byte(`"resume":{}`), []byte(`"resume":null`))
	}
	p.feed(string(text))
}

// loadedSession returns the session that the recorded client continued; "" if it began one.
func loadedSession(transcript []byte) string {
	for line := range bytes.Lines(transcript) {
		var e struct {
			Msg struct {
				Method string
				Params struct{ SessionID string }
			}
		}
		_ = json.Unmarshal(line, &e) // some lines have no JSON in them
		switch e.Msg.Method {
		case "session/new":
			return ""
		case "session/load":
			return e.Msg.Params.SessionID
		}
	}
	return ""
}

// TestTranscripts checks that transcripts of the real agents become the events beside them.
func TestTranscripts(t *testing.T) {
	t.Parallel()
	agenttest.Transcripts(t, func(t *testing.T, transcript []byte) []agent.Event {
		t.Helper()
		approval := agent.ApproveNone
		if bytes.Contains(transcript, []byte("codex-acp")) {
			approval = agent.ApproveEdits // the mode that the recorded client set
		}
		p := newPlayer(t, options{session: loadedSession(transcript), approval: approval})
		p.play(transcript)
		return p.events
	})
}
