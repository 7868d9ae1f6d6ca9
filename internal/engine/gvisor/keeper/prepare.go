package keeper

import (
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/guest"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// prepare starts the main container for an expected claim. If it fails, the sandbox is as before. Conflict if
// the sandbox has an image or a preparation. A claim waits until prepare returns.
func (k *Keeper) prepare(a *wire.PrepareArgs) error {
	if k.guest == nil {
		return errors.Newf(errors.Unsupported, "a container has no preparation")
	}
	k.image.Lock()
	defer k.image.Unlock()
	if err := k.errEnded(); err != nil {
		return err
	}
	k.mu.Lock()
	taken := k.args.Claim != nil
	k.mu.Unlock()
	if taken || k.guest.Prepared != nil {
		return errors.Newf(errors.Conflict, "the sandbox has an image already")
	}
	if err := k.onThread(func() error { return k.guest.Prepare(a) }); err != nil {
		return errors.Stage(err, "prepare")
	}
	id := k.guest.Args.Ref + guest.PreparedSuffix
	err := errors.Stage(k.guest.Fill(id, a.Layer), "snapshot")
	if err == nil && len(a.WarmUp) > 0 {
		err = errors.Stage(k.guest.WarmUp(id, a), "warm-up")
	}
	if err != nil {
		k.guest.Prepared.Gone = true
		k.guest.Unprepare()
	}
	return err
}
