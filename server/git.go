package server

import (
	"cmp"
	"net/http"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/git"
	"github.com/RelevanceAI/harvest/memory"
	"github.com/RelevanceAI/harvest/session"
)

const queryRepository = "repository: name of the repository, if the session has several " +
	"(for diff and bundle, NAME/PATH is a submodule)"

// gitRoutes returns the routes for repositories of sessions and memories of repositories.
func (s *Server) gitRoutes() []route {
	const read, write = account.Read, account.Write
	return []route{
		{method: "GET", path: api.SessionDiff, handle: s.sessionDiff, scope: read,
			summary: "Get the agent's changes as a patch", query: queryRepository,
			rawOut: api.TypePatch, status: 200},
		{method: "GET", path: api.SessionBundle, handle: s.sessionBundle, scope: read,
			summary: "Get the session's branch as a git bundle", query: queryRepository,
			rawOut: api.TypeBundle, status: 200},
		{method: "POST", path: api.SessionSync, handle: s.syncSession, scope: write,
			summary: "Rebase the session's branch onto new upstream commits; if that fails, it is unchanged",
			in:      api.SyncRequest{}, out: api.GitEvent{}, status: 200},
		{method: "POST", path: api.SessionPush, handle: s.pushSession, scope: write,
			summary: "Push the session's branch to its origin", in: api.PushRequest{},
			out: api.GitEvent{}, status: 200},
		{method: "POST", path: api.SessionPull, handle: s.openPull, scope: write,
			summary: "Push the session's branch, and open or update a pull request for it on GitHub",
			in:      api.PullRequestRequest{}, out: api.PullRequest{}, status: 200},

		{method: "GET", path: api.Memories, handle: s.listMemories, scope: read,
			summary: "List the repositories that have memory entries", query: queryPage,
			out: api.List[api.Memory]{}, status: 200},
		{method: "GET", path: api.Memoried, handle: s.getMemory, scope: read, summary: "Get the memory of a repository",
			out: api.MemoryGraph{}, status: 200},
		{method: "DELETE", path: api.Memoried, handle: s.deleteMemory, scope: write,
			summary: "Delete the memory of a repository", status: 204},
		{method: "PUT", path: api.MemoryEntity, handle: s.putEntity, scope: write,
			summary: "Store a memory entry; an earlier one of that name is replaced",
			in:      api.EntityRequest{}, status: 204},
		{method: "DELETE", path: api.MemoryEntity, handle: s.deleteEntity, scope: write,
			summary: "Delete a memory entry and its relations", status: 204},
	}
}

func (s *Server) syncSession(w http.ResponseWriter, r *http.Request) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	var req api.SyncRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	done, err := m.Sync(r.Context(), accountOf(r.Context()), r.PathValue("id"), session.Sync(req))
	return gitOut(w, done, err)
}

func (s *Server) pushSession(w http.ResponseWriter, r *http.Request) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	var req api.PushRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	done, err := m.Push(r.Context(), accountOf(r.Context()), r.PathValue("id"), req.Repository)
	return gitOut(w, done, err)
}

func gitOut(w http.ResponseWriter, e git.Event, err error) error {
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, api.GitEvent(e))
}

func (s *Server) openPull(w http.ResponseWriter, r *http.Request) error {
	m, err := s.sessions()
	if err != nil {
		return err
	}
	var req api.PullRequestRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	made, err := m.OpenPull(r.Context(), accountOf(r.Context()), r.PathValue("id"), session.PullRequest(req))
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, api.PullRequest{Number: made.Number, URL: made.URL, Draft: made.Draft,
		New: made.New, Updated: made.Updated, Summary: made.Summary, Note: made.Note})
}

// memories returns the memories of the caller.
func (s *Server) memories(r *http.Request) memory.Store { return memory.Store{Volumes: s.volumes(r)} }

func (s *Server) listMemories(w http.ResponseWriter, r *http.Request) error {
	found, err := s.memories(r).List(r.Context())
	if err != nil {
		return err
	}
	return paged(s, w, r, found, false, func(v memory.Info) string { return v.Name }, func(v memory.Info) api.Memory {
		return api.Memory{Name: v.Name, Size: v.Size, Created: v.Created.UTC()}
	})
}

func (s *Server) getMemory(w http.ResponseWriter, r *http.Request) error {
	g, err := s.memories(r).Get(r.Context(), r.PathValue("name"))
	if err != nil {
		return err
	}
	out := api.MemoryGraph{Entities: []api.Entity{}, Relations: []api.Relation{}}
	for _, e := range g.Entities {
		out.Entities = append(out.Entities, api.Entity(e))
	}
	for _, e := range g.Relations {
		out.Relations = append(out.Relations, api.Relation(e))
	}
	return respond(w, http.StatusOK, out)
}

func (s *Server) deleteMemory(w http.ResponseWriter, r *http.Request) error {
	return noContent(w, s.memories(r).Delete(r.Context(), r.PathValue("name")))
}

func (s *Server) putEntity(w http.ResponseWriter, r *http.Request) error {
	var req api.EntityRequest
	if err := decodeBody(w, r, 2*api.MaxBody, &req); err != nil {
		return err
	}
	if len(req.Observations) == 0 {
		return errors.Remedy(errors.Newf(errors.Invalid, "memory entry: no observations"),
			"give observations, which are sentences")
	}
	return noContent(w, s.memories(r).Set(r.Context(), r.PathValue("name"),
		memory.Entity{Name: r.PathValue("entity"), Type: cmp.Or(req.Type, "note"), Observations: req.Observations}))
}

func (s *Server) deleteEntity(w http.ResponseWriter, r *http.Request) error {
	return noContent(w, s.memories(r).Remove(r.Context(), r.PathValue("name"), r.PathValue("entity")))
}

// noContent responds to a request without a result.
func noContent(w http.ResponseWriter, err error) error {
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}
