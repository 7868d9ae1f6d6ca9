package tree

import (
	"math"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// limits are the first and last time that a tree's file system can hold. The kernel stores the
// nearest one instead of a time outside of them.
type limits struct{ first, last int64 } // seconds since 1970

// StoredTime returns the time that the tree's file system stores for at, which is nearly always at.
func (t *Tree) StoredTime(at Time) Time {
	if at.Sec == int64(int32(at.Sec)) {
		return at
	}
	switch l := t.limits(); {
	case at.Sec >= l.last:
		return Time{Sec: l.last}
	case at.Sec <= l.first:
		return Time{Sec: l.first}
	}
	return at
}

// findLimits probes the file system with an unnamed file. If none can be made, it assumes no
// limits.
func (t *Tree) findLimits() limits {
	all := limits{math.MinInt64, math.MaxInt64}
	fd, err := unix.Openat(int(t.root.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return all
	}
	defer unix.Close(fd)
	file := filepath.Join("/proc/self/fd", strconv.Itoa(fd))
	stored := func(sec int64) int64 {
		var st unix.Stat_t
		at := unix.Timespec{Sec: sec}
		if unix.UtimesNanoAt(unix.AT_FDCWD, file, []unix.Timespec{at, at}, 0) != nil || unix.Fstat(fd, &st) != nil ||
			st.Mtim.Sec == sec {
			return 0
		}
		return st.Mtim.Sec
	}
	if first := stored(-Farthest); first < 0 {
		all.first = first
	}
	if last := stored(Farthest); last > 0 {
		all.last = last
	}
	return all
}

// AdoptTime sets the time of a volume's entry to that of another entry, if the file system stores
// the former for the latter.
func (t *Tree) AdoptTime(local *Entry, others ...*Entry) {
	for _, o := range others {
		if local != nil && o != nil && o.Kind == local.Kind && o.ModTime != local.ModTime &&
			t.StoredTime(o.ModTime) == local.ModTime {
			local.ModTime = o.ModTime
			return
		}
	}
}

// asSet returns the entry of a file that was given the metadata of e.
func (t *Tree) asSet(e *Entry, st *unix.Stat_t) *Entry {
	at := FromStat(e.Path, st)
	t.AdoptTime(at, e)
	return at
}

// ErrTime reports a file whose time differs from that in the bucket. The bucket keeps the correct
// one.
var ErrTime = errors.Newf(errors.Unsupported,
	"the volume's file system cannot store its time, which is too far from 1970; the nearest possible time was stored")
