package s3sync

import (
	"strings"
	"time"
	"unicode/utf8"
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
	// base is what this machine remembers of the path, and was what the bucket's manifest or list has of it. Each may be nil.
	base, was *Entry
	// copyTo is where the bucket's file goes beside the volume's.
	copyTo string
	empty  bool  // a directory of the volume without entries
	first  bool  // delete it before what follows goes up
	pack   *pack // which may have the file; nil if none
	merge  bool  // one side has another content, the other side other metadata: both stay
	aside  bool  // the sync is not about it
	unsure bool  // the object may be another one than remote: it is looked at, and then decided anew
}

// weight is what the entries of an action take of heavyBytes.
func (a *Action) weight() int64 {
	n := int64(0)
	for i, e := range []*Entry{a.local, a.remote, a.base} {
		if e != nil && (i == 0 || e != a.remote || i == 1) {
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
	restores restoring // what files have that came from the bucket
	mayOwn   bool      // files may be given to others
}

// decide says what happens to one path. local is what the volume has, remote what the bucket has, base what both had after the last sync
// that this machine remembers; each may be nil. read says what reading local showed, where that was necessary: see unclear. It is a pure function
// of these.
func decide(p policy, local, base, remote *Entry, read *change) Action {
	a := Action{Op: Keep, local: local, remote: remote, base: base}
	if local == nil && remote == nil {
		return a
	}
	for _, e := range []*Entry{remote, local} {
		if e != nil {
			a.Path, a.Kind, a.Size = e.Path, e.Kind, e.Size
		}
	}
	switch p.dir {
	case Up:
		a.Op = up(p, local, base, remote)
	case Down:
		a.Op = down(p, local, base, remote)
	default:
		both(&a, p, base, read)
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

// both takes over what changed on one side, merges content of one side with metadata of the other, and asks the policy where both have another
// content. The volume's side is compared with base: what others wrote into a manifest says nothing of it.
func both(a *Action, p policy, base *Entry, read *change) {
	local, remote := a.local, a.remote
	if local != nil && remote != nil && diff(p, local, base, remote) == equal {
		return
	}
	// Without an inode, base was never on this machine: then only the bucket's side of it is known.
	here, there := newHere(local), newHere(remote)
	if known(base) {
		there = changedThere(base, remote)
		if here = p.changedHere(local, base); read != nil {
			here = *read
		}
	}
	switch {
	case !here.any() && !there.any():
	case !there.any():
		a.Op = DeleteRemote
		if local != nil {
			a.Op = up(p, local, base, remote)
		}
	case !here.any():
		a.Op = DeleteLocal
		if remote != nil {
			a.Op = down(p, local, base, remote)
		}
	case local == nil || remote == nil || here.content && there.content || !known(base):
		conflict(a, p)
	case there.content:
		a.Op, a.merge = Download, true
	default:
		if a.Op = up(p, local, base, remote); a.Op == Keep {
			a.Op = UpdateRemote
		}
		a.merge = true
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
		if remote.ModTime.After(local.ModTime) {
			choice = KeepRemote
		}
	}
	switch choice {
	case KeepLocal:
		a.Op, a.Conflict = Upload, "changed on both sides: the volume's is kept"
	case KeepRemote:
		a.Op, a.Conflict = Download, "changed on both sides: the bucket's is kept"
	default:
		a.Op = Upload
		a.keep(keptBoth, p.stamp)
	}
}

// keep notes that the bucket's file is kept beside the volume's.
func (a *Action) keep(why string, stamp time.Time) {
	a.copyTo = conflictName(a.Path, stamp)
	a.Conflict = why + a.copyTo
}

// Conflicts of which both sides are kept, before the name of the copy.
const (
	keptBoth     = "changed on both sides: both are kept, the bucket's as "
	keptUnseen   = "changed in the bucket meanwhile: the volume's is kept, the bucket's as "
	keptAsFile   = "a directory here and a file in the bucket: both are kept, the file as "
	keptAsideDir = "a file here and a directory in the bucket: both are kept, the file as "
)

// conflictName is the path of the bucket's file beside the volume's.
func conflictName(path string, at time.Time) string {
	return besideName(path, ".conflict-"+at.UTC().Format("20060102T150405Z"))
}

// besideName is path with a suffix, short enough for a file system.
func besideName(path, suffix string) string {
	dir, name := parent(path), path[strings.LastIndexByte(path, '/')+1:]
	for len(name)+len(suffix) > maxName {
		_, n := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-n]
	}
	return join(dir, name+suffix)
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
	if base != nil && local.untouched(base) && !p.checked {
		if sameObject(base, remote) {
			return equal
		}
		if !sameStored(base, remote) {
			return content // whatever size and time say
		}
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
