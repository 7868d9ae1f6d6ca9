package mcp

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

// Time limits of agent_wait, in seconds.
const (
	waitLimit    = 600
	maxWaitLimit = 3600
)

type startIn struct {
	Prompt      string  `json:"prompt"`
	Environment string  `json:"environment,omitempty"`
	Repository  string  `json:"repository,omitempty"`
	Branch      string  `json:"branch,omitempty"`
	Agent       string  `json:"agent,omitempty"`
	Model       string  `json:"model,omitempty"`
	MaxUSD      float64 `json:"max_usd,omitempty"`
	Approval    string  `json:"approval,omitempty"`
}

func (startIn) arguments() arguments {
	return arguments{
		"prompt":      "the task, with all that the agent has to know",
		"environment": "environment whose branch the agent starts from",
		"repository": "instead of an environment: what to work on, as in environment_create (default: the user's " +
			"current repository with its uncommitted work)",
		"branch": "branch to start from",
		"agent":  "claude, opencode, codex or another one that the server has (default: claude)",
		"model":  "model of the agent (default: that of the agent)",
		"approval": "edits, ask or plan: tools of the agent wait for your approval, which agent_wait returns as " +
			"questions (default: all tools run)",
		"max_usd": "limit of the cost of the model, in US dollars",
	}
}

type sendIn struct {
	Session  string            `json:"session"`
	Prompt   string            `json:"prompt,omitempty"`
	Question string            `json:"question,omitempty"`
	Allow    bool              `json:"allow,omitempty"`
	Answers  map[string]string `json:"answers,omitempty"`
	Stop     bool              `json:"stop,omitempty"`
}

func (sendIn) arguments() arguments {
	return arguments{
		"session":  "ID of the session, from the answer of agent_start",
		"prompt":   "the next task, or a correction; it is sent after the present turn",
		"question": "instead of a prompt: ID of the agent's question that is answered",
		"allow":    "of a question that asks for an approval: allow it",
		"answers":  "of a question with texts: the answer to each text",
		"stop":     "interrupt the present turn first",
	}
}

type waitIn struct {
	Session        string  `json:"session"`
	TimeoutSeconds float64 `json:"timeout_seconds,omitempty"`
}

func (waitIn) arguments() arguments {
	return arguments{
		"session":         "ID of the session",
		"timeout_seconds": "how long to wait (default: 600, at most 3600); the agent continues after it",
	}
}

// agentTools are the tools that delegate to sessions.
type agentTools struct{ *server }

func (s agentTools) add(to tools) {
	add(to, "agent_start", "Start an agent",
		`Delegate a task to another coding agent, which works alone in its own sandbox with the repository. `+
			`Returns the ID of its session at once. agent_wait waits for its reply, agent_send sends more, diff and `+
			`hand_back with the session show and take its work; if it started from an environment, hand that one back `+
			`first.`,
		changes, s.agentStart)
	add(to, "agent_send", "Send to an agent",
		`Send a prompt to an agent of agent_start, or answer its question, or stop its turn.`,
		changes, s.agentSend)
	add(to, "agent_wait", "Wait for an agent",
		`Wait until an agent of agent_start has answered all prompts, or asks a question, and return its last `+
			`reply. If the time is over, call it again.`,
		reads, s.agentWait)
}

func (s agentTools) agentStart(ctx context.Context, tell progress, in startIn) (answer, error) {
	if strings.TrimSpace(in.Prompt) == "" {
		return answer{}, errors.Remedy(errors.Newf(errors.Invalid, "the prompt is empty"), "describe the task")
	}
	if err := git.CheckBranch(in.Branch); err != nil {
		return answer{}, err
	}
	req := api.SessionRequest{Prompt: in.Prompt, Agent: in.Agent, Model: in.Model, Branch: in.Branch,
		Approval: in.Approval, Limits: api.SessionLimits{USD: in.MaxUSD}}
	notes, done, err := s.material(ctx, tell, in, &req)
	if err != nil {
		return answer{}, err
	}
	defer done()
	tell("creating the session")
	made, err := s.Client.CreateSession(ctx, req)
	if err != nil {
		return answer{}, err
	}
	return answer{text: fmt.Sprintf("Started the session %s of the agent %s.", made.ID, made.Agent),
		notes: append(notes, fmt.Sprintf(`for its reply: agent_wait {"session": %q}`, made.ID),
			"working directory of the agent "+made.Dir)}, nil
}

// material sets the repository of a session. done removes what was sent.
func (s agentTools) material(ctx context.Context, tell progress, in startIn, req *api.SessionRequest) (notes []string,
	done func(), err error) {
	done = func() {}
	switch {
	case in.Environment != "":
		return nil, done, s.fromEnvironment(ctx, in.Environment, req)
	case in.Repository == nothing || in.Repository == "" && s.Local == nil:
		return nil, done, nil
	case strings.Contains(in.Repository, ":"):
		req.Repo = in.Repository
		return nil, done, nil
	case s.Local == nil:
		return nil, done, errors.Remedy(errors.Newf(errors.Invalid, "%q: this server has no access to directories of "+
			"the user", in.Repository), "give the address of the repository, or none")
	}
	cargo, err := s.Local.Carry(ctx, in.Repository, false, req)
	if err != nil || cargo == nil {
		return nil, done, err
	}
	tell("sending the repository")
	return cargo.Notes, cargo.Close, cargo.Send(ctx, s.Client, req)
}

// fromEnvironment makes the branch of an environment the repository of a session.
func (s agentTools) fromEnvironment(ctx context.Context, name string, req *api.SessionRequest) error {
	at, err := s.enter(ctx, name)
	if err == nil {
		err = s.save(ctx, at)
	}
	if err != nil {
		return err
	}
	const file = "/tmp/.harvest-bundle"
	if _, err := s.run(ctx, at.box.ID, script{name: "bundle", env: map[string]string{"DIR": at.dir, "BUNDLE": file,
		"WHOLE": "yes"}}); err != nil {
		return err
	}
	bundle, err := s.download(ctx, at, file)
	if err != nil {
		return err
	}
	defer os.Remove(bundle)
	content, err := os.Open(bundle)
	if err != nil {
		return errors.Explainf(err, errors.Unavailable, "cannot read a temporary file: %v", err)
	}
	defer content.Close()
	up, err := s.Client.Upload(ctx, content)
	req.BundleID, req.Branch, req.Name = up.ID, branchOf(at), git.DirName(at.dir[strings.LastIndexByte(at.dir, '/')+1:])
	return err
}

func (s agentTools) agentSend(ctx context.Context, _ progress, in sendIn) (answer, error) {
	if in.Stop {
		if err := s.Client.StopSession(ctx, in.Session); err != nil && (in.Prompt == "" ||
			errors.KindOf(err) != errors.Conflict) {
			return answer{}, err
		}
		if in.Prompt == "" {
			return answer{text: "Stopped the turn of the agent."}, nil
		}
	}
	if in.Question != "" {
		err := s.Client.Answer(ctx, in.Session, in.Question, api.AnswerRequest{Allow: in.Allow || len(in.Answers) > 0,
			Answers: in.Answers, Message: in.Prompt})
		return answer{text: "Sent the answer."}, err
	}
	queued, err := s.Client.Send(ctx, in.Session, in.Prompt)
	if err != nil {
		return answer{}, err
	}
	return answer{text: "Sent the prompt.", notes: []string{fmt.Sprintf("%d turns are before it", queued.Position),
		fmt.Sprintf(`for the reply: agent_wait {"session": %q}`, in.Session)}}, nil
}

// look is the interval at which agent_wait looks at the session.
const lookEvery = time.Second

func (s agentTools) agentWait(ctx context.Context, tell progress, in waitIn) (answer, error) {
	limit := in.TimeoutSeconds
	if limit == 0 {
		limit = waitLimit
	}
	if limit < 0 || limit > maxWaitLimit {
		return answer{}, errors.Newf(errors.Invalid, "timeout_seconds: %g is not from 0 to %d", limit, maxWaitLimit)
	}
	follow, stop := context.WithCancel(ctx)
	defer stop()
	go s.watch(follow, in.Session, tell)
	begun := time.Now()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		a, over, err := s.replied(ctx, in.Session)
		if err != nil || over {
			return a, err
		}
		if time.Since(begun).Seconds() >= limit {
			return answer{text: "The agent is still at work.", notes: []string{fmt.Sprintf(
				`to wait longer: agent_wait {"session": %q}`, in.Session)}}, nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return answer{}, errors.Newf(errors.Canceled, "the call was cancelled; the agent continues")
		}
	}
}

// watch reports the work of an agent until ctx ends. Meanwhile the agent's questions wait for an answer.
func (s agentTools) watch(ctx context.Context, session string, tell progress) {
	for e, err := range s.Client.Events(ctx, client.Follow{Stream: session, Tail: -1, Attended: true}) {
		if err != nil {
			return
		}
		var data api.SessionEvent
		if json.Unmarshal(e.Data, &data) != nil {
			continue
		}
		switch e.Type {
		case "tool.started":
			tell(data.Tool)
		case "message.completed":
			tell(firstLine(data.Text))
		case "session.status_changed", "session.stage":
			tell(e.Type)
		}
	}
}

// replied returns the reply of an agent, or its question, once it waits.
func (s agentTools) replied(ctx context.Context, ref string) (a answer, over bool, err error) {
	session, err := s.Client.Session(ctx, ref)
	if err != nil {
		return a, false, err
	}
	messages, err := s.Client.Messages(ctx, ref)
	if err != nil {
		return a, false, err
	}
	if !session.Ended.IsZero() && session.Reason != "" && len(messages) == 0 {
		return a, false, errors.Newf(errors.Gone, "session %s has ended: %s", session.ID, session.Reason)
	}
	var last api.Message
	for _, m := range messages {
		switch m.State {
		case "queued", "running":
			if session.Ended.IsZero() {
				return s.asked(ctx, session)
			}
		}
		last = m
	}
	a = answer{text: last.Reply, failed: last.State == "failed", notes: []string{"session " + session.ID,
		"the turn is " + last.State, fmt.Sprintf("cost $%.2f", session.Usage.Cost),
		"its branch is " + session.WorkBranch}}
	if last.State == "failed" && last.Reply == "" {
		a.text = "error: the turn failed: " + session.Reason
	}
	if len(a.text) > pageBytes {
		a.text = a.text[:pageBytes] + fmt.Sprintf("\n… %d bytes left out; the whole reply is the resource "+
			"harvest://sessions/%s/transcript", len(a.text)-pageBytes, session.ID)
	}
	return a, true, nil
}

// asked returns the question for which an agent waits; over is false if there is none.
func (s agentTools) asked(ctx context.Context, session api.Session) (a answer, over bool, err error) {
	items, err := s.Client.Inbox(ctx, false)
	if err != nil {
		return a, false, err
	}
	for _, item := range items {
		if item.Session != session.ID || item.State != api.InboxWaiting || item.QuestionID == "" {
			continue
		}
		var b strings.Builder
		fmt.Fprintf(&b, "The agent waits for an answer: %s\n%s\n", item.What, item.Text)
		for _, q := range item.Questions {
			fmt.Fprintf(&b, "question: %s\n", q.Text)
			for _, o := range q.Options {
				fmt.Fprintf(&b, "- %s %s\n", o.Label, o.Description)
			}
		}
		return answer{text: b.String(), notes: []string{fmt.Sprintf(`to answer: agent_send {"session": %q, `+
			`"question": %q, "allow": true or "answers": {…}}`, session.ID, item.QuestionID)}}, true, nil
	}
	return a, false, nil
}
