// Package repos serves the images of repositories and their builds.
package repos

import (
	"encoding/json"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/session/repo"
)

// Service serves the routes for images of repositories.
type Service struct {
	edge.Settings
	Repos  *repo.Manager // nil: not supported
	Events edge.Handler  // follows the events of a repository
}

// Routes returns one row per route.
func (s *Service) Routes() []edge.Route {
	const read, write, exec = account.Read, account.Write, account.Exec
	return append(edge.Only(s.Repos != nil, "repositories", []edge.Route{
		{Method: "POST", Path: api.Repos, Handle: s.addRepo, Scope: exec,
			Summary: "Register a repository and build its image", In: api.RepoRequest{},
			Out: api.Repo{}, Status: 201},
		{Method: "GET", Path: api.Repos, Handle: s.listRepos, Scope: read, Summary: "List repositories by name",
			Query: edge.QueryPage, Out: api.List[api.Repo]{}, Status: 200},
		{Method: "GET", Path: api.Repoed, Handle: s.getRepo, Scope: read,
			Summary: "Get a repository, by its id or name", Out: api.Repo{}, Status: 200},
		{Method: "DELETE", Path: api.Repoed, Handle: s.removeRepo, Scope: write,
			Summary: "Unregister a repository and remove its unused images", Status: 204},
		{Method: "POST", Path: api.RepoBuild, Handle: s.startRepo(repo.Asked), Scope: exec,
			Summary: "Build a repository's image from scratch, or join the current build",
			Out:     api.RepoBuilt{}, Status: 202},
		{Method: "POST", Path: api.RepoRefresh, Handle: s.startRepo(repo.Refresh), Scope: exec,
			Summary: "Update a repository's image, or join the current build", Out: api.RepoBuilt{}, Status: 202},
		{Method: "GET", Path: api.RepoBuilds, Handle: s.listRepoBuilds, Scope: read,
			Summary: "List the builds of a repository's image, newest first", Query: edge.QueryPage,
			Out: api.List[api.RepoBuilt]{}, Status: 200},
	}), edge.Route{Method: "GET", Path: api.RepoEvents, Handle: s.Events, Scope: read,
		Summary: "Follow the builds of a repository's image, with their log",
		Query: "after: only events after this id, as with the header Last-Event-ID; tail: only the last N " +
			"events, and new ones",
		RawOut: api.TypeEvents, Status: 200})
}

// repoBody is api.RepoRequest with the sandbox undecoded: package fleet reports its errors.
type repoBody struct {
	api.RepoRequest
	Sandbox json.RawMessage `json:"sandbox"`
}

func (s *Service) addRepo(w http.ResponseWriter, r *http.Request) error {
	var req repoBody
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	recipe := repo.Recipe{Setup: req.Setup, Install: req.Install, Build: req.Build, Test: req.Test, Root: req.Root,
		Parts: repo.Parts{Submodules: req.Submodules, LFS: req.LFS, Groups: req.Groups,
			DevContainer: req.DevContainer},
		LimitSeconds: req.LimitSeconds}
	if len(req.Sandbox) > 0 {
		var err error
		if recipe.Sandbox, err = spec.Decode(req.Sandbox); err != nil {
			return err
		}
	}
	made, err := s.Repos.Add(r.Context(), edge.Account(r), req.Name, req.URL, req.Branch, recipe)
	return edge.Send(w, http.StatusCreated, repoOut, made, err)
}

func (s *Service) listRepos(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Repos.List(r.Context(), edge.Account(r))
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, found, false, func(v repo.Repo) string { return v.Name }, repoOut)
}

func (s *Service) getRepo(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Repos.Get(r.Context(), edge.Account(r), r.PathValue("id"))
	return edge.Send(w, http.StatusOK, repoOut, found, err)
}

func (s *Service) removeRepo(w http.ResponseWriter, r *http.Request) error {
	return edge.NoContent(w, s.Repos.Remove(r.Context(), edge.Account(r), r.PathValue("id")))
}

func (s *Service) startRepo(cause repo.Cause) edge.Handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		begun, err := s.Repos.Start(r.Context(), edge.Account(r), r.PathValue("id"), cause)
		return edge.Send(w, http.StatusAccepted, repoBuiltOut, begun, err)
	}
}

func (s *Service) listRepoBuilds(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Repos.Builds(r.Context(), edge.Account(r), r.PathValue("id"), 0)
	if err != nil {
		return err
	}
	return edge.Paged(s.Settings, w, r, found, true, func(v repo.Build) string { return v.ID }, repoBuiltOut)
}

func repoOut(r repo.Repo) api.Repo {
	b := r.Recipe.Sandbox
	return api.Repo{
		ID: r.ID, Name: r.Name, URL: r.URL, Branch: r.Branch, Dir: r.Dir, Status: string(r.Status), Reason: r.Reason,
		Image: r.Image, Commit: r.Commit,
		DevContainer: r.Plan.DevContainer, DefaultBranch: r.Default, Locks: r.Locks, RecipeDigest: r.RecipeDigest,
		Projects: edge.Each(r.Plan.Projects, func(p repo.Project) api.RepoProject {
			return api.RepoProject{Dir: p.Dir, Manager: p.Manager, Pin: p.Pin, PinFrom: p.PinFrom, Lock: p.Lock,
				Node: p.Node, NodeFrom: p.NodeFrom, Python: p.Python, PythonFrom: p.PythonFrom, Install: p.Install,
				Build: p.Build, Test: p.Test}
		}),
		Left: edge.Each(r.Left, func(g repo.Gap) api.RepoGap { return api.RepoGap(g) }),
		Recipe: api.RepoRequest{
			Submodules: r.Recipe.Submodules, LFS: r.Recipe.LFS, Groups: r.Recipe.Groups,
			DevContainer: r.Recipe.DevContainer,
			URL:          r.URL, Name: r.Name, Branch: r.Branch, Setup: r.Recipe.Setup, Install: r.Recipe.Install,
			Build: r.Recipe.Build, Test: r.Recipe.Test, Root: r.Recipe.Root,
			LimitSeconds: r.Recipe.LimitSeconds,
			Sandbox: api.SandboxRequest{
				Image: b.Image, Commands: b.Commands, Tags: b.Tags, Secrets: b.Secrets, Hostname: b.Hostname,
				Engine: b.Engine, Network: api.Network(b.Network), Ports: b.Ports,
				Volumes: edge.Each(b.Volumes, func(m spec.Mount) api.Mount { return api.Mount(m) }),
				CPU:     b.CPU, Memory: b.Memory, Disk: b.Disk, Processes: b.Processes, Files: b.Files,
				VolumeFiles: b.VolumeFiles, Isolation: b.Isolation, Cold: b.Cold,
			},
		},
		Built: r.Built.UTC(), Checked: r.Checked.UTC(), Behind: r.Behind, Used: r.Used.UTC(), Created: r.Created.UTC(),
	}
}

func repoBuiltOut(b repo.Build) api.RepoBuilt {
	return api.RepoBuilt{
		ID: b.ID, RepoID: b.Repo, Cause: string(b.Cause), Mode: string(b.Mode), Status: string(b.Status),
		Success: b.Success, Stage: b.Stage, Kind: b.Kind, Error: b.Error,
		Remedy: b.Remedy, Output: b.Output, Commit: b.Commit, From: b.From, Image: b.Image,
		RecipeDigest: b.RecipeDigest, Locks: b.Locks, Node: b.Node, Python: b.Python,
		Left:    edge.Each(b.Left, func(g repo.Gap) api.RepoGap { return api.RepoGap(g) }),
		Steps:   edge.Each(b.Steps, func(r repo.Ran) api.RepoStep { return api.RepoStep(r) }),
		Started: b.Started.UTC(), Ended: b.Ended.UTC(), Seconds: b.Seconds,
	}
}
