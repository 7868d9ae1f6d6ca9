package s3sync

import (
	"time"
)

// Direction is which side a sync changes.
type Direction string

// The directions.
const (
	Up   Direction = "up"   // volume to bucket
	Down Direction = "down" // bucket to volume
	Both Direction = "both" // what changed on either side since the last time goes to the other
)

// Conflicts is what Both does with a path that changed on both sides.
type Conflicts string

// The policies.
const (
	KeepBoth   Conflicts = "both"   // the bucket's goes to the path with a suffix, the volume's stays; the default
	KeepNewer  Conflicts = "newer"  // the one changed last, the volume's if it cannot be told
	KeepLocal  Conflicts = "local"  // the volume's
	KeepRemote Conflicts = "remote" // the bucket's
)

// Op is what a sync does with a path.
type Op string

// The operations. Their names are what a plan shows.
const (
	Keep         Op = "keep"
	Upload       Op = "upload"
	Download     Op = "download"
	UpdateRemote Op = "update remote" // metadata only
	UpdateLocal  Op = "update local"
	DeleteRemote Op = "delete remote"
	DeleteLocal  Op = "delete local"
	Skip         Op = "skip" // it cannot be synchronised; Action.Err says why
)

// Action is what a sync does, or would do, with one path.
type Action struct {
	Op   Op
	Path string
	Kind Kind
	Size int64 // in bytes, of a file
	// Conflict is what was decided where both sides had changed, "" elsewhere.
	Conflict string
	Err      error

	local, remote *Entry
	// copyTo is where the volume's file goes before the bucket's replaces it, or the bucket's file goes instead.
	copyTo  string
	empty   bool  // a directory of the volume without entries
	first   bool  // delete it before what follows goes up
	pack    *pack // which may have the file; nil if none
	resumed bool  // an interrupted sync sent it, and no manifest knows it yet
}

// weight is what the entries of an action take of heavyBytes.
func (a *Action) weight() int64 {
	n := int64(0)
	for _, e := range []*Entry{a.local, a.remote} {
		if e != nil {
			n += e.memory()
		}
	}
	if n <= heavyEntry {
		return 0
	}
	return min(n, heavyBytes)
}

// policy is what decides between two sides.
type policy struct {
	dir      Direction
	mirror   bool
	conflict Conflicts
	stamp    time.Time // of copies
	checked  bool      // compare contents, not sizes and times
}

// decide says what happens to one path. local is what the volume has, remote what the bucket has, base what both had after the last sync
// that this machine remembers; each may be nil. It is a pure function of these.
func decide(p policy, local, base, remote *Entry, fresh bool) Action {
	a := Action{Op: Keep, local: local, remote: remote}
	if local == nil && remote == nil {
		return a
	}
	for _, e := range []*Entry{remote, local} {
		if e != nil {
			a.Path, a.Kind, a.Size = e.Path, e.Kind, e.Size
		}
	}
	if local != nil && base != nil && fresh && local.untouched(base) {
		// It went up before a sync was interrupted.
		a.remote, a.resumed = base, remote == nil || !base.sameRecord(remote)
		return a
	}
	switch p.dir {
	case Up:
		a.Op = up(p, local, base, remote)
	case Down:
		a.Op = down(p, local, base, remote)
	default:
		both(&a, p, base)
	}
	return a
}

// up is the volume's side winning.
func up(p policy, local, base, remote *Entry) Op {
	switch {
	case local == nil && p.mirror:
		return DeleteRemote
	case local == nil:
		return Keep
	case remote == nil:
		return Upload
	}
	switch diff(p, local, base, remote) {
	case equal:
		return Keep
	case metadata:
		return UpdateRemote
	}
	return Upload
}

// down is the bucket's side winning.
func down(p policy, local, base, remote *Entry) Op {
	switch {
	case remote == nil && p.mirror:
		return DeleteLocal
	case remote == nil:
		return Keep
	case local == nil:
		return Download
	case local.Kind == Dir && remote.unmarked():
		return Keep
	}
	switch diff(p, local, base, remote) {
	case equal:
		return Keep
	case metadata:
		return UpdateLocal
	}
	return Download
}

// both takes over what changed on one side, and asks the policy where it did on both.
func both(a *Action, p policy, base *Entry) {
	local, remote := a.local, a.remote
	if local != nil && remote != nil && diff(p, local, base, remote) == equal {
		return
	}
	// Without an inode, base was never on this machine: then only the bucket's side of it is known.
	here := base != nil && (base.Inode != 0 || base.Kind == Dir)
	touched, changed := local != nil, local != nil
	remoteChanged := remote != nil
	if here {
		touched = local == nil || !local.untouched(base)
		changed = local == nil || !local.sameContent(base)
		remoteChanged = remote == nil || !sameObject(base, remote)
	}
	switch {
	case !touched && !remoteChanged:
	case !remoteChanged:
		a.Op = DeleteRemote
		if local != nil {
			a.Op = up(p, local, base, remote)
		}
	case !changed:
		a.Op = DeleteLocal
		if remote != nil {
			a.Op = down(p, local, base, remote)
		}
	default:
		conflict(a, p)
	}
}

// conflict decides where both sides changed. Nobody's change is lost to a deletion.
func conflict(a *Action, p policy) {
	local, remote := a.local, a.remote
	switch {
	case local == nil:
		a.Op, a.Conflict = Download, "deleted here and changed in the bucket: the bucket's is kept"
		return
	case remote == nil:
		a.Op, a.Conflict = Upload, "changed here and deleted in the bucket: the volume's is kept"
		return
	case local.Kind == Dir && remote.Kind == Dir:
		a.Op = UpdateRemote
		return
	}
	choice := p.conflict
	if choice == KeepNewer {
		choice = KeepLocal
		if remote.ModTime > local.ModTime {
			choice = KeepRemote
		}
	}
	switch choice {
	case KeepLocal:
		a.Op, a.Conflict = Upload, "changed on both sides: the volume's is kept"
	case KeepRemote:
		a.Op, a.Conflict = Download, "changed on both sides: the bucket's is kept"
	default:
		a.Op, a.copyTo = Upload, conflictName(a.Path, p.stamp)
		a.Conflict = "changed on both sides: both are kept, the bucket's as " + a.copyTo
	}
}

// conflictName is the path of the bucket's file beside the volume's.
func conflictName(path string, at time.Time) string {
	return path + ".conflict-" + at.UTC().Format("20060102T150405Z")
}

// difference is how much two entries differ.
type difference int

const (
	equal difference = iota
	metadata
	content
)

// diff compares both sides, by what is cheap to know. base saves looking at attributes where the inode is as it was.
func diff(p policy, local, base, remote *Entry) difference {
	if local.Kind != remote.Kind {
		return content
	}
	if base != nil && local.untouched(base) && sameObject(base, remote) && !p.checked {
		return equal
	}
	if !local.sameContent(remote) {
		return content
	}
	if local.same(remote) && local.Kind != File {
		return equal
	}
	// Whether a file has other attributes is only known once it is opened.
	return metadata
}

// sameObject reports whether both are the same state of the bucket.
func sameObject(a, b *Entry) bool {
	if a == b {
		return true
	}
	if a.Kind != b.Kind || a.ETag != b.ETag {
		return false
	}
	if b.foreign {
		return a.Size == b.Size
	}
	return a.same(b)
}

// skipped is an action for what cannot be synchronised.
func skipped(path string, err error) Action { return Action{Op: Skip, Path: path, Err: err} }
