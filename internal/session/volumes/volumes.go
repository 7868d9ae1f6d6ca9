// Package volumes keeps the files of sessions that outlive their sandboxes: the state of agents and the histories of
// sessions, and the memory of each repository.
package volumes

import (
	"context"
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

const (
	stateVolume = "harvest-agent-state"
	stateMount  = "/mnt/state"
)

// stateIn is the mount of the volume for state.
func stateIn() spec.Mount { return spec.Mount{Name: stateVolume, Path: stateMount} }

// Mounted adds the volumes of a session to the mounts of its sandbox, unless their places are taken. memory is the name
// of its memory; "" for none.
func Mounted(mounts []spec.Mount, memory string) []spec.Mount {
	mounts = slices.Clone(mounts)
	add := func(one spec.Mount) {
		if !slices.ContainsFunc(mounts, func(m spec.Mount) bool { return m.Path == one.Path }) {
			mounts = append(mounts, one)
		}
	}
	add(stateIn())
	if memory != "" {
		add(spec.Mount{Name: memoryVolume(memory), Path: MemoryMount})
	}
	return mounts
}

// StateDir returns the directory in the sandbox of a session for state that must outlive the sandbox.
func StateDir(session string) string { return stateMount + "/" + stateOf(session) }

// stateOf returns that directory in the volume.
func stateOf(session string) string { return "sessions/" + session }

// RemoveState removes the files of a session from the volume of its account. It logs a failure.
func RemoveState(ctx context.Context, volumes volume.Provider, owner, session string) {
	if volumes == nil {
		return
	}
	v, err := volume.Of(volumes, account.Owner(owner)).Open(ctx, stateVolume)
	if err == nil {
		err = v.Remove(ctx, stateOf(session))
	}
	if err != nil && errors.KindOf(err) != errors.NotFound {
		logf.Errorf(ctx, "remove the files of session %s: %v", session, err)
	}
}
