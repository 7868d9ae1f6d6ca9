// Package preparation makes the sandbox of a session ready: it creates the sandbox, from an image of the repository if
// there is one, mounts volumes, passes credentials and clones the repositories.
package preparation

import (
	"cmp"
	"context"
	"io"
	"maps"
	"path"
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/container"
	"github.com/RelevanceAI/harvest/internal/session/credentials"
	"github.com/RelevanceAI/harvest/internal/session/models"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/shell"
	"github.com/RelevanceAI/harvest/internal/session/volumes"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// Tag is the tag of a sandbox with the ID of its session.
const Tag = "harvest.session"

// Preparer makes sandboxes of sessions ready.
type Preparer struct {
	Fleet       *fleet.Fleet
	Images      Repos           // of repositories; nil for none
	Volumes     volume.Provider // for memories; nil for none
	Credentials credentials.Source
	Models      models.Connector
}

// Session describes the session that gets a sandbox.
type Session struct {
	ID, Account string
	Spare       bool   // it is made ahead for the account
	Continues   bool   // it continues another session
	Old         string // its previous sandbox, which the new one replaces; "" for none
	Image       string // of sandboxes for its agent
	Title       string
	Author      workspace.Author // of commits
	Request     spec.Request
	Repos       []workspace.Repository
	Given       workspace.Given // input of a new session
	Logins      credentials.Request
	PerTurn     bool // lend credentials per turn
	Agent       agent.Agent
}

// Result is the result of a preparation.
type Result struct {
	Sandbox string                 // created, even if a later step failed
	Fresh   bool                   // the sandbox is new, without the files of an earlier one
	Repos   []workspace.Repository // as prepared
	Logins  credentials.Logins     // in the sandbox
	Image   *records.RepoImage     // image of the repository that the sandbox was created from
	Synced  *records.Synced        // set if the repository is up to date already
	Later   *Later                 // commands of the dev container that are left; nil for none
	Notices []records.Notice       // for the session's user
	Err     error
}

// Request returns the request for a session's sandbox. mounts says whether the engine has volumes. Otherwise the state
// of the agent and the memory are in the sandbox, and in its snapshots.
func Request(req spec.Request, image, memory string, mounts bool) spec.Request {
	if req.Image == "" {
		req.Image = image
	}
	if mounts {
		req.Volumes = volumes.Mounted(req.Volumes, memory)
	}
	req.SnapshotOnEnd, req.Borrows, req.Env, req.Progress = true, true, nil, nil
	return req
}

// Prepare prepares sandbox and repositories. report receives each step.
func (p Preparer) Prepare(ctx context.Context, s Session, report func(records.Stage)) Result {
	w := &work{Preparer: p, s: s, report: report, Result: Result{Repos: slices.Clone(s.Repos)}}
	w.Err = w.run(ctx)
	return w.Result
}

// work is a preparation that is under way.
type work struct {
	Preparer
	Result
	s         Session
	report    func(records.Stage)
	container *container.Environment // nil if the sandbox is not a dev container
}

// box returns the sandbox.
func (p *work) box() shell.Sandbox {
	return shell.Sandbox{Fleet: p.Fleet, Account: p.s.Account, ID: p.Sandbox}
}

// tree returns the repositories in the sandbox.
func (p *work) tree() workspace.Tree {
	return workspace.Tree{Sandbox: p.box(), Session: p.s.ID, Title: p.s.Title, Author: p.s.Author}
}

// run does the steps of a preparation.
func (p *work) run(ctx context.Context) error {
	if err := p.stage("sandbox", func() error { return p.createSandbox(ctx) }); err != nil {
		return err
	}
	if err := p.stage("directories", func() error { return p.makeDirs(ctx) }); err != nil {
		return err
	}
	logins, err := p.Credentials.Find(ctx, p.s.Logins)
	if err != nil {
		return errors.Stage(err, "credentials")
	}
	if len(logins) > 0 {
		p.Logins = logins
		if err := p.stage("credentials", func() error {
			return logins.Put(ctx, p.box())
		}); err != nil {
			return err
		}
	}
	for i := range p.Repos {
		name := "repository"
		if i > 0 {
			name += " " + path.Base(p.Repos[i].Dir)
		}
		if err := p.stage(name, func() error { return p.clone(ctx, i) }); err != nil {
			return err
		}
	}
	if p.container != nil {
		return p.start(ctx)
	}
	unfollowed(ctx, p)
	return nil
}

// notice reports something to the session's user.
func (p *work) notice(reason, text string) {
	p.Notices = append(p.Notices, records.Notice{Reason: reason, Text: text})
}

// stage runs a step and reports its duration.
func (p *work) stage(name string, run func() error) error {
	return stage(name, p.report, run)
}

// createSandbox creates the sandbox. A replacement starts from the last files of the previous sandbox.
func (p *work) createSandbox(ctx context.Context) error {
	req := p.s.Request
	req.Tags = maps.Clone(req.Tags)
	if req.Tags == nil {
		req.Tags = map[string]string{}
	}
	req.Tags[Tag] = p.s.ID
	req.Withhold, req.PerTurn = p.Models.Withheld(p.s.Agent), p.s.PerTurn
	// Destroy sandboxes that an earlier server started to create and did not record. Also destroy the previous
	// sandbox if it is still ending: after that its files are known.
	old, err := p.Fleet.List(ctx, p.s.Account, record.Filter{Tags: map[string]string{Tag: p.s.ID}})
	if err != nil {
		return err
	}
	for _, sb := range old {
		if err := p.Fleet.Destroy(ctx, p.s.Account, sb.ID); err != nil {
			return err
		}
	}
	if p.s.Old != "" {
		req.Name = ""
		req.Image = cmp.Or(p.lastFiles(ctx), req.Image)
	}
	if !p.Fleet.Capabilities().Snapshots() {
		req.SnapshotOnEnd = false
	}
	req.Progress = func(progress image.Progress) {
		if progress.Step == fleet.StepQueue {
			p.report(records.Stage{Name: progress.Step, Queued: true})
		}
	}
	p.Fresh = req.Image == p.s.Request.Image
	made, err := p.createFrom(ctx, req)
	if err != nil {
		return err
	}
	p.Sandbox = made.ID
	return nil
}

// lastFiles returns the image with the last files of the session, or "": the snapshot of its previous sandbox. If that
// was killed before it left one, it is the snapshot of an earlier sandbox, with which the previous one began.
func (p *work) lastFiles(ctx context.Context) string {
	old, err := p.Fleet.Get(ctx, p.s.Account, p.s.Old)
	if err != nil || old.SnapshotID != "" {
		return old.SnapshotID
	}
	earlier, err := p.Fleet.List(ctx, p.s.Account, record.Filter{All: true, Tags: map[string]string{Tag: p.s.ID}})
	if err == nil && slices.ContainsFunc(earlier, func(sb record.Sandbox) bool { return sb.SnapshotID == old.Image }) {
		return old.Image
	}
	return ""
}

// createFrom creates a sandbox, from the repository's image if there is one.
func (p *work) createFrom(ctx context.Context, req spec.Request) (record.Sandbox, error) {
	account := p.s.Account
	if p.s.Spare {
		account, req.Owner = record.SpareAccount, p.s.Account
	}
	if p.Image = p.RepoImage(ctx, p.s, req); p.Image != nil {
		own := req
		own.Image = p.Image.Image
		if err := p.adapt(ctx, &own); err != nil {
			return record.Sandbox{}, err
		}
		made, err := p.Fleet.Create(ctx, account, own)
		if !errors.Is(err, errors.NotFound) {
			return made, err
		}
		p.Image, p.container, p.Notices = nil, nil, nil // a newer image has just replaced it
	} else if err := p.adapt(ctx, &req); err != nil {
		return record.Sandbox{}, err
	}
	return p.Fleet.Create(ctx, account, req)
}

// adapt finds out whether the image of a request is that of a dev container, and adds to the request what it needs.
func (p *work) adapt(ctx context.Context, req *spec.Request) error {
	if p.Images == nil || p.s.Repos[0].URL == "" && p.s.Old == "" {
		return nil
	}
	img, err := p.Images.Lookup(ctx, p.s.Account, req.Image)
	if errors.Is(err, errors.NotFound) {
		return nil
	}
	if err == nil {
		p.container, err = container.Of(img, req.Env, p.s.ID)
	}
	if err != nil || p.container == nil {
		return err
	}
	short := p.container.Adapt(req, fleet.Within(p.Fleet))
	if !p.Fresh {
		return nil
	}
	for _, text := range short {
		p.notice(records.NoticeHardware, text)
	}
	var owned []secret.Secret
	if p.Credentials.Secrets != nil {
		if owned, err = p.Credentials.Secrets.List(ctx, p.s.Account); err != nil {
			logf.Errorf(ctx, "list the secrets that a dev container recommends: %v", err)
			return nil
		}
	}
	for _, text := range p.container.Lacking(req.Env, owned, req.Secrets) {
		p.notice(records.NoticeSecret, text)
	}
	return nil
}

// start runs the lifecycle commands of a dev container for which the session waits.
func (p *work) start(ctx context.Context) error {
	if err := p.container.Start(ctx, p.box()); err != nil {
		return err
	}
	hooks := devcontainer.Hooks[2:] // the image has run the others
	if !p.Fresh {
		hooks = hooks[1:]
	}
	now, later := p.container.Waits(hooks)
	if p.container.Has(later...) {
		p.Later = &Later{Config: p.container.Config, Hooks: later, container: p.container, box: p.box()}
	}
	first := &Later{Hooks: now, container: p.container, box: p.box()}
	return first.Run(ctx, func(string) io.Writer { return io.Discard }, p.report)
}

// makeDirs creates directories, installs harvest-git, and fills the memory.
func (p *work) makeDirs(ctx context.Context) error {
	dirs := []string{path.Dir(p.s.Repos[0].Dir), volumes.StateDir(p.s.ID)}
	if memory := volumes.Memory(p.s.Repos[0]); memory != "" && p.Fleet.Capabilities().Volumes {
		if err := volumes.Seed(ctx, p.Volumes, p.box(), p.s.ID, memory); err != nil {
			return err
		}
	}
	if volumes.Memory(p.s.Repos[0]) != "" {
		dirs = append(dirs, volumes.MemoryMount)
	}
	return p.tree().MakeDirs(ctx, dirs...)
}

// clone clones the i-th repository with all its parts.
func (p *work) clone(ctx context.Context, i int) error {
	r, tree := &p.Repos[i], p.tree()
	c := workspace.Clone{Repository: *r, HTTPS: p.Logins.HTTPS(r.URL)}
	if i == 0 {
		c.Given = p.s.Given
		if p.Image != nil {
			c.InImage, c.Branch = true, cmp.Or(r.Branch, p.Image.Branch)
		}
	}
	begun, err := tree.Clone(ctx, c)
	if err != nil {
		return err
	}
	if begun.Fresh && (!p.s.Continues || p.s.Old != "" || r.Base == "") {
		r.Base, r.Start = begun.Base, begun.Start
	}
	if begun.Behind >= 0 {
		p.Synced = &records.Synced{RepoImage: *p.Image, Behind: begun.Behind, Commit: r.Base}
	}
	parts := *r
	if c.InImage && c.Given.Bundle != "" { // the parts that the image has belong to an older commit
		parts.LFS, parts.Submodules = r.LFS || p.Image.LFS, r.Submodules || p.Image.Submodules
	}
	return tree.FetchParts(ctx, parts)
}
