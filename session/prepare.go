package session

import (
	"cmp"
	"context"
	"maps"
	"path"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/session/credentials"
	"github.com/RelevanceAI/harvest/session/volumes"
	"github.com/RelevanceAI/harvest/session/workspace"
)

// tagSession is the tag of a sandbox with the ID of its session.
const tagSession = "harvest.session"

// prepared is the result of session preparation.
type prepared struct {
	sandbox string // created, even if a later step failed
	fresh   bool   // without the files of an earlier sandbox
	repos   []workspace.Repository
	logins  credentials.Logins
	image   *RepoImage // image of the repository that the sandbox was created from
	synced  *Synced    // set if the repository is up to date already
	err     error
}

// sandboxOf returns the request for a session's sandbox.
func sandboxOf(req sandbox.Request, image, memory string) sandbox.Request {
	if req.Image == "" {
		req.Image = image
	}
	req.Volumes = volumes.Mounted(req.Volumes, memory)
	req.SnapshotOnEnd, req.Env, req.Progress = true, nil, nil
	return req
}

// makeReady starts the preparation of sandbox and repository in the background.
func (r *runner) makeReady(ctx context.Context) {
	ctx, r.undo = context.WithCancel(ctx)
	r.prepared, r.stages = make(chan prepared, 1), make(chan Stage, 32)
	s, given, stages, result := r.session(), r.given, r.stages, r.prepared
	s.Sandbox.Env, r.env = r.env, nil
	r.m.work.Go(func() {
		p := preparation{m: r.m, s: s, given: given, stages: stages, repos: slices.Clone(s.Repositories())}
		err := p.run(ctx)
		result <- prepared{p.sandbox, p.fresh, p.repos, p.logins, p.image, p.synced, err}
	})
}

// prepare applies the result of the preparation.
func (r *runner) prepare(ctx context.Context, p prepared) {
	r.undo()
	r.undo, r.prepared = nil, nil
	if p.fresh {
		r.letGitGo()
		r.gitSeen = 0 // lines of harvest-git
	}
	for len(r.stages) > 0 {
		r.staged(<-r.stages)
	}
	if p.sandbox != "" {
		r.change(func(s *Session) {
			s.SandboxID, s.Repos, s.Base = p.sandbox, p.repos, p.repos[0].Base
		})
	}
	r.creds.Take(p.logins)
	if p.err == nil {
		r.ready, r.given = true, workspace.Given{}
		r.catchUp(p)
		if r.session().Status == Creating {
			r.setStatus(Ready, "")
		}
		return
	}
	if ctx.Err() != nil {
		return // the next server starts over
	}
	logf.Errorf(ctx, "make the session ready: %v", p.err)
	reason := errors.Message(p.err)
	if stage := errors.StageOf(p.err); stage != "" {
		reason = stage + ": " + reason
	}
	for _, m := range r.queue {
		r.drop(m, reason)
	}
	r.queue = nil
	r.setStatus(Failed, reason)
	r.failed = true
	r.end(reason)
}

// staged publishes a step of session preparation.
func (r *runner) staged(stage Stage) {
	if stage.queued {
		r.publish(draft{EventWaits, Event{}})
		return
	}
	r.publish(draft{EventStage, Event{Stage: &stage}})
}

// preparation prepares sandbox and repository.
type preparation struct {
	m       *Manager
	s       Session
	given   workspace.Given
	stages  chan<- Stage
	sandbox string
	fresh   bool                   // the sandbox is new, without the files of an earlier one
	repos   []workspace.Repository // the session's repositories, as prepared
	logins  credentials.Logins
	image   *RepoImage // image of the repository that the sandbox was created from
	synced  *Synced
}

func (p *preparation) run(ctx context.Context) error {
	if err := p.stage("sandbox", func() error { return p.createSandbox(ctx) }); err != nil {
		return err
	}
	if err := p.stage("directories", func() error { return p.makeDirs(ctx) }); err != nil {
		return err
	}
	logins, err := p.m.credentials().Find(ctx, p.s.logins())
	if err != nil {
		return errors.Stage(err, "credentials")
	}
	if len(logins) > 0 {
		p.logins = logins
		if err := p.stage("credentials", func() error {
			return logins.Put(ctx, p.m.in(p.s.Account, p.sandbox))
		}); err != nil {
			return err
		}
	}
	for i := range p.repos {
		name := "repository"
		if i > 0 {
			name += " " + path.Base(p.repos[i].Dir)
		}
		if err := p.stage(name, func() error { return p.clone(ctx, i) }); err != nil {
			return err
		}
	}
	return nil
}

// stage runs a step and reports its duration.
func (p *preparation) stage(name string, run func() error) error {
	begin := time.Now()
	if err := run(); err != nil {
		if errors.StageOf(err) != "" {
			return err
		}
		return errors.Stage(err, name)
	}
	p.tell(Stage{Name: name, MS: float64(time.Since(begin).Microseconds()) / 1000})
	return nil
}

func (p *preparation) tell(stage Stage) {
	select {
	case p.stages <- stage:
	default: // no reader: the session is about to end
	}
}

// createSandbox creates the sandbox. A replacement starts from the last files of the previous sandbox.
func (p *preparation) createSandbox(ctx context.Context) error {
	req := p.s.Sandbox
	req.Tags = maps.Clone(req.Tags)
	if req.Tags == nil {
		req.Tags = map[string]string{}
	}
	req.Tags[tagSession] = p.s.ID
	req.Withhold = p.m.models().Withheld()
	// Destroy sandboxes that an earlier server started to create and did not record. Also destroy the previous
	// sandbox if it is still ending: after that its files are known.
	old, err := p.m.opts.Fleet.List(ctx, p.s.Account, sandbox.Filter{Tags: map[string]string{tagSession: p.s.ID}})
	if err != nil {
		return err
	}
	for _, sb := range old {
		if err := p.m.opts.Fleet.Destroy(ctx, p.s.Account, sb.ID); err != nil {
			return err
		}
	}
	if p.s.SandboxID != "" {
		req.Name = ""
		if old, err := p.m.opts.Fleet.Get(ctx, p.s.Account, p.s.SandboxID); err == nil && old.SnapshotID != "" {
			req.Image = old.SnapshotID
		}
	}
	if !p.m.opts.Fleet.Capabilities().Snapshots() {
		req.SnapshotOnEnd = false
	}
	req.Progress = func(progress image.Progress) {
		if progress.Step == sandbox.StepQueue {
			p.tell(Stage{Name: progress.Step, queued: true})
		}
	}
	p.fresh = req.Image == p.s.Sandbox.Image
	made, err := p.createFrom(ctx, req)
	if err != nil {
		return err
	}
	p.sandbox = made.ID
	return nil
}

// makeDirs creates directories, installs harvest-git, and fills the memory.
func (p *preparation) makeDirs(ctx context.Context) error {
	dirs := []string{path.Dir(p.s.Dir), volumes.StateDir(p.s.ID)}
	if memory := volumes.Memory(p.s.Repositories()[0]); memory != "" {
		if err := volumes.Seed(ctx, p.m.opts.Volumes, p.m.in(p.s.Account, p.sandbox), p.s.ID, memory); err != nil {
			return err
		}
		dirs = append(dirs, volumes.MemoryMount)
	}
	return p.m.tree(p.s, p.sandbox).MakeDirs(ctx, dirs...)
}

// clone clones the i-th repository with all its parts.
func (p *preparation) clone(ctx context.Context, i int) error {
	r, tree := &p.repos[i], p.m.tree(p.s, p.sandbox)
	c := workspace.Clone{Repository: *r, HTTPS: p.logins.HTTPS(r.URL)}
	if i == 0 {
		c.Given = p.given
		if p.image != nil {
			c.InImage, c.Branch = true, cmp.Or(r.Branch, p.image.Branch)
		}
	}
	begun, err := tree.Clone(ctx, c)
	if err != nil {
		return err
	}
	if begun.Fresh && (p.s.Continues == "" || p.s.SandboxID != "" || r.Base == "") {
		r.Base, r.Start = begun.Base, begun.Start
	}
	if begun.Behind >= 0 {
		p.synced = &Synced{RepoImage: *p.image, Behind: begun.Behind, Commit: r.Base}
	}
	return tree.FetchParts(ctx, *r)
}
