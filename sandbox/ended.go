package sandbox

import (
	"context"
	"maps"

	"github.com/RelevanceAI/harvest/errors"
)

// Reasons for the end of a sandbox without a request.
const (
	EndLifetime = "lifetime" // its lifetime expired
	EndIdle     = "idle"     // it reached its idle limit
)

// Ended waits until the sandbox has ended, and returns its final record. When ctx ends, Ended stops waiting.
func (f *Fleet) Ended(ctx context.Context, account, ref string) (Sandbox, error) {
	sb, e, err := f.find(ctx, account, ref)
	if err != nil || e == nil {
		return sb, err
	}
	select {
	case <-e.ended:
	case <-ctx.Done():
		return Sandbox{}, errors.Wrapf(ctx.Err(), "wait for the end of %s", e.id)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return e.record.Clone(), nil
}

// SetTags changes the tags of a sandbox that has not ended. change receives a copy of the tags, and may return an
// error to refuse the change. Kinds: Invalid, NotFound, Gone (it has ended).
func (f *Fleet) SetTags(ctx context.Context, account, ref string,
	change func(map[string]string) error) (Sandbox, error) {
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return Sandbox{}, err
	}
	if e == nil {
		return Sandbox{}, sb.requireStatus(Creating, Running, Lost)
	}
	_, err = f.update(ctx, e, func(r *Sandbox) error {
		if err := r.requireStatus(Creating, Running, Lost); err != nil {
			return err
		}
		if r.Tags == nil {
			r.Tags = map[string]string{}
		}
		if err := change(r.Tags); err != nil {
			return err
		}
		var p problems
		checkTags(&p, r.Tags)
		sb = r.Clone()
		return p.err()
	})
	sb.Tags = maps.Clone(sb.Tags)
	return sb, err
}
