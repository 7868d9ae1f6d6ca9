package plan

import (
	"maps"

	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Change is a side's change of a path since this machine's last sync of it.
type Change struct {
	Content bool // or the kind, or existence
	Meta    bool // mode, owner, time, attributes
}

func (c Change) any() bool { return c.Content || c.Meta }

// NewHere returns the change of a side of which this machine has no record.
func NewHere(e *tree.Entry) Change { return Change{e != nil, e != nil} }

// Known reports whether this machine had base in its volume.
func Known(base *tree.Entry) bool { return base != nil && base.Inode != 0 }

// changedHere compares the volume's side with base, by its stat data only. A file with another or a
// changed inode counts as changed in content and metadata.
func (p Policy) changedHere(local, base *tree.Entry) Change {
	switch {
	case local == nil || local.Kind != base.Kind:
		return Change{true, true}
	case local.Kind == tree.File && local.Untouched(base):
		return Change{}
	case local.Kind == tree.File:
		return Change{true, true}
	case local.Kind == tree.Symlink && local.Target != base.Target:
		return Change{true, true}
	}
	return Change{Meta: !SameMeta(local, p.Restored(base, local))}
}

// changedThere compares the bucket's side with base.
func changedThere(base, remote *tree.Entry) Change {
	switch {
	case remote == nil:
		return Change{true, true}
	case SameObject(base, remote):
		return Change{}
	case sameStored(base, remote):
		return Change{Meta: true}
	}
	return Change{true, true}
}

// relinked reports whether the bucket's entry differs from base only in the name that Link has: a machine made or
// removed other names of the file. That does not keep a name which is deleted elsewhere.
func relinked(base, remote *tree.Entry) bool {
	if !Known(base) || remote == nil || !sameStored(base, remote) {
		return false
	}
	was := *base
	was.Link = remote.Link
	return was.Same(remote)
}

// SameMeta compares the metadata that stat returns.
func SameMeta(a, b *tree.Entry) bool {
	return a.Mode == b.Mode && a.UID == b.UID && a.GID == b.GID && a.ModTime == b.ModTime
}

// sameStored reports whether two entries of the bucket have the same content. Unknown content
// counts as different.
func sameStored(a, b *tree.Entry) bool {
	switch {
	case a.Kind != b.Kind:
		return false
	case a.Kind == tree.Dir:
		return true
	case a.Kind == tree.Symlink:
		return a.Target == b.Target
	case a.BodySize() != b.BodySize() || !b.Foreign && (a.Extents == nil) != (b.Extents == nil):
		return false
	}
	return a.ETag != "" && a.ETag == b.ETag || a.HasCRC && b.HasCRC && a.CRC == b.CRC
}

// Restored returns the entry that the volume has after e is restored over now.
func (p Policy) Restored(e, now *tree.Entry) *tree.Entry {
	out := *e
	out.Mode = p.Restores.Mode(e)
	if !p.Restores.Owners || !p.MayOwn {
		out.UID, out.GID = now.UID, now.GID
	}
	return &out
}

// Learn gives the volume's entry the facts that its record only assumes, and that nobody has set since, and returns the
// bucket's entry with the metadata that only the record has. So an assumption of one machine, about a directory that it
// knows from the keys in it, never replaces the metadata of another one.
func (p Policy) Learn(local, base, remote *tree.Entry) *tree.Entry {
	if Known(base) && local != nil && local.Kind == base.Kind {
		was := p.Restored(base, local)
		if base.Unset { // an interrupted sync made it
			local.UID, local.GID, local.ModTime = was.UID, was.GID, was.ModTime
			if local.Mode == tree.NewDirMode {
				local.Mode = was.Mode
			}
		}
		local.Unknown = local.StillUnknown(was)
	}
	if Known(base) && remote != nil {
		remote = remote.Learn(base)
	}
	if remote != nil && remote.Undescribed() && !remote.Foreign {
		e := *remote
		e.Foreign = true
		remote = &e
	}
	return remote
}

// Merged returns local with the metadata of remote that changed there since base, and not here.
func (p Policy) Merged(local, base, remote *tree.Entry) *tree.Entry {
	out, was := *local, p.Restored(base, local)
	now := p.Restored(remote, local)
	if local.Mode == was.Mode {
		out.Mode = now.Mode
	}
	if local.UID == was.UID {
		out.UID = now.UID
	}
	if local.GID == was.GID {
		out.GID = now.GID
	}
	if local.ModTime == was.ModTime {
		out.ModTime = now.ModTime
	}
	out.Xattrs = mergedXattrs(local.Xattrs, was.Xattrs, now.Xattrs)
	out.Unknown = local.Unknown & remote.Unknown
	return &out
}

// KeepMeta gives e, which replaces a file with base's content, the metadata that changed here and
// not in the bucket.
func (p Policy) KeepMeta(e, local, base *tree.Entry) {
	was := p.Restored(base, local)
	if local.Mode != was.Mode && e.Mode == base.Mode {
		e.Mode = local.Mode
	}
	if local.UID != was.UID && e.UID == base.UID {
		e.UID = local.UID
	}
	if local.GID != was.GID && e.GID == base.GID {
		e.GID = local.GID
	}
	if local.ModTime != was.ModTime && e.ModTime == base.ModTime {
		e.ModTime = local.ModTime
	}
	e.Xattrs = mergedXattrs(e.Xattrs, base.Xattrs, local.Xattrs)
	e.Unknown &= local.Unknown
}

// mergedXattrs returns mine with the changes that theirs has since base and mine does not have.
func mergedXattrs(mine, base, theirs map[string]string) map[string]string {
	if maps.Equal(base, theirs) {
		return mine
	}
	out := map[string]string{}
	for _, from := range []map[string]string{mine, theirs} {
		for name := range from {
			m, inMine := mine[name]
			b, inBase := base[name]
			v, inTheirs := theirs[name]
			if m == b && inMine == inBase {
				m, inMine = v, inTheirs
			}
			if inMine {
				out[name] = m
			}
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}
