// Package plan decides what a sync does with each path, from the entries of the volume, the bucket
// and the last sync. Its functions are pure; they read neither disks nor buckets.
package plan

import (
	"context"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Direction is the side that a sync changes.
type Direction string

// The directions.
const (
	Up   Direction = "up"   // volume to bucket
	Down Direction = "down" // bucket to volume
	Both Direction = "both" // changes on either side since the last sync go to the other
)

// Conflicts is the policy of Both for a path that changed on both sides.
type Conflicts string

// The policies.
const (
	KeepBoth   Conflicts = "both"   // the bucket's file gets a suffix, the volume's stays; the default
	KeepNewer  Conflicts = "newer"  // the one with the later mtime; both if an mtime is in the future
	KeepLocal  Conflicts = "local"  // the volume's
	KeepRemote Conflicts = "remote" // the bucket's
)

// Op is the operation of a sync on a path.
type Op string

// The operations. Plans show their names.
const (
	Keep         Op = "keep"
	Upload       Op = "upload"
	Download     Op = "download"
	UpdateRemote Op = "update remote" // metadata only
	UpdateLocal  Op = "update local"
	DeleteRemote Op = "delete remote"
	DeleteLocal  Op = "delete local"
	Skip         Op = "skip" // cannot be synced; Action.Err has the reason
)

// Action is an operation that a sync does, or would do, on one path.
type Action struct {
	Op   Op
	Path string
	Kind tree.Kind
	Size int64 // in bytes, of a file
	// Conflict is the decision if both sides had changed, otherwise "".
	Conflict string
	Err      error

	Local, Remote *tree.Entry
	// Base is this machine's record of the path, and was is its entry in the bucket's manifest or
	// list. Each may be nil.
	Base, Was *tree.Entry
	// CopyTo is the path for the bucket's file beside the volume's, until the copy exists.
	CopyTo string
	// Copy is the path of that copy; "" if the decision about a conflict makes none.
	Copy  string
	Empty bool // a directory of the volume without entries
	First bool // delete it before later paths are uploaded
	// Packed returns the content of the file if a pack holds it; nil if none does.
	Packed func(ctx context.Context, e *tree.Entry) (body []byte, ok bool, err error)
	Merge  bool // one side changed the content, the other the metadata: keep both
	Aside  bool // not part of the sync
	Unsure bool // the object may have been replaced: look at it and decide again
	// Avoid is the ETag of an object that the plan did not know: another machine may be about to delete it, on the
	// condition of this ETag. The path's next object must have another one. "" if there is none.
	Avoid string
}

// Weight returns the share of HeavyBytes that the entries of an action take.
func (a *Action) Weight() int64 {
	n := int64(0)
	for i, e := range []*tree.Entry{a.Local, a.Remote, a.Base} {
		if e != nil && (i == 0 || e != a.Remote || i == 1) {
			n += e.MemorySize()
		}
	}
	if n <= heavyEntry {
		return 0
	}
	return min(n, HeavyBytes)
}

// Policy has the settings for decisions between two sides.
type Policy struct {
	Dir      Direction
	Mirror   bool
	Conflict Conflicts
	Stamp    time.Time      // of copies
	Checked  bool           // compare contents, not sizes and times
	Restores tree.Restoring // metadata that restores set
	MayOwn   bool           // the process may change owners
}

// Decide returns the action for one path. local is the volume's entry, remote the bucket's, and
// base that of both after the last sync in this machine's state; each may be nil. read is the
// change found by reading local, if that was necessary: see unclear. decide is a pure function of
// its arguments.
func Decide(p Policy, local, base, remote *tree.Entry, read *Change) Action {
	a := Action{Op: Keep, Local: local, Remote: remote, Base: base}
	if local == nil && remote == nil {
		return a
	}
	for _, e := range []*tree.Entry{remote, local} {
		if e != nil {
			a.Path, a.Kind, a.Size = e.Path, e.Kind, e.Size
		}
	}
	switch p.Dir {
	case Up:
		a.Op = up(p, local, base, remote)
	case Down:
		a.Op = down(p, local, base, remote)
	default:
		both(&a, p, base, read)
	}
	return a
}

// up decides if the volume's side wins.
func up(p Policy, local, base, remote *tree.Entry) Op {
	switch {
	case local == nil && p.Mirror:
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

// down decides if the bucket's side wins.
func down(p Policy, local, base, remote *tree.Entry) Op {
	switch {
	case remote == nil && p.Mirror:
		return DeleteLocal
	case remote == nil:
		return Keep
	case local == nil:
		return Download
	case local.Kind == tree.Dir && remote.Unmarked():
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

// both takes over a change on one side, merges content of one side with metadata of the other, and
// follows the policy if the content changed on both. It compares the volume's side with base, since
// others could have written anything into the manifest.
func both(a *Action, p Policy, base *tree.Entry, read *Change) {
	local, remote := a.Local, a.Remote
	if local != nil && remote != nil && diff(p, local, base, remote) == equal {
		return
	}
	// Without an inode, base was never on this machine: it describes only the bucket's side.
	here, there := NewHere(local), NewHere(remote)
	if Known(base) {
		there = changedThere(base, remote)
		if here = p.changedHere(local, base); read != nil {
			here = *read
		}
	}
	switch {
	case !here.any() && !there.any():
	case !there.any(), local == nil && relinked(base, remote):
		a.Op = DeleteRemote
		if local != nil {
			a.Op = up(p, local, base, remote)
		}
	case !here.any():
		a.Op = DeleteLocal
		if remote != nil {
			a.Op = down(p, local, base, remote)
		}
	case local == nil || remote == nil || here.Content && there.Content || !Known(base):
		conflict(a, p)
	case there.Content:
		a.Op, a.Merge = Download, true
	default:
		if a.Op = up(p, local, base, remote); a.Op == Keep {
			a.Op = UpdateRemote
		}
		a.Merge = true
	}
}

// conflict decides if both sides changed. A deletion never discards a change.
func conflict(a *Action, p Policy) {
	local, remote := a.Local, a.Remote
	switch {
	case local == nil:
		a.Op, a.Conflict = Download, "deleted here and changed in the bucket: the bucket's is kept"
		return
	case remote == nil:
		a.Op, a.Conflict = Upload, "changed here and deleted in the bucket: the volume's is kept"
		return
	case local.Kind == tree.Dir && remote.Kind == tree.Dir:
		a.Op = UpdateRemote
		return
	}
	choice, why := p.Conflict, keptBoth
	if choice == KeepNewer {
		choice = KeepLocal
		if remote.ModTime.After(local.ModTime) {
			choice = KeepRemote
		}
		if now := tree.At(p.Stamp.Add(futureSkew)); local.ModTime.After(now) || remote.ModTime.After(now) {
			choice, why = KeepBoth, keptFuture
		}
	}
	switch choice {
	case KeepLocal:
		a.Op, a.Conflict = Upload, "changed on both sides: the volume's is kept"
	case KeepRemote:
		a.Op, a.Conflict = Download, "changed on both sides: the bucket's is kept"
	default:
		a.Op = Upload
		a.Keep(why, p.Stamp)
	}
}

// futureSkew is how far ahead of this machine's clock another one may be. KeepNewer trusts no mtime beyond it, because
// it says nothing about the order of the edits.
const futureSkew = 5 * time.Minute

// Keep makes the action keep the bucket's file beside the volume's.
func (a *Action) Keep(why string, stamp time.Time) {
	a.CopyTo = ConflictName(a.Path, stamp)
	a.Copy = a.CopyTo
	a.Conflict = why + a.CopyTo
}

// Kept notes that the copy of the bucket's file exists, at another path than planned if that was in use.
func (a *Action) Kept(path string) {
	a.Conflict = strings.TrimSuffix(a.Conflict, a.Copy) + path
	a.CopyTo, a.Copy = "", path
}

// Settled notes that the sides do not contradict each other after all.
func (a *Action) Settled() { a.Conflict, a.CopyTo, a.Copy = "", "", "" }

// Descriptions of conflicts in which both sides are kept, followed by the name of the copy.
const (
	keptBoth     = "changed on both sides: both are kept, the bucket's as "
	keptFuture   = "changed on both sides, and a modification time lies in the future: both are kept, the bucket's as "
	KeptUnseen   = "changed in the bucket meanwhile: the volume's is kept, the bucket's as "
	KeptAsFile   = "a directory here and a file in the bucket: both are kept, the file as "
	KeptAsideDir = "a file here and a directory in the bucket: both are kept, the file as "
)

// ConflictName returns the path for the bucket's file beside the volume's.
func ConflictName(path string, at time.Time) string {
	return BesideName(path, ".conflict-"+at.UTC().Format("20060102T150405Z"))
}

// BesideName returns path with a suffix, shortened to fit a file system.
func BesideName(path, suffix string) string {
	dir, name := tree.Parent(path), path[strings.LastIndexByte(path, '/')+1:]
	for len(name)+len(suffix) > tree.MaxName {
		_, n := utf8.DecodeLastRuneInString(name)
		name = name[:len(name)-n]
	}
	return tree.Join(dir, name+suffix)
}

// difference is the degree to which two entries differ.
type difference int

const (
	equal difference = iota
	metadata
	content
)

// diff compares both sides by their cheap properties. base makes it unnecessary to read attributes
// if the inode is unchanged.
func diff(p Policy, local, base, remote *tree.Entry) difference {
	if local.Kind != remote.Kind {
		return content
	}
	if base != nil && local.Untouched(base) && !p.Checked {
		if SameObject(base, remote) {
			return equal
		}
		if !sameStored(base, remote) {
			return content // even if size and time are the same
		}
		if local.Kind == tree.File {
			return metadata // even if the time differs
		}
	}
	if !local.SameContent(remote) {
		return content
	}
	if local.Same(remote) && local.Kind != tree.File {
		return equal
	}
	// Attributes are only known once the file is opened.
	return metadata
}

// SameObject reports whether both are the same state of an object in the bucket.
func SameObject(a, b *tree.Entry) bool {
	if a == b {
		return true
	}
	if a.Kind != b.Kind || a.ETag != b.ETag {
		return false
	}
	if b.Foreign {
		return a.Size == b.Size
	}
	return a.Same(b)
}

// Skipped returns an action for a path that cannot be synced.
func Skipped(path string, err error) Action { return Action{Op: Skip, Path: path, Err: err} }

// An entry may have some MiB of attributes and extents. Entries over heavyEntry bytes share
// HeavyBytes while they are among the paths ahead.
const (
	heavyEntry = 8 << 10
	HeavyBytes = 32 << 20
)
