package server

import (
	"cmp"
	"encoding/json"
	"net/http"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/session"
)

func (s *Server) sessionRoutes() []route {
	const read, write, exec = account.Read, account.Write, account.Exec
	return []route{
		{method: "POST", path: api.Sessions, handle: s.createSession, scope: exec,
			summary: "Create a session; it is prepared in the background", in: api.SessionRequest{},
			out: api.Session{}, status: 201},
		{method: "POST", path: api.SessionsWarm, handle: s.warmSession, scope: exec,
			in: api.SessionRequest{}, status: 204,
			summary: "Announce a session that will probably be created, so that the server can make one like it ahead; at most one a second"},
		{method: "GET", path: api.Sessions, handle: s.listSessions, scope: read, summary: "List sessions, newest first",
			query: queryPage + "; all: also sessions that have ended", out: api.List[api.Session]{}, status: 200},
		{method: "GET", path: api.Sessioned, handle: s.getSession, scope: read, summary: "Get a session",
			out: api.Session{}, status: 200},
		{method: "DELETE", path: api.Sessioned, handle: s.endSession, scope: write,
			summary: "End a session and its sandbox", status: 204,
			query: "discard: false to refuse (409) if changes in submodules, other work trees or other branches would be lost"},
		{method: "POST", path: api.SessionMessages, handle: s.sendMessage, scope: exec, summary: "Queue a prompt",
			in: api.MessageRequest{}, out: api.QueuedMessage{}, status: 202},
		{method: "GET", path: api.SessionMessages, handle: s.listMessages, scope: read,
			summary: "List a session's prompts, oldest first", query: queryPage,
			out: api.List[api.Message]{}, status: 200},
		{method: "DELETE", path: api.SessionMessage, handle: s.cancelMessage, scope: exec,
			summary: "Remove a prompt from the queue", status: 204},
		{method: "POST", path: api.SessionStop, handle: s.stopSession, scope: exec,
			summary: "Interrupt the current turn", status: 204},
		{method: "POST", path: api.SessionAnswer, handle: s.answerSession, scope: exec,
			summary: "Answer a question of the agent", in: api.AnswerRequest{}, status: 204},
		{method: "GET", path: api.SessionEvents, handle: s.streamEvents, scope: read,
			summary: "Follow the events of a session",
			query:   "after: only events after this id, as with the header Last-Event-ID; tail: only the last N events, and new ones; attended: true if a person reads the events and can answer questions",
			rawOut:  api.TypeEvents, status: 200},
	}
}

// sessions returns the server's sessions, or Unsupported.
func (s *Server) sessions() (*session.Manager, error) {
	if s.opts.Sessions == nil {
		return nil, lacks("sessions")
	}
	return s.opts.Sessions, nil
}

// sessionBody is api.SessionRequest with the sandbox undecoded: package sandbox reports its errors.
type sessionBody struct {
	api.SessionRequest
	Sandbox json.RawMessage `json:"sandbox"`
}

func (s *Server) createSession(w http.ResponseWriter, r *http.Request) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	in, err := sessionRequest(w, r, api.MaxBundle/3*4+api.MaxBody)
	if err != nil {
		return err
	}
	made, err := m.Create(r.Context(), accountOf(r.Context()), in)
	if err != nil {
		return err
	}
	return respond(w, http.StatusCreated, sessionOut(made))
}

// warmRate is how often an account may announce a session, per second: page and terminal do so once per form.
const warmRate = 1

func (s *Server) warmSession(w http.ResponseWriter, r *http.Request) error {
	if err := s.warmLimits.allow(w, accountOf(r.Context()), warmRate); err != nil {
		return err
	}
	in, err := sessionRequest(w, r, api.MaxBody)
	if err != nil {
		return err
	}
	return s.onSession(w, func(m *session.Manager) error { return m.Warm(r.Context(), accountOf(r.Context()), in) })
}

// sessionRequest decodes the body of a request for a session, of at most most bytes.
func sessionRequest(w http.ResponseWriter, r *http.Request, most int64) (in session.Request, err error) {
	var req sessionBody
	if err := decodeBody(w, r, most, &req); err != nil {
		return in, err
	}
	in = session.Request{
		Repo: req.Repo, Branch: req.Branch, Depth: req.Depth, LFS: req.LFS, Submodules: req.Submodules, Name: req.Name,
		GitSecret: req.GitSecret, Shallow: req.Shallow, Subdir: req.Subdir,
		Bundle: req.Bundle, Continues: req.Continues, Agent: req.Agent, Model: req.Model, Prompt: req.Prompt,
		Approval: agent.Approval(req.Approval), Limits: session.Limits(req.Limits), MCP: req.MCP,
	}
	for _, r := range req.More {
		in.More = append(in.More, session.RepositoryRequest{URL: r.Repo, Branch: r.Branch, Depth: r.Depth, LFS: r.LFS,
			Submodules: r.Submodules})
	}
	if u := req.Uncommitted; u != nil {
		in.Uncommitted = session.Uncommitted{Patch: u.Patch, Author: session.Author(u.Author)}
	}
	if req.Author != nil {
		in.Author = session.Author(*req.Author)
	}
	if len(req.Sandbox) > 0 {
		in.Sandbox, err = sandbox.DecodeRequest(req.Sandbox)
	}
	return in, err
}

func (s *Server) listSessions(w http.ResponseWriter, r *http.Request) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	all, err := flag(r, "all")
	if err != nil {
		return err
	}
	found, err := m.List(r.Context(), accountOf(r.Context()), !all, "", 0)
	if err != nil {
		return err
	}
	return paged(s, w, r, found, true, func(v session.Session) string { return cmp.Or(v.Place, v.ID) }, sessionOut)
}

func (s *Server) getSession(w http.ResponseWriter, r *http.Request) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	found, err := m.Get(r.Context(), accountOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, sessionOut(found))
}

// onSession runs a request without a result.
func (s *Server) onSession(w http.ResponseWriter, do func(m *session.Manager) error) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	if err := do(m); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) endSession(w http.ResponseWriter, r *http.Request) error {
	return s.onSession(w, func(m *session.Manager) error {
		if r.URL.Query().Get("discard") == "false" {
			return m.EndKeeping(r.Context(), accountOf(r.Context()), r.PathValue("id"))
		}
		return m.End(r.Context(), accountOf(r.Context()), r.PathValue("id"))
	})
}

func (s *Server) stopSession(w http.ResponseWriter, r *http.Request) error {
	return s.onSession(w, func(m *session.Manager) error {
		return m.Stop(r.Context(), accountOf(r.Context()),
			r.PathValue("id"))
	})
}

func (s *Server) cancelMessage(w http.ResponseWriter, r *http.Request) error {
	return s.onSession(w, func(m *session.Manager) error {
		return m.Cancel(r.Context(), accountOf(r.Context()), r.PathValue("id"), r.PathValue("message"))
	})
}

func (s *Server) answerSession(w http.ResponseWriter, r *http.Request) error {
	var req api.AnswerRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	return s.onSession(w, func(m *session.Manager) error {
		return m.Answer(r.Context(), accountOf(r.Context()), r.PathValue("id"), r.PathValue("question"),
			agent.Answer(req))
	})
}

func (s *Server) sendMessage(w http.ResponseWriter, r *http.Request) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	var req api.MessageRequest
	if err := decodeBody(w, r, 6*session.MaxPrompt+api.MaxBody, &req); err != nil {
		return err
	}
	msg, position, err := m.Send(r.Context(), accountOf(r.Context()), r.PathValue("id"), req.Prompt)
	if err != nil {
		return err
	}
	return respond(w, http.StatusAccepted, api.QueuedMessage{MessageID: msg.ID, Position: position})
}

func (s *Server) listMessages(w http.ResponseWriter, r *http.Request) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	found, err := m.Messages(r.Context(), accountOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return paged(s, w, r, found, false, func(v session.Message) string { return v.ID }, messageOut)
}

func (s *Server) sessionDiff(w http.ResponseWriter, r *http.Request) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	patch, err := m.Diff(r.Context(), accountOf(r.Context()), r.PathValue("id"), r.URL.Query().Get("repository"))
	return sendBytes(w, api.TypePatch, patch, err)
}

func (s *Server) sessionBundle(w http.ResponseWriter, r *http.Request) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	bundle, err := m.Bundle(r.Context(), accountOf(r.Context()), r.PathValue("id"), r.URL.Query().Get("repository"))
	return sendBytes(w, api.TypeBundle, bundle, err)
}

// sendBytes responds with data, or with err.
func sendBytes(w http.ResponseWriter, media string, data []byte, err error) error {
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", media)
	w.WriteHeader(http.StatusOK)
	_, err = w.Write(data)
	return errors.Explainf(err, errors.Canceled, "the client has disconnected")
}

func sessionOut(s session.Session) api.Session {
	repositories := []api.Repository{}
	for _, r := range s.Repositories() {
		repositories = append(repositories, api.Repository{Name: r.Name(), Repo: r.URL, Branch: r.Branch, Dir: r.Dir,
			Base: r.Base, Pull: r.Pull})
	}
	return api.Session{
		ID: s.ID, Title: s.Title, Agent: s.Agent, Model: s.Model, Repo: s.Repo, Continues: s.Continues,
		Branch: s.Branch, WorkBranch: s.WorkBranch(), Base: s.Base, Dir: s.Dir, Repositories: repositories,
		SandboxID: s.SandboxID, Conversation: s.Conversation, Limits: api.SessionLimits(s.Limits),
		Status: string(s.Status), Reason: s.Reason,
		Turns: s.Turns, Usage: api.Usage(s.Usage), Created: s.Created.UTC(), Active: s.Active.UTC(),
		Ended: s.Ended.UTC(),
	}
}

func messageOut(m session.Message) api.Message {
	return api.Message{
		ID: m.ID, Prompt: m.Prompt, State: string(m.State), Reply: m.Reply, Created: m.Created.UTC(),
		Started: m.Started.UTC(), Ended: m.Ended.UTC(),
		Usage: api.Usage(m.Usage), Own: m.Own, Purpose: m.Purpose,
	}
}
