package gvisor

import (
	"context"
	"os"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/userns"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// findUsers determines whether sandboxes of this engine have users of their own. If the machine does not allow them,
// Capabilities and the log say so.
func (e *Engine) findUsers(ctx context.Context) {
	if e.rootless {
		return
	}
	if e.shared = userns.Check(e.opts.Dir, e.opts.Sentry); e.shared != nil {
		logf.Warnf(ctx, "sandboxes run as this machine's user 0, without its capabilities: %v", e.shared)
	}
}

// leaseUsers leases users for a sandbox. It returns nil if sandboxes of this engine have none of their own.
func (e *Engine) leaseUsers() (*userns.Lease, error) {
	if e.rootless || e.shared != nil {
		return nil, nil
	}
	return userns.Take()
}

// openMounts opens the directories that a sandbox with users from first mounts, so that they show these users as the
// owners of files: claim.Files. With first 0, the sandbox's file server opens them.
func (e *Engine) openMounts(ctx context.Context, claim *wire.ClaimArgs, first int) (err error) {
	if claim == nil || len(claim.Mounts) == 0 || first == 0 {
		return nil
	}
	defer func() {
		if err != nil {
			claim.CloseFiles()
			err = errors.Stage(err, "volumes")
		}
	}()
	namespace, err := userns.Namespace(first, e.opts.Sentry)
	if err != nil {
		return err
	}
	defer namespace.Close()
	for _, m := range claim.Mounts {
		owners := namespace
		if m.Foreign && e.opts.SetOwner != nil {
			done, err := e.opts.SetOwner(ctx, m.Source, first)
			if err != nil {
				return err
			}
			if done {
				owners = nil
			}
		}
		f, err := userns.Mount(m.Source, owners)
		if err != nil {
			return err
		}
		claim.Files = append(claim.Files, f)
	}
	return nil
}

// handOver returns the files that a new keeper of a sandbox inherits after its connection: wire.FirstFile.
func handOver(lease *userns.Lease, claim *wire.ClaimArgs) []*os.File {
	var files []*os.File
	if lease != nil {
		files = append(files, lease.Hold)
		if claim != nil {
			files = append(files, claim.Files...)
		}
	}
	return files
}
