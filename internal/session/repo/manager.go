package repo

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/image"
)

// Options of a Manager. Fleet, Images, Journal, Store and Check are required. Other zero fields get the default given
// in their comments.
type Options struct {
	Fleet   *fleet.Fleet
	Images  image.Builder
	Journal *event.Journal
	Store   Store
	Secrets *secret.Vault // with those that recipes name; nil for none
	// Check returns the directory to which sandboxes clone a repository, or an error if its address or branch is
	// invalid.
	Check func(url, branch string) (dir string, err error)

	// Added and Removed, if set, are called for each repository, to schedule its periodic refresh and to remove the
	// schedule.
	Added, Removed func(ctx context.Context, r Repo) error

	// Transport returns the transport of an account for features of dev containers; nil: http.DefaultTransport's rules.
	Transport func(account string) http.RoundTripper
	Temp      string // directory for their files; "" means the system's temporary directory

	Builds int // maximum number of concurrent builds: 2
	Keep   int // builds per repository in the history: 50
}

// Manager manages the registered repositories of one server. All methods may be called concurrently. A ref is a
// repository's name, its ID or a unique prefix of the ID.
type Manager struct {
	opts Options
	ctx  context.Context // of builds; ends with Close
	stop context.CancelFunc
	work tasks.Group
	turn chan struct{} // semaphore for builds

	mu      sync.Mutex
	flights map[string]*flight // guarded by mu; builds under way, by repository
	// saving is held while a record is read, changed and written.
	saving sync.Mutex
}

// flight is a build under way.
type flight struct {
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when build and err are final
	build  Build         // initial state until then
	err    error
}

// Open returns a Manager. It marks the builds of an earlier server as Interrupted, and removes their sandboxes.
func Open(ctx context.Context, opts Options) (*Manager, error) {
	if opts.Fleet == nil || opts.Images == nil || opts.Journal == nil || opts.Store == nil || opts.Check == nil {
		return nil, errors.Errorf("a Manager needs a Fleet, images, a Journal, a Store and a Check")
	}
	opts.Builds, opts.Keep = cmp.Or(opts.Builds, 2), cmp.Or(opts.Keep, 50)
	m := &Manager{opts: opts, flights: map[string]*flight{}, turn: make(chan struct{}, opts.Builds)}
	m.ctx, m.stop = context.WithCancel(context.WithoutCancel(ctx))
	if err := m.recover(ctx); err != nil {
		m.stop()
		return nil, err
	}
	return m, nil
}

// Close cancels the builds under way and waits until their sandboxes are gone.
func (m *Manager) Close() {
	m.stop()
	m.work.Close()
}

func (m *Manager) recover(ctx context.Context) error {
	all, err := m.opts.Store.Repos(ctx, "")
	if err != nil {
		return err
	}
	for _, r := range all {
		left, err := m.opts.Fleet.List(ctx, r.Account, record.Filter{Tags: map[string]string{tagRepo: r.ID}})
		if err != nil {
			return err
		}
		for _, sb := range left {
			m.work.Go(func() { // in the background, so that it does not delay the server's start
				if err := m.opts.Fleet.Destroy(m.ctx, r.Account, sb.ID); err != nil && m.ctx.Err() == nil {
					logf.Errorf(m.ctx, "destroy the leftovers of a build of %s: %v", r.Name, err)
				}
			})
		}
		if r.Status != Building {
			continue
		}
		builds, err := m.opts.Store.Builds(ctx, r.ID, 0)
		if err != nil {
			return err
		}
		r.Status, r.Reason = Failed, "the server ended while an image was made"
		var changed []Build
		for _, b := range builds {
			if b.Status == Running {
				b.Status, b.Error, b.Ended = Interrupted, r.Reason, time.Now().UTC()
				b.Seconds = max(0, b.Ended.Sub(b.Started).Seconds())
				changed = append(changed, b)
			}
		}
		if err := m.opts.Store.PutRepo(ctx, r, changed...); err != nil {
			return err
		}
		for _, b := range changed {
			m.told(ctx, r, b, EventEnded)
		}
	}
	return nil
}

// Add registers a repository. Start or a schedule builds its image later. name "" means owner/name from the address.
// Kinds: Invalid, Conflict (the name).
func (m *Manager) Add(ctx context.Context, account, name, url, branch string, recipe Recipe) (Repo, error) {
	dir, err := m.opts.Check(url, branch)
	if err == nil && url == "" {
		err = errors.Remedy(errors.Newf(errors.Invalid, "the repository has no address"),
			"give one such as https://github.com/owner/name")
	}
	if err == nil {
		err = recipe.check()
	}
	if name == "" {
		name = nameOf(url)
	}
	if err == nil {
		err = checkName(name)
	}
	if err == nil {
		err = m.checkEngine()
	}
	if err != nil {
		return Repo{}, errors.Stage(err, "validate")
	}
	r := Repo{
		ID: idPrefix + ids.New(), Account: account, Name: name, URL: url, Branch: branch, Dir: dir, Recipe: recipe,
		Status: New, Created: time.Now().UTC(),
	}
	if err := m.opts.Store.PutRepo(ctx, r); err != nil {
		return Repo{}, err
	}
	if m.opts.Added != nil {
		if err := m.opts.Added(ctx, r); err != nil {
			return Repo{}, errors.Join(errors.Stage(err, "schedule"),
				m.opts.Store.DeleteRepo(context.WithoutCancel(ctx), r.ID))
		}
	}
	logf.Infof(ctx, "repository %s registered: %s", r.Name, r.URL)
	return r, nil
}

func (m *Manager) checkEngine() error {
	if !m.opts.Fleet.Capabilities().Snapshot {
		return errors.Newf(errors.Unsupported,
			"this server's engine has no snapshots on this machine, of which images of repositories are made")
	}
	return nil
}

// Get returns a repository.
func (m *Manager) Get(ctx context.Context, account, ref string) (Repo, error) {
	all, err := m.opts.Store.Repos(ctx, account)
	if err != nil {
		return Repo{}, err
	}
	var found []Repo
	for _, r := range all {
		if r.ID == ref || r.Name == ref {
			return r, nil
		}
		if len(ref) > len(idPrefix) && strings.HasPrefix(r.ID, ref) {
			found = append(found, r)
		}
	}
	switch len(found) {
	case 0:
		return Repo{}, NotFound(ref)
	case 1:
		return found[0], nil
	}
	return Repo{}, errors.Remedy(errors.Newf(errors.Invalid, "%q is the beginning of %d repositories", ref, len(found)),
		"give more of the id")
}

// List returns the account's repositories, by name.
func (m *Manager) List(ctx context.Context, account string) ([]Repo, error) {
	return m.opts.Store.Repos(ctx, account)
}

// Builds returns the history of a repository, newest first: at most limit (0: all).
func (m *Manager) Builds(ctx context.Context, account, ref string, limit int) ([]Build, error) {
	r, err := m.Get(ctx, account, ref)
	if err != nil {
		return nil, err
	}
	return m.opts.Store.Builds(ctx, r.ID, limit)
}

// Remove deletes a repository. It cancels a build under way and removes images that are not in use. Sessions
// continue.
func (m *Manager) Remove(ctx context.Context, account, ref string) error {
	r, err := m.Get(ctx, account, ref)
	if err != nil {
		return err
	}
	if m.opts.Removed != nil {
		if err := m.opts.Removed(ctx, r); err != nil {
			return err
		}
	}
	m.mu.Lock()
	f := m.flights[r.ID]
	m.mu.Unlock()
	if f != nil {
		f.cancel(errors.Newf(errors.Canceled, "the repository was removed"))
		select {
		case <-f.done:
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "wait for the build of %s", r.Name)
		}
	}
	m.saving.Lock()
	defer m.saving.Unlock()
	if r, err = m.opts.Store.Repo(ctx, r.ID); err != nil {
		return err
	}
	if err := m.opts.Store.DeleteRepo(ctx, r.ID); err != nil {
		return err
	}
	if r.Image != "" {
		m.retire(&r, r.Image)
		r.Image = ""
	}
	m.collect(ctx, &r)
	for _, id := range r.Retired {
		logf.Infof(ctx, "image %s of %s is still in use: remove it later with harvest image rm", id, r.Name)
	}
	logf.Infof(ctx, "repository %s removed", r.Name)
	return nil
}

// Start starts a build, or joins the build under way: concurrent requests share one build. With the cause Asked it
// builds from the beginning, with Refresh it does only the necessary work. It does not wait for the result.
func (m *Manager) Start(ctx context.Context, account, ref string, cause Cause) (Build, error) {
	r, err := m.Get(ctx, account, ref)
	if err != nil {
		return Build{}, err
	}
	if err := m.checkEngine(); err != nil {
		return Build{}, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.ctx.Err() != nil {
		return Build{}, closing()
	}
	if f := m.flights[r.ID]; f != nil {
		return f.build, nil
	}
	b := Build{ID: buildPrefix + ids.New(), Repo: r.ID, Cause: cause, Status: Running, Started: time.Now().UTC()}
	f := &flight{done: make(chan struct{}), build: b}
	var run context.Context
	run, f.cancel = context.WithCancelCause(logf.With(m.ctx, "repo_id", r.ID, "build_id", b.ID))
	if !m.work.Go(func() {
		defer f.cancel(nil)
		done, err := m.build(run, r.ID, b)
		m.mu.Lock()
		f.build, f.err = done, err
		delete(m.flights, r.ID)
		m.mu.Unlock()
		close(f.done)
	}) {
		f.cancel(nil)
		return Build{}, closing()
	}
	m.flights[r.ID] = f
	return b, nil
}

// closing is the error of builds that are requested after Close.
func closing() error {
	return errors.Remedy(errors.Newf(errors.Unavailable, "Harvest is shutting down"), "try again when it runs")
}

// Refresh calls Start with the cause Refresh and waits for the result. The error says why there is no image of the
// newest commit.
func (m *Manager) Refresh(ctx context.Context, account, ref string) (Build, error) {
	b, err := m.Start(ctx, account, ref, Refresh)
	if err != nil {
		return Build{}, err
	}
	m.mu.Lock()
	f := m.flights[b.Repo]
	m.mu.Unlock()
	if f == nil || f.build.ID != b.ID { // it has already ended
		builds, err := m.opts.Store.Builds(ctx, b.Repo, 1)
		if err != nil || len(builds) == 0 || builds[0].ID != b.ID {
			return b, err
		}
		return builds[0], outcome(builds[0])
	}
	select {
	case <-f.done:
		return f.build, f.err
	case <-ctx.Done():
		return b, errors.Wrapf(ctx.Err(), "wait for the build of %s", ref)
	}
}

// RefreshDue is Refresh for a schedule. Repositories that keep failing are retried less and less often. It returns
// nil if no retry is due yet.
func (m *Manager) RefreshDue(ctx context.Context, account, ref string) (*Build, error) {
	r, err := m.Get(ctx, account, ref)
	if err != nil || time.Now().Before(r.Next) {
		return nil, err
	}
	b, err := m.Refresh(ctx, account, ref)
	return &b, err
}

// outcome returns the error of a completed build from its record.
func outcome(b Build) error {
	if b.Error == "" {
		return nil
	}
	err := errors.Stage(errors.Newf(errors.Kind(cmp.Or(b.Kind, string(errors.Unavailable))), "%s", b.Error), b.Stage)
	if b.Remedy != "" {
		err = errors.Remedy(err, "%s", b.Remedy)
	}
	return err
}

// save applies change to the current record of a repository and stores it.
func (m *Manager) save(ctx context.Context, id string, change func(r *Repo), builds ...Build) (Repo, error) {
	m.saving.Lock()
	defer m.saving.Unlock()
	ctx = context.WithoutCancel(ctx)
	r, err := m.opts.Store.Repo(ctx, id)
	if err != nil {
		return Repo{}, err
	}
	change(&r)
	return r, m.opts.Store.PutRepo(ctx, r, builds...)
}

// build runs a build and records its result.
func (m *Manager) build(ctx context.Context, id string, b Build) (Build, error) {
	r, err := m.opts.Store.Repo(ctx, id)
	if err != nil {
		return b, err
	}
	limit := r.Recipe.limit()
	ctx, cancel := context.WithTimeoutCause(ctx, limit,
		errors.Newf(errors.Timeout, "the time limit of %s was reached", limit))
	defer cancel()
	a := &attempt{m: m, repo: r, build: b, log: &journal{ctx: context.WithoutCancel(ctx), events: m.opts.Journal,
		about: Event{RepoID: r.ID, Name: r.Name, BuildID: b.ID}}}
	m.told(ctx, r, b, EventStarted)
	began, release := false, func() {}
	defer func() { release() }()
	err = a.run(ctx, b.Cause == Asked, func() error {
		select {
		case m.turn <- struct{}{}:
			release = func() { <-m.turn }
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		began = true
		_, err := m.save(ctx, id, func(r *Repo) { r.Status = Building }, a.build)
		return err
	})
	a.log.close()
	if err != nil && m.ctx.Err() != nil { // the next server marks it as Interrupted
		return a.build, err
	}
	return m.ended(ctx, a, began || err != nil, err)
}

// ended records the result of a build. keep means that the history includes it.
func (m *Manager) ended(ctx context.Context, a *attempt, keep bool, err error) (Build, error) {
	b := &a.build
	b.Ended, b.Status, b.Success = time.Now().UTC(), Succeeded, err == nil
	b.Seconds = b.Ended.Sub(b.Started).Seconds()
	if err != nil {
		b.Status, b.Stage, b.Error, b.Remedy = Broken, errors.StageOf(err), logf.Redacted(errors.Message(err)),
			errors.RemedyOf(err)
		b.Kind = string(errors.KindOf(err))
		logf.Warnf(ctx, "the image of %s could not be made: %v", a.repo.Name, err)
	}
	var builds []Build
	if keep {
		builds = []Build{*b}
	}
	r, saveErr := m.save(ctx, a.repo.ID, func(r *Repo) {
		used := r.Used
		if err != nil {
			r.Retired = a.repo.Retired
			r.failed(*b)
		} else {
			*r = a.repo
			r.Status, r.Reason, r.Checked, r.Behind, r.Used = Ready, "", b.Ended, 0, used
			r.Failures, r.Next = 0, time.Time{}
		}
		m.collect(ctx, r)
	}, builds...)
	if saveErr != nil {
		return *b, errors.Join(err, saveErr)
	}
	if trimErr := m.opts.Store.TrimBuilds(context.WithoutCancel(ctx), r.ID, m.opts.Keep); trimErr != nil {
		logf.Errorf(ctx, "shorten the history of %s: %v", r.Name, trimErr)
	}
	m.told(ctx, r, *b, EventEnded)
	if err == nil && b.Mode != Unchanged {
		logf.Infof(ctx, "image %s of %s made in %.1f s (%s)", b.Image, r.Name, b.Seconds, b.Mode)
	}
	return *b, err
}

// told publishes the start or end of a build.
func (m *Manager) told(ctx context.Context, r Repo, b Build, kind string) {
	data := Event{RepoID: r.ID, Name: r.Name, BuildID: b.ID, Build: &b}
	drafts := []event.Draft{{Stream: r.ID, Type: kind, Data: data}}
	if kind == EventEnded && b.Mode != Unchanged {
		short := b
		short.Output, short.Locks, short.Plan = "", nil, Plan{}
		data.Build = &short
		drafts = append(drafts, event.Draft{Stream: event.AccountStream(r.Account), Type: kind, Data: data})
	}
	m.opts.Journal.Post(context.WithoutCancel(ctx), drafts...)
}

// Found is the image of a repository, for a session.
type Found struct {
	Repo   string // id
	Image  string // id
	Dir    string
	Branch string // checked-out branch
	Commit string
	Built  time.Time
	Base   string // name of the base image in the recipe
	// LFS and Submodules mean that the image has the large files and the submodules.
	LFS, Submodules bool
}

// Find returns the image for sessions of a repository, or false. branch "" is the default branch.
func (m *Manager) Find(ctx context.Context, account, url, branch string) (Found, bool) {
	all, err := m.opts.Store.Repos(ctx, account)
	if err != nil {
		logf.Errorf(ctx, "look for an image of the repository: %v", err)
		return Found{}, false
	}
	i := slices.IndexFunc(all, func(r Repo) bool {
		return r.Image != "" && key(r.URL) == key(url) && (branch == r.Branch || branch == r.Default)
	})
	if i < 0 || !m.hasImage(ctx, all[i]) {
		return Found{}, false
	}
	r, err := m.save(ctx, all[i].ID, func(r *Repo) { r.Used = time.Now().UTC() })
	if err != nil {
		logf.Errorf(ctx, "note that %s is used: %v", r.Name, err)
	}
	r = all[i]
	return Found{Repo: r.ID, Image: r.Image, Dir: r.Dir, Branch: r.Default, Commit: r.Commit, Built: r.Built,
		Base: r.Recipe.image(), LFS: r.Plan.LFS, Submodules: r.Plan.Submodules}, true
}

// Saw records how many commits a session found the image to be behind, unless the repository has a newer image.
func (m *Manager) Saw(ctx context.Context, id, image string, behind int) error {
	_, err := m.save(ctx, id, func(r *Repo) {
		if r.Image == image {
			r.Checked, r.Behind = time.Now().UTC(), behind
		}
	})
	return err
}

// hasImage reports whether a repository's image still exists: it may have been deleted.
func (m *Manager) hasImage(ctx context.Context, r Repo) bool {
	_, err := m.opts.Images.Find(ctx, r.Image)
	return err == nil
}

// retire records an image that is no longer needed.
func (m *Manager) retire(r *Repo, id string) {
	if !slices.Contains(r.Retired, id) {
		r.Retired = append(slices.Clone(r.Retired), id)
	}
}

// collect removes retired images that are not in use.
func (m *Manager) collect(ctx context.Context, r *Repo) {
	ctx = context.WithoutCancel(ctx)
	r.Retired = slices.DeleteFunc(slices.Clone(r.Retired), func(id string) bool {
		if id == r.Image {
			return true // it is the current image again
		}
		err := m.opts.Images.Delete(ctx, id)
		if err != nil && !errors.Is(err, errors.NotFound) && !errors.Is(err, errors.Conflict) {
			logf.Errorf(ctx, "remove an old image of %s: %v", r.Name, err)
		}
		return err == nil || errors.Is(err, errors.NotFound)
	})
}
