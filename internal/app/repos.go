package app

import (
	"context"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/image/oci"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/repo"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
	"github.com/RelevanceAI/harvest/internal/store"
)

const refreshRepoKind = "refresh-repo"

// openRepos opens the registered repositories.
func (a *App) openRepos(ctx context.Context, db *store.DB, eng engine.Engine) (err error) {
	rules, err := rulesOf(a.cfg)
	if err != nil {
		return errors.Stage(err, "connect")
	}
	a.repos, err = repo.Open(ctx, repo.Options{
		Fleet: a.fleet, Images: eng.Images(), Journal: a.events, Store: db.Repos(), Secrets: a.secrets,
		Check: workspace.CheckRepo, Transport: transports(rules, oci.NewTransport),
		Temp:  filepath.Join(a.cfg.Data, uploadsName),
		Added: a.scheduleRepo,
		Removed: func(ctx context.Context, r repo.Repo) error {
			err := a.schedules.Delete(ctx, r.Account, repoJob(r))
			if errors.Is(err, errors.NotFound) {
				return nil
			}
			return err
		},
	})
	if err != nil {
		return errors.Stage(err, "repositories")
	}
	a.then("the repositories", func(context.Context) error { a.repos.Close(); return nil })
	return nil
}

// scheduleRepos ensures that each repository has its schedule.
func (a *App) scheduleRepos(ctx context.Context) error {
	all, err := a.repos.List(ctx, "")
	for _, r := range all {
		err = errors.Join(err, a.scheduleRepo(ctx, r))
	}
	return err
}

// scheduleRepo schedules a refresh of a repository every half hour, with 3 retries and a limit of 10 minutes.
// Each repository has its own minutes, so that they do not all begin at the same moment.
func (a *App) scheduleRepo(ctx context.Context, r repo.Repo) error {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(r.ID)) // never fails
	minute := sum.Sum32() % 30
	args, err := json.Marshal(map[string]string{"repo": r.ID})
	if err != nil {
		return errors.Wrapf(err, "encode the schedule of %s", r.Name)
	}
	_, err = a.schedules.Ensure(ctx, schedule.Job{
		Account: r.Account, Name: repoJob(r), Kind: refreshRepoKind, Cron: fmt.Sprintf("%d,%d * * * *", minute,
			minute+30), Missed: schedule.Skip, Args: args,
	})
	return err
}

var notJob = pattern.New(`[^A-Za-z0-9._-]+`)

// repoJob is the name of a repository's schedule.
func repoJob(r repo.Repo) string {
	name := notJob().ReplaceAllString(r.Name, "-")
	return "repo-" + name[:min(len(name), 45)] + "-" + r.ID[len(r.ID)-6:]
}

// refreshRepo refreshes a repository. args is {"repo": "…"} with the repository's id, which determines the
// account.
func (a *App) refreshRepo(ctx context.Context, job schedule.Job) (any, error) {
	var asked struct {
		Repo string `json:"repo"`
	}
	if err := json.Unmarshal(job.Args, &asked); err != nil || !strings.HasPrefix(asked.Repo, "repo_") {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "invalid arguments of the refresh"),
			`give {"repo": "repo_…"}, a whole id`)
	}
	all, err := a.repos.List(ctx, "")
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		if r.ID == asked.Repo {
			return a.repos.RefreshDue(ctx, r.Account, r.ID)
		}
	}
	return nil, repo.NotFound(asked.Repo)
}

// sessionRepos provides the images of repositories to sessions.
type sessionRepos struct{ *repo.Manager }

// Image implements preparation.Repos.
func (r sessionRepos) Image(ctx context.Context, account, url, branch string) (records.RepoImage, bool) {
	found, ok := r.Find(ctx, account, url, branch)
	return records.RepoImage{Repo: found.Repo, Image: found.Image, Base: found.Base, Dir: found.Dir,
		Branch: found.Branch, Commit: found.Commit, Built: found.Built, LFS: found.LFS,
		Submodules: found.Submodules}, ok
}

// Saw implements preparation.Repos.
func (r sessionRepos) Saw(ctx context.Context, img records.RepoImage, behind int) {
	if err := r.Manager.Saw(ctx, img.Repo, img.Image, behind); err != nil {
		logf.Errorf(ctx, "note how far the image of a repository is behind: %v", err)
	}
}
