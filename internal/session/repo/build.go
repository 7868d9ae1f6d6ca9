package repo

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/repo/failure"
)

const (
	// wholeAfter is the maximum age of the last whole build on which incremental builds are based. It limits the age
	// of parts that no file of the repository describes, such as system packages.
	wholeAfter = 7 * 24 * time.Hour
	staleCache = 7 * 24 * time.Hour
	// ending is the time limit for destroying sandboxes after a build.
	ending = time.Minute
	// outlive is how much longer than its build a sandbox may live, in case it is not destroyed.
	outlive = 10 * time.Minute
)

// attempt is a build under way.
type attempt struct {
	m     *Manager
	repo  Repo  // as it will be if the build succeeds
	build Build // result so far
	log   *journal

	box    string // sandbox ID; "" without one
	ids    string // uid:gid of its user
	token  string // for the repository's server, as the sandbox has it; "" if the sandbox's environment has it
	asRoot bool   // a step ran as root
	hooked bool   // the dev container has commands that install and build
}

// stage runs a step and adds its name to its error. command is for the log.
func (a *attempt) stage(name, command string, run func() error) error {
	start := time.Now()
	a.log.begin(name, command)
	if err := run(); err != nil {
		a.build.Output = a.log.last()
		return errors.Stage(err, name)
	}
	a.log.flush()
	a.build.Steps = append(a.build.Steps, Ran{Stage: name, Command: command, Seconds: time.Since(start).Seconds()})
	return nil
}

// create creates a sandbox of an image. The caller destroys it.
func (a *attempt) create(ctx context.Context, img string) (string, error) {
	req := a.repo.Recipe.Sandbox
	req.Image = img
	if img == a.repo.Image || img == a.build.Image {
		req.Commands = nil // the image contains them
	}
	req.Tags = maps.Clone(req.Tags)
	if req.Tags == nil {
		req.Tags = map[string]string{}
	}
	req.Tags[tagRepo] = a.repo.ID
	req.TimeoutSeconds = (a.repo.Recipe.limit() + outlive).Seconds()
	req.IdleTimeoutSeconds = 0
	token, err := a.withhold(ctx, &req)
	if err != nil {
		return "", err
	}
	sb, err := a.m.opts.Fleet.Create(ctx, a.repo.Account, req)
	if err != nil {
		return "", err
	}
	return sb.ID, a.lend(ctx, sb, token)
}

// end destroys a sandbox, even if ctx has ended.
func (a *attempt) end(ctx context.Context, box *string) {
	if *box == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), ending)
	defer cancel()
	if err := a.m.opts.Fleet.Destroy(ctx, a.repo.Account, *box); err != nil && !errors.Is(err, errors.NotFound) {
		logf.Errorf(ctx, "destroy the sandbox %s of a build: %v", *box, err)
	}
	*box = ""
}

// base finds the base image of a whole build, and the recipe's digest for that image.
func (a *attempt) base(ctx context.Context) (digest string, err error) {
	name := a.repo.Recipe.image()
	img, err := a.images().Find(ctx, name)
	if errors.Is(err, errors.NotFound) {
		img, err = a.images().Build(ctx, image.Spec{Base: name}, image.BuildOptions{
			Credentials: a.m.opts.Fleet.Credentials(a.repo.Account, ""),
			Log:         func(line string) { _, _ = a.log.Write([]byte(line + "\n")) },
		})
	}
	if err != nil {
		return "", err
	}
	return a.repo.Recipe.digest(a.repo.URL, a.repo.Branch, img.ID)
}

func (a *attempt) images() image.Builder {
	return image.Of(a.m.opts.Images, account.Owner(a.repo.Account))
}

// run determines the necessary work, and does it. It calls begin before the slow part.
func (a *attempt) run(ctx context.Context, whole bool, begin func() error) error {
	defer func() { a.end(ctx, &a.box) }()
	digest, now := "", remote{}
	err := a.stage("look", "", func() (err error) {
		if digest, err = a.base(ctx); err != nil {
			return err
		}
		now, err = a.look(ctx)
		return err
	})
	if err != nil {
		return err
	}
	a.build.Commit, a.build.RecipeDigest = now.commit, digest
	fresh := a.repo.Image != "" && a.repo.RecipeDigest == digest && !whole && a.m.hasImage(ctx, a.repo) &&
		time.Since(a.repo.Whole) < wholeAfter
	if fresh && a.repo.Commit == now.commit {
		a.build.Mode = Unchanged
		a.build.Image = a.repo.Image
		return nil
	}
	a.repo.Default, a.repo.RecipeDigest = now.branch, digest
	if err := begin(); err != nil {
		return err
	}
	if fresh {
		a.end(ctx, &a.box)
		ok, err := a.again(ctx)
		if ok || err != nil && ctx.Err() != nil {
			return err
		}
		if err != nil { // whatever is wrong with the last image, a whole build may succeed
			logf.Warnf(ctx, "the image of %s is made anew: %v", a.repo.Name, err)
		}
		a.end(ctx, &a.box)
	}
	return a.anew(ctx)
}

// look queries the remote's newest commit, in a sandbox that a whole build continues to use.
func (a *attempt) look(ctx context.Context) (now remote, err error) {
	if a.box, err = a.create(ctx, a.repo.Recipe.image()); err != nil {
		return remote{}, err
	}
	out, err := a.script(ctx, a.box, command{text: lookScript, params: []string{a.repo.URL, a.repo.Branch}})
	if err != nil {
		return remote{}, err
	}
	return parseRemote(string(out), a.repo.Branch)
}

// again builds the image incrementally from the last one. ok is false if that is not possible because the
// dependencies changed.
func (a *attempt) again(ctx context.Context) (ok bool, err error) {
	last := a.repo.Image
	if err := a.stage("sandbox", "", func() (err error) {
		a.box, err = a.create(ctx, last)
		return err
	}); err != nil {
		return false, err
	}
	var plan Plan
	var locks map[string]string
	if err := a.stage("fetch", "", func() error {
		out, err := a.script(ctx, a.box, command{text: updateScript,
			params: []string{a.repo.URL, a.repo.Default, a.repo.Dir}})
		if err != nil {
			return err
		}
		a.build.Commit = strings.TrimSpace(string(out))
		plan, locks, err = a.detect(ctx)
		return err
	}); err != nil {
		return false, err
	}
	if !plan.same(a.repo.Plan) || !maps.Equal(locks, a.repo.Locks) {
		a.note("other dependencies are needed: everything is installed anew")
		return false, nil
	}
	a.build.Mode, a.build.From = Incremental, last
	return true, a.finish(ctx, plan, locks, false)
}

// note writes a text to the log.
func (a *attempt) note(text string) { _, _ = a.log.Write([]byte(text + "\n")) }

// anew builds the image from the beginning.
func (a *attempt) anew(ctx context.Context) error {
	a.build.Mode = Whole
	if err := a.stage("sandbox", "", func() (err error) {
		if a.box == "" {
			a.box, err = a.create(ctx, a.repo.Recipe.image())
		}
		return err
	}); err != nil {
		return err
	}
	if sb, err := a.m.opts.Fleet.Get(ctx, a.repo.Account, a.box); err == nil {
		a.build.From = sb.ImageID
	}
	var plan Plan
	var locks map[string]string
	if err := a.stage("clone", "", func() error { return a.clone(ctx) }); err != nil {
		return err
	}
	if err := a.stage("detect", "", func() (err error) {
		plan, locks, err = a.detect(ctx)
		return err
	}); err != nil {
		return err
	}
	if plan.DevContainer != "" {
		if err := a.devContainer(ctx, plan.DevContainer); err != nil {
			return err
		}
	}
	a.repo.Whole = time.Now().UTC()
	return a.finish(ctx, plan, locks, true)
}

// clone clones the repository into the sandbox.
func (a *attempt) clone(ctx context.Context) error {
	ids, err := a.owner(ctx)
	if err != nil {
		return err
	}
	if _, err := a.script(ctx, a.box, command{text: dirScript, params: []string{path.Dir(a.repo.Dir), ids},
		user: "0:0", quiet: true}); err != nil {
		return err
	}
	out, err := a.script(ctx, a.box, command{text: cloneScript,
		params: []string{a.repo.URL, a.repo.Default, a.repo.Dir}})
	a.build.Commit = strings.TrimSpace(string(out))
	return err
}

// owner returns the uid:gid of the user that runs commands in the sandbox.
func (a *attempt) owner(ctx context.Context) (string, error) {
	if a.ids == "" {
		out, err := a.script(ctx, a.box, command{text: `id -u; id -g`, quiet: true})
		if err != nil {
			return "", err
		}
		a.ids = strings.Join(strings.Fields(string(out)), ":")
	}
	return a.ids, nil
}

func (a *attempt) detect(ctx context.Context) (Plan, map[string]string, error) {
	tree, err := a.inspect(ctx)
	if err != nil {
		return Plan{}, nil, err
	}
	plan, locks, err := Detect(tree, a.repo.Recipe.Parts)
	if err != nil {
		return Plan{}, nil, err
	}
	if image := a.repo.Recipe.Sandbox.Image; image != "" && plan.DevContainer != "" &&
		a.repo.Recipe.DevContainer == nil && plan.Override.DevContainer == nil {
		plan.Left = append(plan.Left, Gap{"devcontainer", plan.DevContainer + " is not followed, because --image " +
			"names " + image + ": --devcontainer, or no --image, follows it"})
		plan.DevContainer = ""
	}
	if plan.DevContainer != "" {
		a.note("found " + plan.DevContainer)
		if err := addSources(ctx, a, tree, plan.DevContainer, locks); err != nil {
			return Plan{}, nil, err
		}
	}
	for _, p := range plan.Projects {
		text := "found " + p.Manager + " in " + p.Dir
		if p.Pin != "" {
			text += ", " + p.Pin + " (" + p.PinFrom + ")"
		}
		if p.Node != "" {
			text += ", Node.js " + p.Node + " (" + p.NodeFrom + ")"
		}
		if p.Python != "" {
			text += ", Python " + p.Python + " (" + p.PythonFrom + ")"
		}
		a.note(text)
	}
	if len(plan.Projects) == 0 {
		a.note("found no package manager")
	}
	a.build.Left = nil
	for _, gap := range plan.Left {
		a.leave(gap)
	}
	return plan, locks, nil
}

// leave records a part that the image will lack.
func (a *attempt) leave(gap Gap) {
	a.build.Left = append(a.build.Left, gap)
	a.note("left out: " + gap.Why)
}

// finish runs the repository's own commands, and creates and verifies the image.
func (a *attempt) finish(ctx context.Context, plan Plan, locks map[string]string, install bool) error {
	a.build.Plan, a.build.Locks = plan, locks
	if plan.LFS || plan.Submodules {
		if err := a.stage("parts", "", func() error {
			_, err := a.script(ctx, a.box, command{text: partsScript, params: []string{a.repo.Dir,
				strconv.FormatBool(plan.LFS), strconv.FormatBool(plan.Submodules)}})
			return err
		}); err != nil {
			return err
		}
	}
	ready, err := a.contentHooks(ctx, plan, install)
	if err != nil {
		return err
	}
	if install && len(ready.Projects) > 0 {
		if err := a.stage("python", "", func() (err error) {
			ready, err = a.python(ctx, ready)
			return err
		}); err != nil {
			return err
		}
	} else {
		a.build.Left = append(a.build.Left, slices.DeleteFunc(slices.Clone(a.repo.Left),
			func(g Gap) bool { return g.What != gapPython })...)
	}
	for _, s := range steps(a.repo.Recipe, ready, install) {
		if err := a.step(ctx, s); err != nil {
			return err
		}
	}
	var img image.Image
	if err := a.stage("snapshot", "", func() error {
		ids, err := a.owner(ctx)
		if err != nil {
			return err
		}
		root := ""
		if a.asRoot {
			root = "1"
		}
		minutes := fmt.Sprint(int(staleCache.Minutes()))
		if _, err := a.script(ctx, a.box, command{text: cleanScript, params: []string{a.repo.Dir, ids, minutes, root},
			user: "0:0"}); err != nil {
			return err
		}
		img, err = a.m.opts.Fleet.Snapshot(ctx, a.repo.Account, a.box, fleet.SnapshotOptions{})
		return err
	}); err != nil {
		return err
	}
	a.build.Image = img.ID
	a.end(ctx, &a.box)
	// Until it is the repository's image, it is marked for removal, in case the server ends now.
	a.m.retire(&a.repo, img.ID)
	if _, err := a.m.save(ctx, a.repo.ID, func(r *Repo) { r.Retired = a.repo.Retired }); err != nil {
		return err
	}
	err = a.stage("verify", "", func() error { return a.verify(ctx, plan) })
	if err == nil {
		err = a.stage("name", "", func() error {
			_, err := a.images().Build(ctx, image.Spec{Base: img.ID},
				image.BuildOptions{Names: []string{imagePrefix + a.repo.Name}})
			return err
		})
	}
	if err != nil {
		a.build.Image = ""
		return err
	}
	if old := a.repo.Image; old != "" && old != img.ID {
		a.m.retire(&a.repo, old)
	}
	a.repo.Image, a.repo.Commit, a.repo.Plan, a.repo.Locks, a.repo.Built = img.ID, a.build.Commit, plan, locks,
		time.Now().UTC()
	a.repo.Left = a.build.Left
	return nil
}

// step runs a command of the repository.
func (a *attempt) step(ctx context.Context, s step) error {
	start, code := time.Now(), 0
	err := a.stage(s.stage, s.command, func() error {
		user := ""
		if s.root {
			user, a.asRoot = "0:0", true
		}
		x, err := a.m.opts.Fleet.Exec(ctx, a.repo.Account, a.box, fleet.ExecRequest{
			Args: []string{"/bin/sh", "-ec", s.command}, Workdir: path.Join(a.repo.Dir, s.dir), Env: a.env(stepEnv),
			User: user, Stdout: a.log, Stderr: a.log, Timeout: a.repo.Recipe.limit(),
		})
		if err != nil {
			return err
		}
		result, err := x.Wait(context.WithoutCancel(ctx)) // when ctx ends, the command is killed
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		code = result.ReturnCode
		setup := cmp.Or(a.repo.Recipe.Setup, a.build.Plan.Override.Setup)
		return failure.Explain(failure.Step{Stage: s.stage, Dir: s.dir, Command: s.command}, result, a.log.last(),
			failure.Repository{Name: a.repo.Name, URL: a.repo.URL, HasSetup: setup != nil && *setup != ""})
	})
	if err == nil {
		return nil
	}
	if s.mayFail && code != 0 {
		a.build.Output = ""
		a.note(fmt.Sprintf("the test ended with exit code %d; the image is made all the same", code))
		a.build.Steps = append(a.build.Steps, Ran{Stage: s.stage, Command: s.command, Code: code,
			Seconds: time.Since(start).Seconds()})
		return nil
	}
	return err
}

// verify boots the image and checks that the repository is usable in it.
func (a *attempt) verify(ctx context.Context, plan Plan) error {
	box, err := a.create(ctx, a.build.Image)
	defer a.end(ctx, &box)
	if err != nil {
		return err
	}
	node := ""
	for _, p := range plan.Projects {
		if p.isNode() && p.Dir == "." {
			node = "1"
		}
	}
	out, err := a.script(ctx, box, command{text: verifyScript, params: []string{a.repo.Dir, a.build.Commit, node}})
	a.build.Node = strings.TrimPrefix(strings.TrimSpace(string(out)), "v")
	return err
}
