// Package sessions serves sessions of agents, their repositories, and the memories of repositories.
package sessions

import (
	"cmp"
	"encoding/json"
	"net/http"
	"slices"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/volumes"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// Service serves the routes for sessions, their repositories, and the memories of repositories.
type Service struct {
	edge.Settings
	Sessions *session.Manager // nil: not supported
	Volumes  volume.Provider  // have the memories
	Events   edge.Handler     // follows the events of a session

	warming edge.Limits // announced sessions, by account
}

// Routes returns one row per route.
func (s *Service) Routes() []edge.Route {
	there := s.Sessions != nil
	return slices.Concat(edge.Only(there, "sessions", s.sessionRoutes()), []edge.Route{
		{Method: "GET", Path: api.SessionEvents, Handle: s.Events, Scope: account.Read,
			Summary: "Follow the events of a session",
			Query: "after: only events after this id, as with the header Last-Event-ID; tail: only the last N " +
				"events, and new ones; attended: true if a person reads the events and can answer questions",
			RawOut: api.TypeEvents, Status: 200},
	}, edge.Only(there, "sessions", s.mcpRoutes()), edge.Only(there, "sessions", s.uploadRoutes()),
		edge.Only(there, "sessions", s.gitRoutes()), s.memoryRoutes())
}

func (s *Service) sessionRoutes() []edge.Route {
	const read, write, exec = account.Read, account.Write, account.Exec
	return []edge.Route{
		{Method: "POST", Path: api.Sessions, Handle: s.createSession, Scope: exec,
			Summary: "Create a session; it is prepared in the background", In: api.SessionRequest{},
			Out: api.Session{}, Status: 201},
		{Method: "POST", Path: api.SessionsWarm, Handle: s.warmSession, Scope: exec,
			In: api.SessionRequest{}, Status: 204,
			Summary: "Announce a session that will probably be created, so that the server can make one like it " +
				"ahead; at most one a second"},
		{Method: "GET", Path: api.Sessions, Handle: s.listSessions, Scope: read, Summary: "List sessions, newest first",
			Query: edge.QueryPage + "; all: also sessions that have ended", Out: api.List[api.Session]{}, Status: 200},
		{Method: "GET", Path: api.Sessioned, Handle: s.getSession, Scope: read, Summary: "Get a session",
			Out: api.Session{}, Status: 200},
		{Method: "PATCH", Path: api.Sessioned, Handle: s.changeSession, Scope: exec,
			Summary: "Change a session: its options, of which limits hold at once and the others from the next " +
				"prompt; or, also after its end, its title, and whether lists have it at the top or leave it out",
			In: api.SessionChange{}, Out: api.Session{}, Status: 200},
		{Method: "DELETE", Path: api.Sessioned, Handle: s.endSession, Scope: write,
			Summary: "End a session and its sandbox", Status: 204,
			Query: "discard: false to refuse (409) if changes would be lost: those that no client has taken, " +
				"and those in submodules, other work trees or other branches"},
		{Method: "POST", Path: api.SessionMessages, Handle: s.sendMessage, Scope: exec, Summary: "Queue a prompt",
			In: api.MessageRequest{}, Out: api.QueuedMessage{}, Status: 202},
		{Method: "GET", Path: api.SessionMessages, Handle: s.listMessages, Scope: read,
			Summary: "List a session's prompts, oldest first", Query: edge.QueryPage,
			Out: api.List[api.Message]{}, Status: 200},
		{Method: "DELETE", Path: api.SessionMessage, Handle: s.cancelMessage, Scope: exec,
			Summary: "Cancel a prompt that is queued or held", Status: 204},
		{Method: "POST", Path: api.SessionStop, Handle: s.stopSession, Scope: exec,
			Summary: "Interrupt the current turn", Status: 204,
			Query: "hold: true to hold the queued prompts, which are then sent after a release"},
		{Method: "POST", Path: api.SessionRelease, Handle: s.releaseMessages, Scope: exec,
			Summary: "Queue the prompts that are held", Status: 204, Query: "message: only this prompt"},
		{Method: "POST", Path: api.SessionAnswer, Handle: s.answerSession, Scope: exec,
			Summary: "Answer a question of the agent", In: api.AnswerRequest{}, Status: 204},
	}
}

// sessionBody is api.SessionRequest with the sandbox undecoded: package fleet reports its errors.
type sessionBody struct {
	api.SessionRequest
	Sandbox json.RawMessage `json:"sandbox"`
}

func (s *Service) createSession(w http.ResponseWriter, r *http.Request) error {
	in, err := sessionRequest(w, r, api.MaxInline)
	if err != nil {
		return err
	}
	made, err := s.Sessions.Create(r.Context(), edge.Account(r), in)
	return edge.Send(w, http.StatusCreated, sessionOut, made, err)
}

// warmRate is how often an account may announce a session, per second: page and terminal do so once per form.
const warmRate = 1

func (s *Service) warmSession(w http.ResponseWriter, r *http.Request) error {
	if err := s.warming.Allow(w, edge.Account(r), warmRate); err != nil {
		return err
	}
	in, err := sessionRequest(w, r, api.MaxBody)
	if err != nil {
		return err
	}
	return edge.NoContent(w, s.Sessions.Warm(r.Context(), edge.Account(r), in))
}

// sessionRequest decodes the body of a request for a session, of at most most bytes.
func sessionRequest(w http.ResponseWriter, r *http.Request, most int64) (in session.Request, err error) {
	data, err := edge.Body(w, r, most)
	if err != nil {
		return in, err
	}
	return Decode(data)
}

// Decode decodes an api.SessionRequest.
func Decode(data []byte) (in session.Request, err error) {
	var req sessionBody
	if err := edge.Decode(data, &req); err != nil {
		return in, err
	}
	in = session.Request{
		Repo: req.Repo, Branch: req.Branch, Depth: req.Depth, LFS: req.LFS, Submodules: req.Submodules, Name: req.Name,
		Identity:  req.Identity,
		GitSecret: req.GitSecret, Shallow: req.Shallow, Subdir: req.Subdir,
		Bundle: req.Bundle, BundleID: req.BundleID,
		Continues: req.Continues, Agent: req.Agent, Release: req.AgentVersion, Model: req.Model, Effort: req.Effort,
		Prompt:   req.Prompt,
		Approval: agent.Approval(req.Approval), Limits: records.Limits(req.Limits), MCP: req.MCP,
	}
	for _, r := range req.More {
		in.More = append(in.More, workspace.RepositoryRequest{URL: r.Repo, Branch: r.Branch, Depth: r.Depth, LFS: r.LFS,
			Submodules: r.Submodules})
	}
	if u := req.Uncommitted; u != nil {
		in.Uncommitted = workspace.Uncommitted{Patch: u.Patch, Author: workspace.Author(u.Author)}
		in.PatchID = u.PatchID
	}
	if req.Author != nil {
		in.Author = workspace.Author(*req.Author)
	}
	switch req.Credentials {
	case "", "session":
	case "turn":
		in.PerTurn = true
	default:
		return in, errors.Remedy(errors.Newf(errors.Invalid, "invalid credentials: %.80q", req.Credentials),
			"use session or turn")
	}
	if len(req.Sandbox) > 0 {
		in.Sandbox, err = spec.Decode(req.Sandbox)
	}
	return in, err
}

func (s *Service) listSessions(w http.ResponseWriter, r *http.Request) error {
	filter := session.Filter{Text: r.URL.Query().Get("q")}
	for name, to := range map[string]*bool{"all": &filter.All, "archived": &filter.Archived, "pinned": &filter.Pinned} {
		var err error
		if *to, err = edge.Flag(r, name); err != nil {
			return err
		}
	}
	found, err := s.Sessions.List(r.Context(), edge.Account(r), filter)
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, found, true,
		func(v records.Session) string { return cmp.Or(v.Place, v.ID) }, sessionOut)
}

func (s *Service) getSession(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Sessions.Get(r.Context(), edge.Account(r), r.PathValue("id"))
	return edge.Send(w, http.StatusOK, sessionOut, found, err)
}

func (s *Service) changeSession(w http.ResponseWriter, r *http.Request) error {
	var req api.SessionChange
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	changed, err := session.Update(r.Context(), s.Sessions, edge.Account(r), r.PathValue("id"), session.Change{
		Model: req.Model, Effort: req.Effort, Approval: (*agent.Approval)(req.Approval),
		Limits: (*records.Limits)(req.Limits), Title: req.Title, Pinned: req.Pinned, Archived: req.Archived})
	return edge.Send(w, http.StatusOK, sessionOut, changed, err)
}

func (s *Service) endSession(w http.ResponseWriter, r *http.Request) error {
	end := s.Sessions.End
	if r.URL.Query().Get("discard") == "false" {
		end = s.Sessions.EndKeeping
	}
	return edge.NoContent(w, end(r.Context(), edge.Account(r), r.PathValue("id")))
}

func (s *Service) stopSession(w http.ResponseWriter, r *http.Request) error {
	hold, err := edge.Flag(r, "hold")
	if err != nil {
		return err
	}
	stop := s.Sessions.Stop
	if hold {
		stop = s.Sessions.StopHolding
	}
	return edge.NoContent(w, stop(r.Context(), edge.Account(r), r.PathValue("id")))
}

func (s *Service) releaseMessages(w http.ResponseWriter, r *http.Request) error {
	return edge.NoContent(w,
		s.Sessions.Release(r.Context(), edge.Account(r), r.PathValue("id"), r.URL.Query().Get("message")))
}

func (s *Service) cancelMessage(w http.ResponseWriter, r *http.Request) error {
	return edge.NoContent(w,
		s.Sessions.Cancel(r.Context(), edge.Account(r), r.PathValue("id"), r.PathValue("message")))
}

func (s *Service) answerSession(w http.ResponseWriter, r *http.Request) error {
	var req api.AnswerRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	return edge.NoContent(w, s.Sessions.Answer(r.Context(), edge.Account(r), r.PathValue("id"),
		r.PathValue("question"), agent.Answer(req)))
}

func (s *Service) sendMessage(w http.ResponseWriter, r *http.Request) error {
	var req api.MessageRequest
	if err := edge.DecodeBody(w, r, 6*records.MaxPrompt+api.MaxBody, &req); err != nil {
		return err
	}
	if req.Hold {
		msg, err := s.Sessions.Hold(r.Context(), edge.Account(r), r.PathValue("id"), req.Prompt)
		return edge.Send(w, http.StatusAccepted, func(m records.Message) api.QueuedMessage {
			return api.QueuedMessage{MessageID: m.ID}
		}, msg, err)
	}
	msg, position, err := s.Sessions.Send(r.Context(), edge.Account(r), r.PathValue("id"), req.Prompt)
	if err != nil {
		return err
	}
	return edge.Respond(w, http.StatusAccepted, api.QueuedMessage{MessageID: msg.ID, Position: position})
}

func (s *Service) listMessages(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Sessions.Messages(r.Context(), edge.Account(r), r.PathValue("id"))
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, found, false, func(v records.Message) string { return v.ID }, messageOut)
}

func (s *Service) sessionDiff(w http.ResponseWriter, r *http.Request) error {
	patch, err := s.Sessions.Diff(r.Context(), edge.Account(r), r.PathValue("id"), r.URL.Query().Get("repository"))
	if err == nil {
		w.Header().Set(api.HeaderChanges, session.Digest(patch))
	}
	return edge.SendBytes(w, api.TypePatch, patch, err)
}

func (s *Service) sessionBundle(w http.ResponseWriter, r *http.Request) error {
	bundle, changes, err := s.Sessions.Bundle(r.Context(), edge.Account(r), r.PathValue("id"),
		r.URL.Query().Get("repository"))
	if err == nil {
		w.Header().Set(api.HeaderChanges, changes)
	}
	return edge.SendBytes(w, api.TypeBundle, bundle, err)
}

// sessionTaken records that the client has changes of the agent.
func (s *Service) sessionTaken(w http.ResponseWriter, r *http.Request) error {
	var req api.TakenRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	return edge.NoContent(w, s.Sessions.Taken(r.Context(), edge.Account(r), r.PathValue("id"), req.Repository,
		req.Changes))
}

func sessionOut(s records.Session) api.Session {
	repositories := []api.Repository{}
	for _, r := range s.Repositories() {
		repositories = append(repositories, api.Repository{Name: r.Name(), Repo: r.URL, Branch: r.Branch, Dir: r.Dir,
			Base: r.Base, Pull: r.Pull})
	}
	next := s.NextOptions()
	return api.Session{
		ID: s.ID, Title: s.Title, Pinned: s.Pinned, Archived: s.Archived,
		Agent: s.Agent, AgentVersion: s.Release, Model: next.Model, Effort: next.Effort,
		Approval: string(next.Approval), Repo: s.Repo, Continues: s.Continues,
		Branch: s.Branch, WorkBranch: s.WorkBranch(), Base: s.Base, Dir: s.Dir, Repositories: repositories,
		Memory:    volumes.Memory(s.Repositories()[0]),
		SandboxID: s.SandboxID, Conversation: s.Conversation, Limits: api.SessionLimits(s.Limits),
		Status: string(s.Status), Reason: s.Reason,
		Turns: s.Turns, Usage: api.Usage(s.Usage), Created: s.Created.UTC(), Active: s.Active.UTC(),
		Ended: s.Ended.UTC(),
	}
}

func messageOut(m records.Message) api.Message {
	return api.Message{
		ID: m.ID, Prompt: m.Prompt, State: string(m.State), Reply: m.Reply, Created: m.Created.UTC(),
		Started: m.Started.UTC(), Ended: m.Ended.UTC(),
		Usage: api.Usage(m.Usage), Own: m.Own, Purpose: m.Purpose, Note: m.Note,
	}
}
