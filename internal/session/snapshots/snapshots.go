// Package snapshots removes the files of sessions that nobody needs any longer. Each sandbox of a session leaves a
// snapshot at its end.
package snapshots

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

// Collector removes snapshots of all accounts.
type Collector struct {
	Fleet  *fleet.Fleet
	Images image.Builder
	Store  records.Store
}

// Collect removes the snapshots of sessions that ended before a time, and of earlier sandboxes of sessions that
// continued in another one. It leaves snapshots that have a name, that are in use, or that are also those of other
// sandboxes. It returns the number of removed snapshots.
func (c Collector) Collect(ctx context.Context, before time.Time) (removed int, err error) {
	accounts := map[string][]records.Session{}
	all, err := c.Store.Sessions(ctx, "", false, "", 0)
	if err != nil {
		return 0, err
	}
	for _, s := range all {
		accounts[s.Account] = append(accounts[s.Account], s)
	}
	for _, name := range slices.Sorted(maps.Keys(accounts)) {
		n, e := c.account(ctx, name, accounts[name], before)
		removed, err = removed+n, errors.Join(err, e)
	}
	return removed, err
}

// account removes the snapshots of an account's sessions.
func (c Collector) account(ctx context.Context, name string, sessions []records.Session,
	before time.Time) (removed int, err error) {
	boxes, err := c.Fleet.List(ctx, name, record.Filter{All: true})
	if err != nil {
		return 0, err
	}
	needed, surplus := sort(sessions, boxes, before)
	images := image.Of(c.Images, account.Owner(name))
	for _, id := range slices.Sorted(maps.Keys(surplus)) {
		if needed[id] {
			continue
		}
		switch img, e := images.Find(ctx, id); {
		case errors.KindOf(e) == errors.NotFound:
			continue
		case e != nil:
			err = errors.Join(err, e)
			continue
		case len(img.Names) > 0 || img.Snapshot == nil:
			continue
		}
		switch e := images.Delete(ctx, id); errors.KindOf(e) {
		case errors.Conflict, errors.NotFound:
		default:
			if e == nil {
				removed++
			}
			err = errors.Join(err, e)
		}
	}
	return removed, err
}

// sort divides the snapshots of sandboxes.
func sort(sessions []records.Session, boxes []record.Sandbox, before time.Time) (needed, surplus map[string]bool) {
	needed, surplus = map[string]bool{}, map[string]bool{}
	byID := map[string]records.Session{}
	old := func(s records.Session) bool { return !s.Ended.IsZero() && s.Ended.Before(before) }
	for _, s := range sessions {
		byID[s.ID] = s
		if !old(s) {
			needed[s.Sandbox.Image] = true // of a session that it continues
		}
	}
	last := map[string]record.Sandbox{}
	for _, box := range boxes {
		last[box.ID] = box
	}
	for _, box := range boxes {
		if box.SnapshotID == "" {
			continue
		}
		s, known := byID[box.Tags[preparation.Tag]]
		current, kept := last[s.SandboxID]
		switch {
		case !known:
			needed[box.SnapshotID] = true
		case old(s):
			surplus[box.SnapshotID] = true
		case box.ID == s.SandboxID, !kept, current.Status.Ended() && current.SnapshotID == "":
			needed[box.SnapshotID] = true
		default:
			surplus[box.SnapshotID] = true
		}
	}
	return needed, surplus
}
