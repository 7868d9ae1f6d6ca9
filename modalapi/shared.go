package modalapi

import (
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/sandbox"
)

// Equal images are one in the library, such as two snapshots of files that have not changed in between, and each of their IDs is a name of
// it. So what a client deletes is an ID, and the image goes with the last one.

// removeImage makes that ID of the image one that there is not, and deletes the image unless somebody may still ask for it.
func (s *Server) removeImage(ctx context.Context, acc, id string, img image.Image) error {
	s.removing.Lock()
	defer s.removing.Unlock()
	more, err := s.wanted(ctx, acc, id, img)
	if err != nil {
		return err
	}
	if more {
		if ended(id) {
			return nil // which its ID says
		}
		return s.apps.delete(acc, id)
	}
	if err := s.images(acc).Delete(ctx, img.ID); err != nil {
		return err
	}
	if img.Snapshot == nil { // a build of the same makes another one, whose ID must be another one too
		return s.apps.delete(acc, id)
	}
	gone := []string{plainImage(img.ID)}
	for _, name := range img.Names {
		gone = append(gone, strings.TrimPrefix(name, imagePrefix))
	}
	return s.apps.undelete(acc, gone...)
}

// wanted reports whether somebody may ask for the image by something else than id: another ID, a name that a snapshot was given, or the
// record of a sandbox that it was taken of on its end.
func (s *Server) wanted(ctx context.Context, acc, id string, img image.Image) (bool, error) {
	for _, name := range img.Names {
		other, ours := strings.CutPrefix(name, imagePrefix)
		if ours && other != id && !ended(other) && !s.apps.deleted(acc, other) || !ours && img.Snapshot != nil {
			return true, nil
		}
	}
	plain := plainImage(img.ID)
	if img.Snapshot == nil || id == plain || s.apps.deleted(acc, plain) {
		return false, nil
	}
	all, err := s.opts.Fleet.List(ctx, acc, sandbox.Filter{All: true})
	return slices.ContainsFunc(all, func(sb sandbox.Sandbox) bool { return sb.SnapshotID == img.ID }), err
}

// accountOf is the reverse of owner.
func accountOf(owner string) string {
	if owner == "" {
		return account.Personal
	}
	return owner
}
