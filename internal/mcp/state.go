package mcp

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

type portIn struct {
	Environment string `json:"environment"`
	Port        int    `json:"port"`
}

func (portIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"port":        "port on which a program in the environment listens, on any of its addresses",
	}
}

type snapshotIn struct {
	Environment string `json:"environment"`
	Name        string `json:"name,omitempty"`
}

func (snapshotIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"name":        "name of the snapshot, such as before-upgrade (default: its ID)",
	}
}

type forkIn struct {
	Environment string `json:"environment"`
	Name        string `json:"name"`
}

func (forkIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment to copy",
		"name":        "name of the copy",
	}
}

type restoreIn struct {
	Environment string `json:"environment"`
	Snapshot    string `json:"snapshot"`
}

func (restoreIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"snapshot":    "name or ID of the snapshot",
	}
}

// stateTools are the tools that keep states of environments.
type stateTools struct{ *server }

func (s stateTools) add(to tools) {
	add(to, "port", "Reach a port",
		`Make a port of an environment reachable, for the user's browser or a program, and return its address. `+
			`Start the server first, with run and background: true.`,
		changes, s.port)
	add(to, "snapshot", "Take a snapshot",
		`Keep all files of an environment as they are now, installed packages included. restore goes back to a `+
			`snapshot, and environment_create begins with one as its image.`,
		changes, s.snapshot)
	add(to, "fork", "Fork an environment",
		`Copy an environment with all its files, to try something in the copy. The copy has a branch of its own. `+
			`Processes are not copied.`,
		changes, s.fork)
	add(to, "restore", "Restore a snapshot",
		`Set all files of an environment back to a snapshot. Its processes end. The state before is kept as a `+
			`snapshot, whose ID is in the answer.`,
		destroys, s.restore)
}

func (s stateTools) port(ctx context.Context, _ progress, in portIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	if in.Port < 1 || in.Port > 65535 {
		return answer{}, errors.Remedy(errors.Newf(errors.Invalid, "invalid port %d", in.Port),
			"give a number from 1 to 65535")
	}
	conn, err := s.Client.Dial(ctx, at.box.ID, in.Port)
	if err != nil {
		return answer{}, errors.Remedy(errors.Newf(errors.KindOf(err), "nothing listens on port %d of the "+
			"environment: %s", in.Port, errors.Message(err)), "start the server with run and background: true, "+
			"read its output with run_output, then call port again")
	}
	_ = conn.Close()
	if s.Local != nil {
		address, err := s.Local.Forward(ctx, at.box.ID, in.Port)
		return answer{at: at, text: address, notes: []string{"for programs of the user's machine, as long as this " +
			"connection lasts"}}, err
	}
	link, err := s.Client.CreatePortLink(ctx, at.box.ID, api.PortLinkRequest{Port: in.Port})
	if err != nil {
		return answer{}, err
	}
	return answer{at: at, text: link.URL, notes: []string{"for everyone who has the address, until " +
		link.Expires.UTC().Format("2006-01-02 15:04 UTC")}}, nil
}

func (s stateTools) snapshot(ctx context.Context, tell progress, in snapshotIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	if err := s.save(ctx, at); err != nil {
		return answer{}, err
	}
	tell("taking the snapshot")
	image, err := s.Client.SnapshotSandbox(ctx, at.box.ID, api.SnapshotRequest{Name: in.Name})
	if err != nil {
		return answer{}, err
	}
	name := in.Name
	if name == "" {
		name = image.ID
	}
	return answer{at: at, text: fmt.Sprintf("Took the snapshot %s.", name), notes: []string{fmt.Sprintf(
		`to go back: restore {"environment": %q, "snapshot": %q}`, at.name, name)}}, nil
}

func (s stateTools) fork(ctx context.Context, tell progress, in forkIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	if err := git.CheckBranch("harvest/" + in.Name); err != nil {
		return answer{}, err
	}
	if other, err := s.find(ctx, in.Name); err != nil || other.Status == "running" ||
		other.Status == "suspended" {
		if err == nil {
			err = errors.Remedy(errors.Newf(errors.Conflict, "environment %q: exists already", in.Name),
				"choose another name")
		}
		return answer{}, err
	}
	if err := s.save(ctx, at); err != nil {
		return answer{}, err
	}
	tell("copying the environment")
	box, err := s.Client.ForkSandbox(ctx, at.box.ID, api.ForkRequest{Name: in.Name})
	if err != nil {
		return answer{}, err
	}
	made := placeOf(box)
	branch := "harvest/" + made.name
	if _, err := s.run(ctx, box.ID, script{name: "branch", env: map[string]string{"DIR": made.dir,
		"WORK": branch, "ID": rand.Text()}}); err != nil {
		s.abandon(ctx, box.ID)
		return answer{}, err
	}
	return answer{at: made, text: fmt.Sprintf("Created the environment %s as a copy of %s.", made.name, at.name)}, nil
}

func (s stateTools) restore(ctx context.Context, tell progress, in restoreIn) (answer, error) {
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	if at.box.Name == "" {
		return answer{}, errors.Remedy(errors.Newf(errors.Unsupported, "sandbox %s has no name", at.box.ID),
			"create an environment with the snapshot as its image")
	}
	image, err := s.Client.Image(ctx, in.Snapshot)
	if err != nil {
		return answer{}, errors.Remedy(errors.Newf(errors.KindOf(err), "snapshot %q: %s", in.Snapshot,
			errors.Message(err)),
			"give the name or ID from the answer of snapshot")
	}
	defer s.Locks.lock(at.box.ID)()
	if _, err := s.commit(ctx, at, "Before the restore of "+in.Snapshot, "restore", ""); err != nil {
		return answer{}, err
	}
	tell("keeping the present state")
	before, err := s.Client.SnapshotSandbox(ctx, at.box.ID, api.SnapshotRequest{})
	if err != nil {
		return answer{}, err
	}
	ctx = context.WithoutCancel(ctx) // between the two steps, the environment does not exist
	if err := s.Client.DestroySandbox(ctx, at.box.ID); err != nil {
		return answer{}, err
	}
	tell("restoring the snapshot")
	box, err := s.Client.CreateSandbox(ctx, again(at.box, image.ID), nil)
	if err != nil {
		if _, back := s.Client.CreateSandbox(ctx, again(at.box, before.ID), nil); back != nil {
			err = errors.Remedy(err, "create an environment with the image %s, which has the files", before.ID)
		}
		return answer{}, err
	}
	s.forget(ctx, at.box.ID)
	return answer{at: placeOf(box), text: fmt.Sprintf("Restored the snapshot %s.", in.Snapshot), notes: []string{
		"the state before is the snapshot " + strings.TrimSpace(before.ID)}}, nil
}
