package mcp

import (
	"context"
	"crypto/rand"
	"fmt"
	"path"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// Tags of the sandboxes of environments.
const (
	tagKind = "mcp"
	kindOf  = "environment"
	tagDir  = "mcp.directory" // where commands run
	tagFrom = "mcp.from"      // repository
)

// idle is the idle limit of environments, in seconds, if the caller chooses none.
const idle = 3600

// place is an environment: a running sandbox, and the directory of its work.
type place struct {
	box       api.Sandbox
	name, dir string
	note      string // "" or a fact that the caller has to know
}

func placeOf(box api.Sandbox) *place {
	p := &place{box: box, name: box.Name, dir: box.Tags[tagDir]}
	if p.name == "" {
		p.name = box.ID
	}
	if p.dir == "" {
		p.dir = box.Workdir
	}
	if p.dir == "" {
		p.dir = "/"
	}
	return p
}

// path returns an absolute path for one that is relative to the working directory.
func (p *place) path(name string) string {
	if path.IsAbs(name) {
		return path.Clean(name)
	}
	return path.Join(p.dir, name)
}

// find returns the newest sandbox of this name that is an environment; its ID is "" if there is none.
func (s *server) find(ctx context.Context, name string) (api.Sandbox, error) {
	found, _, err := s.Client.Sandboxes(ctx, api.SandboxFilter{Name: name, All: true, Limit: 1,
		Tags: map[string]string{tagKind: kindOf}})
	if err != nil || len(found) == 0 {
		return api.Sandbox{}, err
	}
	return found[0], nil
}

// enter returns the environment of this name. One that has ended continues with its files. Other sandboxes of the
// account are environments, too, by their names or IDs.
func (s *server) enter(ctx context.Context, name string) (*place, error) {
	if name == "" {
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "no environment given"),
			"call environment_list for the names, or environment_create")
	}
	box, err := s.find(ctx, name)
	if err != nil {
		return nil, err
	}
	if box.ID == "" {
		if box, err = s.Client.Sandbox(ctx, name); err != nil {
			if errors.KindOf(err) == errors.NotFound {
				err = errors.Remedy(errors.Newf(errors.NotFound, "environment %q: does not exist", name),
					"call environment_list for the names, or environment_create to create it")
			}
			return nil, err
		}
	}
	return s.revive(ctx, box)
}

// revive returns the environment of a sandbox. If the sandbox has ended, a new one with its files replaces it.
func (s *server) revive(ctx context.Context, box api.Sandbox) (*place, error) {
	switch box.Status {
	case "running", "suspended": // what the tool does wakes it
		return placeOf(box), nil
	case "terminated", "failed", "lost":
	default:
		return nil, errors.Remedy(errors.Newf(errors.Conflict, "environment %s is %s", box.Name, box.Status),
			"call the tool again in a few seconds")
	}
	if box.SnapshotID == "" || box.Name == "" {
		why := box.SnapshotError
		if why == "" {
			why = box.Reason
		}
		return nil, errors.Remedy(errors.Newf(errors.Gone, "environment %s has ended, and its files are gone: %s",
			box.Name, why), "call environment_create")
	}
	made, err := s.Client.CreateSandbox(ctx, again(box, box.SnapshotID), nil)
	if err != nil {
		if errors.KindOf(err) == errors.NotFound {
			err = errors.Remedy(errors.Newf(errors.Gone, "environment %s was removed", box.Name),
				"call environment_create")
		}
		return nil, err
	}
	p := placeOf(made)
	p.note = "the environment had ended (" + box.Reason + "), and continues with its files; its processes are gone"
	return p, nil
}

// again returns the request for a sandbox like box, from an image.
func again(box api.Sandbox, image string) api.SandboxRequest {
	req := api.SandboxRequest{Image: image, Name: box.Name, Tags: box.Tags, Secrets: box.Secrets, Workdir: box.Workdir,
		User: box.User, Volumes: box.Volumes, Engine: box.Engine, Network: box.Network, Ports: box.Ports,
		CPU: box.Limits.CPU, Memory: box.Limits.Memory, Disk: box.Limits.Disk, Processes: box.Limits.Processes,
		Files: box.Limits.Files, VolumeFiles: box.Limits.VolumeFiles, GPU: box.GPU,
		IdleTimeoutSeconds: box.IdleTimeoutSeconds, IdleAction: box.IdleAction, StartCommand: box.StartCommand,
		SnapshotOnEnd: box.SnapshotOnEnd}
	return req
}

type createIn struct {
	Name        string   `json:"name,omitempty"`
	Repository  string   `json:"repository,omitempty"`
	Branch      string   `json:"branch,omitempty"`
	Committed   bool     `json:"committed,omitempty"`
	Image       string   `json:"image,omitempty"`
	Network     string   `json:"network,omitempty"`
	Secrets     []string `json:"secrets,omitempty"`
	CPU         float64  `json:"cpu,omitempty"`
	MemoryMiB   int64    `json:"memory_mib,omitempty"`
	IdleMinutes float64  `json:"idle_minutes,omitempty"`
}

func (createIn) arguments() arguments {
	return arguments{
		"name": "name of the environment, of letters, digits, '-', '_' and '.'; the name of an existing " +
			"environment continues it (default: chosen from the repository)",
		"repository": "what to work on: a directory of the user's machine (with harvest mcp only), an https " +
			"address of a repository, or none for an empty directory (default: the user's current repository " +
			"with its uncommitted work, if there is one)",
		"branch": "branch to start from (default: the current branch of a directory, the default branch of an " +
			"address)",
		"committed": "leave uncommitted changes of the user out",
		"image": "image to start from, such as python:3.12, node:22 or a snapshot (default: base, with Python " +
			"3.11, git and a C compiler)",
		"network":    "default for the internet, or none",
		"secrets":    "names of the user's secrets that commands need, such as github",
		"cpu":        "processor cores",
		"memory_mib": "memory in MiB",
		"idle_minutes": "minutes without commands after which the environment ends; its files are kept, and the " +
			"next call continues it (default: 60)",
	}
}

type listIn struct{}

func (listIn) arguments() arguments { return nil }

type removeIn struct {
	Environment string `json:"environment"`
	Discard     bool   `json:"discard,omitempty"`
}

func (removeIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"discard":     "remove it although it has commits that were not handed back",
	}
}

// environmentTools are the tools that create, list and remove environments.
type environmentTools struct{ *server }

func (s environmentTools) add(to tools) {
	add(to, "environment_create", "Create an environment",
		`Create an environment: an isolated computer with its own files, processes and network, in which commands `+
			`run without a risk for the user's machine. By default it has the user's current repository, with its `+
			`branch and uncommitted work; or give the address of a repository, or only an image. The work is on a `+
			`branch of its own, harvest/NAME. If the name exists, that environment continues as it is. The answer has `+
			`the name, which all other tools need, and the working directory.`,
		changes, s.create)
	add(to, "environment_list", "List environments",
		`List the environments of the account: name, state, working directory, origin, last use. Call it to come `+
			`back to earlier work.`,
		reads, s.list)
	add(to, "environment_remove", "Remove an environment",
		`End an environment and delete its files, when the work is done. It refuses if the branch has commits `+
			`that hand_back has not handed back, unless discard is true.`,
		destroys, s.remove)
}

func (s environmentTools) create(ctx context.Context, tell progress, in createIn) (answer, error) {
	if in.Name != "" {
		a, ok, err := s.existing(ctx, in.Name)
		if ok || err != nil {
			return a, err
		}
	}
	o, err := s.origin(ctx, in)
	if err != nil {
		return answer{}, err
	}
	defer o.close()
	req := s.request(in, o)
	if req.Name == "" {
		req.Name = strings.TrimLeft(o.name[:min(len(o.name), 40)], "_") + "-" + strings.ToLower(rand.Text()[:5])
	}
	tell("creating the environment " + req.Name)
	box, err := s.Client.CreateSandbox(ctx, req, func(p api.Progress) { tell(p.Message) })
	if err != nil {
		return answer{}, err
	}
	at := placeOf(box)
	tell("preparing the working directory")
	began, err := s.begin(ctx, at, o)
	if err != nil {
		s.abandon(ctx, box.ID)
		return answer{}, err
	}
	a := answer{at: at, text: fmt.Sprintf("Created the environment %s (image %s).", at.name, box.Image)}
	if base, ok := strings.CutPrefix(began, "begun "); ok {
		a.text += fmt.Sprintf(" Its branch is harvest/%s, which starts at %s%s.", at.name, base, o.described())
	}
	a.notes = append(a.notes, o.notes...)
	a.notes = append(a.notes, box.Notes...)
	return a, nil
}

// request is the request for the sandbox of a new environment.
func (s environmentTools) request(in createIn, o *origin) api.SandboxRequest {
	req := s.Sandbox
	req.Name, req.SnapshotOnEnd = in.Name, true
	req.Tags = map[string]string{tagKind: kindOf, tagDir: "/workspace/" + o.name}
	for key, value := range s.Sandbox.Tags {
		req.Tags[key] = value
	}
	if len(o.from) <= 256 {
		req.Tags[tagFrom] = o.from
	}
	if in.Image != "" {
		req.Image = in.Image
	}
	if in.Network != "" {
		req.Network = api.Network{Mode: in.Network}
	}
	req.Secrets = append(append([]string(nil), req.Secrets...), in.Secrets...)
	if in.CPU != 0 {
		req.CPU = in.CPU
	}
	if in.MemoryMiB != 0 {
		req.Memory = in.MemoryMiB << 20
	}
	switch {
	case in.IdleMinutes > 0:
		req.IdleTimeoutSeconds = in.IdleMinutes * 60
	case req.IdleTimeoutSeconds == 0:
		req.IdleTimeoutSeconds = idle
	}
	return req
}

// existing continues the environment of this name, if it exists.
func (s environmentTools) existing(ctx context.Context, name string) (a answer, ok bool, err error) {
	box, err := s.find(ctx, name)
	if err != nil || box.ID == "" {
		return a, false, err
	}
	at, err := s.revive(ctx, box)
	if errors.KindOf(err) == errors.Gone {
		return a, false, nil
	}
	if err != nil {
		return a, false, err
	}
	return answer{at: at, text: fmt.Sprintf("The environment %s exists already, and continues as it is; the other "+
		"arguments were ignored. For a new one, choose another name.", name)}, true, nil
}

// abandon removes a sandbox whose environment could not begin.
func (s *server) abandon(ctx context.Context, id string) {
	ctx = context.WithoutCancel(ctx)
	_ = s.Client.DestroySandbox(ctx, id) // it ends after its idle limit otherwise
	s.forget(ctx, id)
}

// forget removes the files that an ended sandbox has left.
func (s *server) forget(ctx context.Context, id string) {
	box, err := s.Client.Sandbox(ctx, id)
	if err == nil && box.SnapshotID != "" {
		_ = s.Client.DeleteImage(ctx, box.SnapshotID) // images that are not in use are removed after a while
	}
}

func (s environmentTools) list(ctx context.Context, _ progress, _ listIn) (answer, error) {
	text, err := s.listText(ctx)
	return answer{text: text}, err
}

// listText describes the environments of the account, newest first.
func (s *server) listText(ctx context.Context) (string, error) {
	found, _, err := s.Client.Sandboxes(ctx, api.SandboxFilter{All: true, Limit: 200,
		Tags: map[string]string{tagKind: kindOf}})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	seen := map[string]bool{}
	for _, box := range found {
		if seen[box.Name] {
			continue
		}
		seen[box.Name] = true
		state := box.Status
		if state != "running" && state != "suspended" {
			if box.SnapshotID == "" {
				continue
			}
			if _, err := s.Client.Image(ctx, box.SnapshotID); err != nil {
				continue // it was removed
			}
			state = "ended, continues at the next call"
		}
		fmt.Fprintf(&b, "%s: %s; working directory %s; branch harvest/%s; image %s", box.Name, state, box.Tags[tagDir],
			box.Name, box.Image)
		if from := box.Tags[tagFrom]; from != "" {
			fmt.Fprintf(&b, "; from %s", from)
		}
		if !box.LastUsed.IsZero() {
			fmt.Fprintf(&b, "; last used %s", box.LastUsed.UTC().Format(time.RFC3339))
		}
		b.WriteByte('\n')
	}
	if b.Len() == 0 {
		return "There are no environments. environment_create creates one.", nil
	}
	return b.String(), nil
}

func (s environmentTools) remove(ctx context.Context, _ progress, in removeIn) (answer, error) {
	box, err := s.find(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	if box.ID == "" {
		return answer{}, errors.Remedy(errors.Newf(errors.NotFound, "environment %q: does not exist", in.Environment),
			"call environment_list for the names")
	}
	if !in.Discard {
		at, err := s.revive(ctx, box) // it may have ended with changes
		if err == nil {
			err = s.unsaved(ctx, at)
			box = at.box
		}
		if err != nil && errors.KindOf(err) != errors.Gone {
			return answer{}, err
		}
	}
	if err := s.Client.DestroySandbox(ctx, box.ID); err != nil {
		return answer{}, err
	}
	s.forget(ctx, box.ID)
	return answer{text: fmt.Sprintf("Removed the environment %s.", in.Environment)}, nil
}

// unsaved returns Conflict if an environment has commits that were not handed back.
func (s *server) unsaved(ctx context.Context, at *place) error {
	if err := s.save(ctx, at); err != nil {
		return err
	}
	out, err := s.run(ctx, at.box.ID, script{name: "unsaved", env: map[string]string{"DIR": at.dir}})
	if err != nil || strings.TrimSpace(out) == "" {
		return err
	}
	return errors.Remedy(errors.Newf(errors.Conflict, "environment %s has %d commits that were not handed back, "+
		"the last one is %s", at.name, strings.Count(out, "\n"), strings.SplitN(out, "\n", 2)[0]),
		"call hand_back first, or pass discard: true to lose them")
}
