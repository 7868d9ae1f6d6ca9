package server

import (
	"encoding/json"
	"net/http"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/repo"
	"github.com/RelevanceAI/harvest/sandbox"
)

func (s *Server) repoRoutes() []route {
	const read, write, exec = account.Read, account.Write, account.Exec
	return []route{
		{method: "POST", path: api.Repos, handle: s.addRepo, scope: exec,
			summary: "Register a repository and build its image", in: api.RepoRequest{},
			out: api.Repo{}, status: 201},
		{method: "GET", path: api.Repos, handle: s.listRepos, scope: read, summary: "List repositories by name",
			query: queryPage, out: api.List[api.Repo]{}, status: 200},
		{method: "GET", path: api.Repoed, handle: s.getRepo, scope: read,
			summary: "Get a repository, by its id or name", out: api.Repo{}, status: 200},
		{method: "DELETE", path: api.Repoed, handle: s.removeRepo, scope: write,
			summary: "Unregister a repository and remove its unused images", status: 204},
		{method: "POST", path: api.RepoBuild, handle: s.startRepo(repo.Asked), scope: exec,
			summary: "Build a repository's image from scratch, or join the current build",
			out:     api.RepoBuilt{}, status: 202},
		{method: "POST", path: api.RepoRefresh, handle: s.startRepo(repo.Refresh), scope: exec,
			summary: "Update a repository's image, or join the current build", out: api.RepoBuilt{}, status: 202},
		{method: "GET", path: api.RepoBuilds, handle: s.listRepoBuilds, scope: read,
			summary: "List the builds of a repository's image, newest first", query: queryPage,
			out: api.List[api.RepoBuilt]{}, status: 200},
		{method: "GET", path: api.RepoEvents, handle: s.streamEvents, scope: read,
			summary: "Follow the builds of a repository's image, with their log",
			query:   "after: only events after this id, as with the header Last-Event-ID; tail: only the last N events, and new ones",
			rawOut:  api.TypeEvents, status: 200},
	}
}

// repos returns the server's repositories, or Unsupported.
func (s *Server) repos() (*repo.Manager, error) {
	if s.opts.Repos == nil {
		return nil, lacks("repositories")
	}
	return s.opts.Repos, nil
}

// repoBody is api.RepoRequest with the sandbox undecoded: package sandbox reports its errors.
type repoBody struct {
	api.RepoRequest
	Sandbox json.RawMessage `json:"sandbox"`
}

func (s *Server) addRepo(w http.ResponseWriter, r *http.Request) error {
	m, err := s.repos()
	if err != nil {
		return err
	}
	var req repoBody
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	recipe := repo.Recipe{Setup: req.Setup, Install: req.Install, Build: req.Build, Test: req.Test, Root: req.Root,
		LimitSeconds: req.LimitSeconds}
	if len(req.Sandbox) > 0 {
		if recipe.Sandbox, err = sandbox.DecodeRequest(req.Sandbox); err != nil {
			return err
		}
	}
	made, err := m.Add(r.Context(), accountOf(r.Context()), req.Name, req.URL, req.Branch, recipe)
	if err != nil {
		return err
	}
	return respond(w, http.StatusCreated, repoOut(made))
}

func (s *Server) listRepos(w http.ResponseWriter, r *http.Request) error {
	m, err := s.repos()
	if err != nil {
		return err
	}
	found, err := m.List(r.Context(), accountOf(r.Context()))
	if err != nil {
		return err
	}
	return paged(s, w, r, found, false, func(v repo.Repo) string { return v.Name }, repoOut)
}

func (s *Server) getRepo(w http.ResponseWriter, r *http.Request) error {
	m, err := s.repos()
	if err != nil {
		return err
	}
	found, err := m.Get(r.Context(), accountOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, repoOut(found))
}

func (s *Server) removeRepo(w http.ResponseWriter, r *http.Request) error {
	m, err := s.repos()
	if err != nil {
		return err
	}
	if err := m.Remove(r.Context(), accountOf(r.Context()), r.PathValue("id")); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) startRepo(cause repo.Cause) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		m, err := s.repos()
		if err != nil {
			return err
		}
		begun, err := m.Start(r.Context(), accountOf(r.Context()), r.PathValue("id"), cause)
		if err != nil {
			return err
		}
		return respond(w, http.StatusAccepted, repoBuiltOut(begun))
	}
}

func (s *Server) listRepoBuilds(w http.ResponseWriter, r *http.Request) error {
	m, err := s.repos()
	if err != nil {
		return err
	}
	found, err := m.Builds(r.Context(), accountOf(r.Context()), r.PathValue("id"), 0)
	if err != nil {
		return err
	}
	return paged(s, w, r, found, true, func(v repo.Build) string { return v.ID }, repoBuiltOut)
}

func repoOut(r repo.Repo) api.Repo {
	b := r.Recipe.Sandbox
	return api.Repo{
		ID: r.ID, Name: r.Name, URL: r.URL, Branch: r.Branch, Dir: r.Dir, Status: string(r.Status), Reason: r.Reason,
		Image: r.Image, Commit: r.Commit,
		DefaultBranch: r.Default, Locks: r.Locks, RecipeDigest: r.RecipeDigest,
		Projects: each(r.Plan.Projects, func(p repo.Project) api.RepoProject {
			return api.RepoProject{Dir: p.Dir, Manager: p.Manager, Pin: p.Pin, Lock: p.Lock, Node: p.Node,
				NodeFrom: p.NodeFrom, Install: p.Install, Build: p.Build, Test: p.Test}
		}),
		Recipe: api.RepoRequest{
			URL: r.URL, Name: r.Name, Branch: r.Branch, Setup: r.Recipe.Setup, Install: r.Recipe.Install,
			Build: r.Recipe.Build, Test: r.Recipe.Test, Root: r.Recipe.Root,
			LimitSeconds: r.Recipe.LimitSeconds,
			Sandbox: api.SandboxRequest{
				Image: b.Image, Commands: b.Commands, Tags: b.Tags, Secrets: b.Secrets, Hostname: b.Hostname,
				Engine: b.Engine, Network: api.Network(b.Network), Ports: b.Ports,
				Volumes: each(b.Volumes, func(m sandbox.Mount) api.Mount { return api.Mount(m) }),
				CPU:     b.CPU, Memory: b.Memory, Disk: b.Disk, Processes: b.Processes, Files: b.Files,
				VolumeFiles: b.VolumeFiles, Cold: b.Cold,
			},
		},
		Built: r.Built.UTC(), Checked: r.Checked.UTC(), Behind: r.Behind, Used: r.Used.UTC(), Created: r.Created.UTC(),
	}
}

func repoBuiltOut(b repo.Build) api.RepoBuilt {
	return api.RepoBuilt{
		ID: b.ID, RepoID: b.Repo, Cause: string(b.Cause), Mode: string(b.Mode), Status: string(b.Status),
		Success: b.Success, Stage: b.Stage, Error: b.Error,
		Remedy: b.Remedy, Output: b.Output, Commit: b.Commit, From: b.From, Image: b.Image,
		RecipeDigest: b.RecipeDigest, Locks: b.Locks, Node: b.Node,
		Steps:   each(b.Steps, func(r repo.Ran) api.RepoStep { return api.RepoStep(r) }),
		Started: b.Started.UTC(), Ended: b.Ended.UTC(), Seconds: b.Seconds,
	}
}
