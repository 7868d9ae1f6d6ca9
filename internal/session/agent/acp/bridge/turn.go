package bridge

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/jsonrpc"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/acp"
)

// turn is the state of a prompt that the agent works on.
type turn struct {
	prefix      string // of IDs of messages and questions: unique in the conversation
	count       int    // of messages and questions
	interrupted bool
	rejected    bool // a person refused a tool
	message     *text
	said        string // last text of the model since a refusal
	worked      bool   // the model said something, or called a tool
	tools       []*tool
	trouble     string // last failure, in the words of the program; "" if the model worked after it
	broken      bool   // Codex reports a system error
	attempts    int
	heard       time.Time
	patience    time.Duration // until the next report of silence
	context     *agent.Context
	cost        float64 // of the agent's session; negative if unknown
}

// text is a message that the agent writes.
type text struct {
	id, key  string // key tells messages apart
	thinking bool
	words    strings.Builder
}

// prompt queues a prompt.
func (s *session) prompt(r acp.Request) {
	s.queue = append(s.queue, r)
	s.next()
}

// next sends the next prompt if the agent is idle: some agents cancel the first of two prompts.
func (s *session) next() {
	if !s.ready || s.turn != nil || len(s.queue) == 0 {
		return
	}
	r := s.queue[0]
	s.queue = s.queue[1:]
	sum := sha256.Sum256([]byte(r.ID))
	s.turn = &turn{prefix: hex.EncodeToString(sum[:4]) + "-", patience: firstWord, cost: -1}
	s.hear()
	content := []map[string]string{{"type": "text", "text": r.Text}}
	if s.system != "" && !s.primed && !agent.IsCommand(r.Text) { // the protocol has no field for them
		content = append([]map[string]string{{"type": "text", "text": s.system}}, content...)
		s.primed = true
	}
	s.call("session/prompt", map[string]any{"sessionId": s.id, "prompt": content}, 0, s.answered)
}

// hear notes a sign of life, and starts the clock of silence again.
func (s *session) hear() {
	s.turn.heard, s.turn.patience = s.now(), firstWord
	s.after("silence", s.turn.patience, s.silent)
}

// silent reports that nothing was heard: some agents retry the model's API for minutes without a word.
func (s *session) silent() {
	t := s.turn
	if len(s.questions) == 0 {
		s.event(agent.Event{Type: agent.Silent, Text: fmt.Sprintf("no word of %s for %s", s.name,
			s.now().Sub(t.heard).Round(time.Second))})
		t.patience *= 2
	}
	s.after("silence", t.patience, s.silent)
}

// interrupt cancels the turn. Some agents never answer a prompt that is cancelled while a question is open.
func (s *session) interrupt() {
	if s.turn == nil {
		for range s.queue {
			s.event(agent.Event{Type: agent.Done, Failed: true, Interrupted: true, Reason: "cancelled",
				Usage: &agent.Usage{}})
		}
		s.queue = nil
		return
	}
	if s.turn.interrupted {
		return
	}
	s.turn.interrupted = true
	s.closeQuestions()
	s.write(jsonrpc.NewRequest(nil, "session/cancel", map[string]any{"sessionId": s.id}))
	s.after("cancel", cancelTime, func() { // the turn ends when the process has ended
		s.fail(errors.Newf(errors.Timeout, "%s did not end its turn within %s after the cancel", s.name, cancelTime))
	})
}

// answer is the answer to a prompt.
type answer struct {
	Reason string `json:"stopReason"`
	Usage  *usage `json:"usage"`
	Meta   struct {
		Quota struct {
			Tokens *struct {
				Input  int64 `json:"input_tokens"`
				Output int64 `json:"output_tokens"`
			} `json:"token_count"`
		} `json:"quota"`
	} `json:"_meta"`
}

type usage struct {
	Input      int64 `json:"inputTokens"`
	Output     int64 `json:"outputTokens"`
	Thought    int64 `json:"thoughtTokens"`
	CacheRead  int64 `json:"cachedReadTokens"`
	CacheWrite int64 `json:"cachedWriteTokens"`
}

// answered ends the turn. The reason "end_turn" is no proof that the model has succeeded.
func (s *session) answered(result json.RawMessage, f *jsonrpc.Failure) {
	t := s.turn
	if t == nil {
		return // it was given up
	}
	var a answer
	jsonrpc.Decode(result, &a)
	s.endMessage()
	e := agent.Event{Reason: a.Reason, Text: strings.TrimSpace(t.said), Usage: s.used(a)}
	fails := func(reason, why string) { e.Failed, e.Reason, e.Text = true, reason, why }
	switch {
	case t.interrupted:
		e.Failed, e.Interrupted, e.Reason = true, true, "cancelled"
	case f != nil && f.Is(jsonrpc.AuthRequired):
		fails("auth_required", strings.TrimPrefix(e.Text+"; "+s.login(f), "; "))
	case f != nil:
		fails("request_failed", f.Text())
		if code := f.Number(); !strings.HasPrefix(code, "-") { // a status of HTTP
			e.Text = code + " " + e.Text
		}
	case t.rejected && e.Text == "": // many agents end the turn then, and do not ask the model
		e.Failed, e.Interrupted, e.Reason = true, true, "rejected"
	case a.Reason == "cancelled":
		e.Failed, e.Interrupted = true, true
	case a.Reason != "end_turn":
		fails(cmp.Or(a.Reason, "no_reason"), fmt.Sprintf("%s ended the turn: %s", s.name,
			cmp.Or(a.Reason, "it gave no reason")))
	case t.broken:
		fails("model_failed", cmp.Or(t.trouble, s.name+" reports a system error"))
	case t.trouble != "" && s.quirks.failed != "":
		fails("model_failed", t.trouble)
	case !t.worked:
		fails("empty_turn", cmp.Or(t.trouble, s.name+" ended the turn without a word: its model has probably failed"))
	}
	s.finish(e)
	s.next()
}

// finish ends the turn with a Done event.
func (s *session) finish(e agent.Event) {
	t := s.turn
	s.endMessage()
	s.closeQuestions()
	s.closeTools(e.Interrupted)
	s.stop("cancel")
	s.stop("silence")
	s.turn = nil
	e.Type, e.Context = agent.Done, t.context
	if e.Usage == nil {
		e.Usage = &agent.Usage{}
	}
	s.print(acp.Line{Event: e, Unproven: !e.Failed})
}

// used returns the usage of the turn.
func (s *session) used(a answer) *agent.Usage {
	var u agent.Usage
	if v := a.Usage; v != nil {
		u = agent.Usage{InputTokens: v.Input, OutputTokens: v.Output + v.Thought, CacheReadTokens: v.CacheRead,
			CacheWriteTokens: v.CacheWrite}
	} else if q := a.Meta.Quota.Tokens; q != nil {
		u = agent.Usage{InputTokens: q.Input, OutputTokens: q.Output}
	}
	if s.quirks.usage == perSession && a.Usage != nil {
		all := u
		u.InputTokens = max(0, u.InputTokens-s.sum.InputTokens)
		u.OutputTokens = max(0, u.OutputTokens-s.sum.OutputTokens)
		u.CacheReadTokens = max(0, u.CacheReadTokens-s.sum.CacheReadTokens)
		u.CacheWriteTokens = max(0, u.CacheWriteTokens-s.sum.CacheWriteTokens)
		s.sum = all
	}
	if t := s.turn; t.cost >= 0 {
		if s.costKnown || s.session == "" { // otherwise it has the cost of earlier turns
			u.Cost = math.Max(0, math.Round((t.cost-s.cost)*1e9)/1e9) // the difference is not exact
		}
		s.cost, s.costKnown = t.cost, true
	}
	return &u
}

// say handles a piece of a text.
func (s *session) say(u *update, thinking bool) {
	var block struct{ Type, Text string }
	jsonrpc.Decode(u.Content, &block)
	if block.Type != "text" || block.Text == "" {
		if block.Type != "text" {
			s.notice("content", "%s sent %s, which Harvest does not show", s.name, cmp.Or(block.Type, "content"))
		}
		return
	}
	t := s.turn
	if s.startup != "" && strings.TrimSpace(block.Text) == s.startup {
		s.startup = ""
		return
	}
	if !thinking && s.quirks.ownWords(u, block.Text) {
		s.ownWords(strings.TrimSpace(block.Text))
		return
	}
	if t.message == nil && strings.TrimSpace(block.Text) == "" {
		return
	}
	t.worked, t.trouble = true, ""
	key := fmt.Sprint(thinking, u.MessageID)
	if t.message == nil || t.message.key != key {
		s.endMessage()
		t.message = &text{id: s.newID(), key: key, thinking: thinking}
		s.event(agent.Event{Type: agent.MessageStarted, ID: t.message.id, Thinking: thinking})
	}
	t.message.words.WriteString(block.Text)
	s.event(agent.Event{Type: agent.MessageDelta, ID: t.message.id, Text: block.Text})
}

// ownWords handles a text of the program, which is not the model's.
func (s *session) ownWords(words string) {
	t := s.turn
	if s.quirks.retry != "" && strings.HasPrefix(words, s.quirks.retry) {
		s.retrying(words)
		return
	}
	warns := strings.HasPrefix(words, "Warning: ") || strings.HasPrefix(words, "Info: ")
	if s.quirks.unmarked && !warns || s.quirks.failed != "" && strings.HasPrefix(words, s.quirks.failed) {
		t.trouble = strings.TrimPrefix(words, s.quirks.failed)
	}
	if words != "" && !(warns && s.warned[words]) { // Codex repeats its warnings in each turn
		s.warned[words] = true
		s.notice("agent", "%s", words)
	}
}

func (s *session) retrying(why string) {
	s.turn.attempts++
	s.turn.trouble = why
	s.event(agent.Event{Type: agent.Retrying, Text: why, Attempt: s.turn.attempts})
}

// newID returns an ID for a message or a question.
func (s *session) newID() string {
	s.turn.count++
	return fmt.Sprint(s.turn.prefix, s.turn.count)
}

// endMessage completes the message that the agent writes.
func (s *session) endMessage() {
	t := s.turn
	m := t.message
	if m == nil {
		return
	}
	t.message = nil
	if !m.thinking {
		t.said = m.words.String()
	}
	s.event(agent.Event{Type: agent.MessageCompleted, ID: m.id, Text: m.words.String(), Thinking: m.thinking})
}
