package sessions

import (
	"cmp"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/session"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/memory"
	"github.com/RelevanceAI/harvest/internal/session/pulls"
)

const queryRepository = "repository: name of the repository, if the session has several " +
	"(for diff and bundle, NAME/PATH is a submodule)"

// gitRoutes returns the routes for repositories of sessions.
func (s *Service) gitRoutes() []edge.Route {
	const read, write = account.Read, account.Write
	return []edge.Route{
		{Method: "GET", Path: api.SessionDiff, Handle: s.sessionDiff, Scope: read,
			Summary: "Get the agent's changes as a patch", Query: queryRepository,
			RawOut: api.TypePatch, Status: 200},
		{Method: "GET", Path: api.SessionBundle, Handle: s.sessionBundle, Scope: read,
			Summary: "Get the session's branch as a git bundle", Query: queryRepository,
			RawOut: api.TypeBundle, Status: 200},
		{Method: "POST", Path: api.SessionTaken, Handle: s.sessionTaken, Scope: write,
			Summary: "Record that the client has the changes of a diff or a bundle, by its header " +
				api.HeaderChanges + ": the session can end without a warning", In: api.TakenRequest{}, Status: 204},
		{Method: "POST", Path: api.SessionSync, Handle: s.syncSession, Scope: write,
			Summary: "Rebase the session's branch onto new upstream commits; if that fails, it is unchanged",
			In:      api.SyncRequest{}, Out: api.GitEvent{}, Status: 200},
		{Method: "POST", Path: api.SessionPush, Handle: s.pushSession, Scope: write,
			Summary: "Push the session's branch to its origin", In: api.PushRequest{},
			Out: api.GitEvent{}, Status: 200},
		{Method: "POST", Path: api.SessionPull, Handle: s.openPull, Scope: write,
			Summary: "Push the session's branch, and open or update a pull request for it on GitHub",
			In:      api.PullRequestRequest{}, Out: api.PullRequest{}, Status: 200},
	}
}

// memoryRoutes returns the routes for memories of repositories.
func (s *Service) memoryRoutes() []edge.Route {
	const read, write = account.Read, account.Write
	return []edge.Route{
		{Method: "GET", Path: api.Memories, Handle: s.listMemories, Scope: read,
			Summary: "List the repositories that have memory entries", Query: edge.QueryPage,
			Out: api.List[api.Memory]{}, Status: 200},
		{Method: "GET", Path: api.Memoried, Handle: s.getMemory, Scope: read, Summary: "Get the memory of a repository",
			Out: api.MemoryGraph{}, Status: 200},
		{Method: "DELETE", Path: api.Memoried, Handle: s.deleteMemory, Scope: write,
			Summary: "Delete the memory of a repository", Status: 204},
		{Method: "POST", Path: api.MemoryMove, Handle: s.moveMemory, Scope: write,
			Summary: "Add a memory to another one, and delete the first", In: api.MoveMemoryRequest{}, Status: 204},
		{Method: "PUT", Path: api.MemoryEntity, Handle: s.putEntity, Scope: write,
			Summary: "Store a memory entry; an earlier one of that name is replaced",
			In:      api.EntityRequest{}, Status: 204},
		{Method: "DELETE", Path: api.MemoryEntity, Handle: s.deleteEntity, Scope: write,
			Summary: "Delete a memory entry and its relations", Status: 204},
	}
}

func (s *Service) syncSession(w http.ResponseWriter, r *http.Request) error {
	var req api.SyncRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	done, err := s.Sessions.Sync(r.Context(), edge.Account(r), r.PathValue("id"), session.Sync(req))
	return edge.Send(w, http.StatusOK, gitOut, done, err)
}

func (s *Service) pushSession(w http.ResponseWriter, r *http.Request) error {
	var req api.PushRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	done, err := s.Sessions.Push(r.Context(), edge.Account(r), r.PathValue("id"), req.Repository)
	return edge.Send(w, http.StatusOK, gitOut, done, err)
}

func gitOut(e git.Event) api.GitEvent { return api.GitEvent(e) }

func (s *Service) openPull(w http.ResponseWriter, r *http.Request) error {
	var req api.PullRequestRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	made, err := s.Sessions.OpenPull(r.Context(), edge.Account(r), r.PathValue("id"), pulls.Request(req))
	if err != nil {
		return err
	}
	return edge.Respond(w, http.StatusOK, api.PullRequest{Number: made.Number, URL: made.URL, Draft: made.Draft,
		New: made.New, Updated: made.Updated, Summary: made.Summary, Note: made.Note})
}

// memories returns the memories of the caller.
func (s *Service) memories(r *http.Request) memory.Store {
	return memory.Store{Volumes: volume.Of(s.Volumes, account.Owner(edge.Account(r)))}
}

func (s *Service) listMemories(w http.ResponseWriter, r *http.Request) error {
	found, err := s.memories(r).List(r.Context())
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, found, false, func(v memory.Info) string { return v.Name },
		func(v memory.Info) api.Memory {
			return api.Memory{Name: v.Name, Size: v.Size, Created: v.Created.UTC()}
		})
}

func (s *Service) getMemory(w http.ResponseWriter, r *http.Request) error {
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
	return edge.Respond(w, http.StatusOK, out)
}

func (s *Service) deleteMemory(w http.ResponseWriter, r *http.Request) error {
	return edge.NoContent(w, s.memories(r).Delete(r.Context(), r.PathValue("name")))
}

func (s *Service) moveMemory(w http.ResponseWriter, r *http.Request) error {
	var req api.MoveMemoryRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	return edge.NoContent(w, s.memories(r).Move(r.Context(), r.PathValue("name"), req.To))
}

func (s *Service) putEntity(w http.ResponseWriter, r *http.Request) error {
	var req api.EntityRequest
	if err := edge.DecodeBody(w, r, 2*api.MaxBody, &req); err != nil {
		return err
	}
	if len(req.Observations) == 0 {
		return errors.Remedy(errors.Newf(errors.Invalid, "memory entry: no observations"),
			"give at least one sentence as an observation")
	}
	return edge.NoContent(w, s.memories(r).Set(r.Context(), r.PathValue("name"),
		memory.Entity{Name: r.PathValue("entity"), Type: cmp.Or(req.Type, "note"), Observations: req.Observations}))
}

func (s *Service) deleteEntity(w http.ResponseWriter, r *http.Request) error {
	return edge.NoContent(w, s.memories(r).Remove(r.Context(), r.PathValue("name"), r.PathValue("entity")))
}
