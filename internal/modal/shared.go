package modal

import (
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/image"
)

// The library stores equal images once, such as two file snapshots without a change in between. Each client ID is a
// name of that image. A client therefore deletes an ID. The image is deleted with its last ID.

// removeImage marks the image's ID as deleted, and deletes the image if nothing else refers to it.
func (s *Server) removeImage(ctx context.Context, acc, id string, img image.Image) error {
	s.removing.Lock()
	defer s.removing.Unlock()
	more, err := s.wanted(ctx, acc, id, img)
	if err != nil {
		return err
	}
	if more {
		if ended(id) {
			return nil // the ID itself shows it
		}
		return s.apps.Delete(acc, id)
	}
	if err := s.images(acc).Delete(ctx, img.ID); err != nil {
		return err
	}
	if img.Snapshot == nil { // an equal build must get another ID
		return s.apps.Delete(acc, id)
	}
	gone := []string{plainImage(img.ID)}
	for _, name := range img.Names {
		gone = append(gone, strings.TrimPrefix(name, imagePrefix))
	}
	return s.apps.Undelete(acc, gone...)
}

// wanted reports whether the image is reachable other than by id: by another ID, by the name of a snapshot, or
// by the record of a sandbox that made it as its exit snapshot.
func (s *Server) wanted(ctx context.Context, acc, id string, img image.Image) (bool, error) {
	for _, name := range img.Names {
		other, ours := strings.CutPrefix(name, imagePrefix)
		if ours && other != id && !ended(other) && !s.apps.Deleted(acc, other) || !ours && img.Snapshot != nil {
			return true, nil
		}
	}
	plain := plainImage(img.ID)
	if img.Snapshot == nil || id == plain || s.apps.Deleted(acc, plain) {
		return false, nil
	}
	all, err := s.opts.Fleet.List(ctx, acc, record.Filter{All: true})
	return slices.ContainsFunc(all, func(sb record.Sandbox) bool { return sb.SnapshotID == img.ID }), err
}

// accountOf is the inverse of owner.
func accountOf(owner string) string {
	if owner == "" {
		return account.Personal
	}
	return owner
}
