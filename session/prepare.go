package session

import (
	"archive/tar"
	"bytes"
	"context"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
)

const (
	workspace   = "/workspace"
	stateVolume = "harvest-agent-state" // mission C2
	stateMount  = "/mnt/state"
	bundleDir   = "/tmp/harvest-bundle"
	tagSession  = "harvest.session"
)

// prepared is what making a session ready led to.
type prepared struct {
	sandbox string // made, even if something failed after
	base    string
	image   *RepoImage // of the repository, that the sandbox was made of
	synced  *Synced    // if it has caught up already
	err     error
}

// sandboxOf returns the request for a session's sandbox.
func sandboxOf(req sandbox.Request, image string) sandbox.Request {
	if req.Image == "" {
		req.Image = image
	}
	if !slices.ContainsFunc(req.Volumes, func(m sandbox.Mount) bool { return m.Path == stateMount }) {
		req.Volumes = append(slices.Clone(req.Volumes), sandbox.Mount{Name: stateVolume, Path: stateMount})
	}
	req.SnapshotOnEnd, req.Env, req.Progress = true, nil, nil
	return req
}

// makeReady begins to make sandbox and repository, in the background.
func (r *runner) makeReady(ctx context.Context) {
	ctx, r.undo = context.WithCancel(ctx)
	r.prepared, r.stages = make(chan prepared, 1), make(chan Stage, 32)
	s, bundle, stages, result := r.session(), r.bundle, r.stages, r.prepared
	s.Sandbox.Env, r.env = r.env, nil
	r.m.work.Go(func() {
		p := preparation{m: r.m, s: s, bundle: bundle, stages: stages}
		err := p.run(ctx)
		result <- prepared{p.sandbox, p.base, p.image, p.synced, err}
	})
}

// prepare takes over what was made.
func (r *runner) prepare(ctx context.Context, p prepared) {
	r.undo()
	r.undo, r.prepared = nil, nil
	for len(r.stages) > 0 {
		stage := <-r.stages
		r.publish(draft{EventStage, Event{Stage: &stage}})
	}
	if p.sandbox != "" {
		r.change(func(s *Session) {
			s.SandboxID = p.sandbox
			if s.Base == "" {
				s.Base = p.base
			}
		})
	}
	if p.err == nil {
		r.ready, r.bundle = true, nil
		r.catchUp(p)
		if r.session().Status == Creating {
			r.setStatus(Ready, "")
		}
		return
	}
	if ctx.Err() != nil {
		return // the next server makes it anew
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

// preparation makes sandbox and repository.
type preparation struct {
	m       *Manager
	s       Session
	bundle  []byte
	stages  chan<- Stage
	sandbox string
	base    string
	image   *RepoImage // of the repository, that the sandbox was made of
	synced  *Synced
}

func (p *preparation) run(ctx context.Context) error {
	if err := p.stage("sandbox", func() error { return p.createSandbox(ctx) }); err != nil {
		return err
	}
	if err := p.stage("directories", func() error { return p.makeDirs(ctx) }); err != nil {
		return err
	}
	return p.stage("repository", func() error { return p.clone(ctx) })
}

// stage runs a step and tells how long it took.
func (p *preparation) stage(name string, run func() error) error {
	begin := time.Now()
	if err := run(); err != nil {
		if errors.StageOf(err) != "" {
			return err
		}
		return errors.Stage(err, name)
	}
	select {
	case p.stages <- Stage{name, float64(time.Since(begin).Microseconds()) / 1000}:
	default: // nobody takes them: the session is about to end
	}
	return nil
}

// createSandbox makes the sandbox: after the first one, from its last files.
func (p *preparation) createSandbox(ctx context.Context) error {
	req := p.s.Sandbox
	req.Tags = maps.Clone(req.Tags)
	if req.Tags == nil {
		req.Tags = map[string]string{}
	}
	req.Tags[tagSession] = p.s.ID
	req.Withhold = p.m.withheld()
	if p.s.SandboxID != "" {
		req.Name = ""
		if old, err := p.m.opts.Fleet.Get(ctx, p.s.Account, p.s.SandboxID); err == nil && old.SnapshotID != "" {
			req.Image = old.SnapshotID
		}
	}
	if !p.m.opts.Fleet.Capabilities().Snapshot {
		req.SnapshotOnEnd = false
	}
	// What an earlier server began to make, and did not record.
	old, err := p.m.opts.Fleet.List(ctx, p.s.Account, sandbox.Filter{Tags: map[string]string{tagSession: p.s.ID}})
	if err != nil {
		return err
	}
	for _, sb := range old {
		if err := p.m.opts.Fleet.Destroy(ctx, p.s.Account, sb.ID); err != nil {
			return err
		}
	}
	made, err := p.createFrom(ctx, req)
	if err != nil {
		return err
	}
	p.sandbox = made.ID
	return nil
}

// script runs a script in the sandbox and returns what it printed. Its parameters are $1, $2, ….
func (p *preparation) script(ctx context.Context, user, text string, params ...string) (string, error) {
	x, err := p.m.opts.Fleet.Exec(ctx, p.s.Account, p.sandbox, sandbox.ExecRequest{Args: append([]string{"/bin/sh", "-euc", text, "sh"}, params...), User: user, Workdir: "/",
		Env: map[string]string{"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C.UTF-8"}})
	if err != nil {
		return "", err
	}
	result, err := x.Wait(ctx)
	if err != nil {
		return "", err
	}
	if result.ReturnCode != 0 {
		return "", errors.Newf(errors.Unavailable, "%s", lastLines(result.Stderr, result.Reason))
	}
	return result.Stdout, nil
}

// makeDirs makes what the agent's user cannot.
func (p *preparation) makeDirs(ctx context.Context) error {
	ids, err := p.script(ctx, "", `id -u; id -g`)
	if err != nil {
		return err
	}
	owner := strings.Join(strings.Fields(ids), ":")
	user := ""
	if p.m.opts.Fleet.Capabilities().Users {
		user = "0:0"
	}
	_, err = p.script(ctx, user, `for d in "$2" "$3"; do [ -d "$d" ] || { mkdir -p "$d"; chown "$1" "$d"; }; done`, owner, path.Dir(p.s.Dir), p.s.stateDir())
	return err
}

// cloneScript gets the repository, unless it is there, and prints the commit that the work begins on. Its parameters: directory, where to clone
// from, origin, branch, depth, branch of the work, name and address of the author.
const cloneScript = `
git config --global user.name "$7"
git config --global user.email "$8"
if [ ! -d "$1/.git" ]; then
	from=$2 origin=$3 dir=$1 branch=$4 depth=$5 work=$6
	if [ -n "$from" ]; then
		set -- --quiet --no-recurse-submodules
		[ -z "$branch" ] || set -- "$@" "--branch=$branch"
		[ "$depth" = 0 ] || set -- "$@" "--depth=$depth"
		git clone "$@" -- "$from" "$dir"
		if [ "$from" != "$origin" ]; then
			if [ -n "$origin" ]; then git -C "$dir" remote set-url origin "$origin"; else git -C "$dir" remote remove origin; fi
		fi
	else
		git init --quiet -b main "$dir"
		git -C "$dir" commit --quiet --allow-empty -m "Begin"
	fi
	git -C "$dir" switch --quiet -c "$work"
	git -C "$dir" rev-parse --quiet --verify HEAD || true
else
	git -C "$1" rev-parse --quiet --verify HEAD || true
fi`

func (p *preparation) clone(ctx context.Context) error {
	if p.image != nil {
		return p.fromImage(ctx)
	}
	from := p.s.Repo
	if p.bundle != nil {
		if err := p.copyBundle(ctx); err != nil {
			return err
		}
		from = bundleDir + "/repo.bundle"
	}
	name := p.s.Author.Name + " (Harvest)"
	out, err := p.script(ctx, "", cloneScript, p.s.Dir, from, p.s.Repo, p.s.Branch, strconv.Itoa(p.s.Depth), p.s.WorkBranch(), name, p.s.Author.Email)
	if err != nil {
		return errors.Remedy(errors.Explainf(err, errors.KindOf(err), "the repository could not be cloned: %s", errors.Message(err)),
			"check its address, its branch, and whether a token is needed")
	}
	p.base = strings.TrimSpace(out)
	return nil
}

// copyBundle puts the bundle where the clone finds it.
func (p *preparation) copyBundle(ctx context.Context) error {
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	header := &tar.Header{Name: "repo.bundle", Mode: 0o644, Size: int64(len(p.bundle)), ModTime: time.Unix(0, 0)}
	err := w.WriteHeader(header)
	if err == nil {
		_, err = w.Write(p.bundle)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		return errors.Wrapf(err, "pack the bundle")
	}
	return p.m.opts.Fleet.CopyIn(ctx, p.s.Account, p.sandbox, bundleDir, &archive)
}

// WorkBranch is the branch that the agent works on.
func (s Session) WorkBranch() string { return "harvest/" + strings.TrimPrefix(s.ID, idPrefix) }

var (
	scpLike  = pattern.New(`^[A-Za-z0-9._-]+@[A-Za-z0-9.-]+:[^:]`)
	notNames = pattern.New(`[^A-Za-z0-9._-]+`)
)

// checkRepo returns the directory for the repository, or what is wrong with where it comes from.
func checkRepo(req Request) (dir string, err error) {
	if err := checkBranch(req.Branch); err != nil {
		return "", err
	}
	if req.Depth < 0 {
		return "", errors.Newf(errors.Invalid, "the depth must not be negative")
	}
	if req.Repo == "" {
		return path.Join(workspace, "work"), nil
	}
	bad := func(why string) (string, error) {
		return "", errors.Remedy(errors.Newf(errors.Invalid, "the repository cannot be cloned: %s", why), "give an address such as https://github.com/owner/name")
	}
	if len(req.Repo) > 2000 || strings.ContainsFunc(req.Repo, func(c rune) bool { return unicode.IsControl(c) || unicode.IsSpace(c) }) {
		return bad("its address has spaces or control characters, or is too long")
	}
	name := path.Base(req.Repo)
	if !scpLike().MatchString(req.Repo) {
		u, err := url.Parse(req.Repo)
		if err != nil || !slices.Contains([]string{"https", "http", "ssh", "git", "file"}, u.Scheme) || u.Scheme != "file" && u.Host == "" || strings.HasPrefix(u.Host, "-") {
			return bad("its address is none of https, http, ssh or git")
		}
		if _, has := u.User.Password(); has || u.User != nil && u.Scheme != "ssh" {
			return "", errors.Remedy(errors.Newf(errors.Invalid, "the repository's address has a user or a password in it"), "leave it out, and put a token into a secret")
		}
		name = path.Base(u.Path)
	}
	name = strings.Trim(notNames().ReplaceAllString(strings.TrimSuffix(name, ".git"), "-"), "-.")
	if name == "" {
		name = "work"
	}
	return path.Join(workspace, name), nil
}

// checkBranch returns Invalid if name cannot be a branch (git check-ref-format).
func checkBranch(name string) error {
	bad := strings.HasPrefix(name, "-") || strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") || strings.HasSuffix(name, ".") || strings.HasSuffix(name, ".lock") ||
		strings.Contains(name, "..") || strings.Contains(name, "//") || strings.Contains(name, "@{") || strings.ContainsAny(name, " ~^:?*[\\\x7f") ||
		strings.ContainsFunc(name, unicode.IsControl) || len(name) > 250
	if bad {
		return errors.Remedy(errors.Newf(errors.Invalid, "%.100q cannot be a branch", name), "give its name as `git branch` shows it")
	}
	return nil
}

// checkAuthor returns Invalid if git could not take the author as it is.
func checkAuthor(a Author) error {
	for _, text := range []string{a.Name, a.Email} {
		if strings.TrimSpace(text) == "" || len(text) > 200 || strings.ContainsAny(text, "<>\n\x00") {
			return errors.Remedy(errors.Newf(errors.Invalid, "the author needs a name and a mail address"), `such as "Ada Lovelace" and "ada@example.org"`)
		}
	}
	return nil
}
