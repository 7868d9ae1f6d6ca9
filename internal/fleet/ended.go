package fleet

import (
	"context"
	"maps"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// Ended waits until the sandbox has ended, and returns its final record. When ctx ends, Ended stops waiting.
func (f *Fleet) Ended(ctx context.Context, account, ref string) (record.Sandbox, error) {
	sb, e, err := f.find(ctx, account, ref)
	if err != nil || e == nil {
		return sb, err
	}
	select {
	case <-e.ended:
	case <-ctx.Done():
		return record.Sandbox{}, errors.Wrapf(ctx.Err(), "wait for the end of %s", e.id)
	}
	return f.current(e), nil
}

// SetTags changes the tags of a sandbox that has not ended. change receives a copy of the tags, and may return an
// error to refuse the change. Kinds: Invalid, NotFound, Gone (it has ended).
func (f *Fleet) SetTags(ctx context.Context, account, ref string,
	change func(map[string]string) error) (record.Sandbox, error) {
	sb, e, err := f.find(ctx, account, ref)
	if err != nil {
		return record.Sandbox{}, err
	}
	if e == nil {
		return record.Sandbox{}, sb.RequireStatus(record.Creating, record.Running, record.Lost, record.Suspended)
	}
	_, err = f.update(ctx, e, func(r *record.Sandbox) error {
		if err := r.RequireStatus(record.Creating, record.Running, record.Lost, record.Suspended); err != nil {
			return err
		}
		if r.Tags == nil {
			r.Tags = map[string]string{}
		}
		if err := change(r.Tags); err != nil {
			return err
		}
		var p spec.Problems
		spec.CheckTags(&p, r.Tags)
		sb = r.Clone()
		return p.Err()
	})
	sb.Tags = maps.Clone(sb.Tags)
	return sb, err
}
