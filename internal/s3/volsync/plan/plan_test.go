package plan

import (
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

func TestDecide(t *testing.T) {
	file := func(size int64, inode uint64) *tree.Entry {
		return &tree.Entry{Path: "f", Kind: tree.File, Size: size, ModTime: tree.Nano(size), Inode: inode, Change: size,
			ETag: "e" + string(rune('0'+size))}
	}
	link := func(size int64, first string) *tree.Entry {
		e := file(size, 0)
		e.Link = first
		return e
	}
	dir := &tree.Entry{Path: "f", Kind: tree.Dir, Mode: 0o755}
	for _, c := range []struct {
		name                string
		p                   Policy
		local, base, remote *tree.Entry
		want                Op
	}{
		{"up new", Policy{Dir: Up}, file(1, 1), nil, nil, Upload},
		{"up same inode", Policy{Dir: Up}, file(1, 1), file(1, 1), file(1, 1), Keep},
		{"up unknown inode", Policy{Dir: Up}, file(1, 1), nil, file(1, 0), UpdateRemote},
		{"up changed", Policy{Dir: Up}, file(2, 1), file(1, 1), file(1, 1), Upload},
		{"up only there", Policy{Dir: Up}, nil, nil, file(1, 0), Keep},
		{"up only there, mirror", Policy{Dir: Up, Mirror: true}, nil, nil, file(1, 0), DeleteRemote},
		{"up contents", Policy{Dir: Up, Checked: true}, file(1, 1), file(1, 1), file(1, 1), UpdateRemote},
		{"down new", Policy{Dir: Down}, nil, nil, file(1, 0), Download},
		{"down only here", Policy{Dir: Down}, file(1, 1), nil, nil, Keep},
		{"down only here, mirror", Policy{Dir: Down, Mirror: true}, file(1, 1), nil, nil, DeleteLocal},
		{"down changed", Policy{Dir: Down}, file(1, 1), file(1, 1), file(2, 0), Download},
		{"down directory", Policy{Dir: Down}, dir, nil, dir, Keep},
		{"both nothing", Policy{Dir: Both}, file(1, 1), file(1, 1), file(1, 1), Keep},
		{"both here", Policy{Dir: Both}, file(2, 1), file(1, 1), file(1, 1), Upload},
		{"both there", Policy{Dir: Both}, file(1, 1), file(1, 1), file(2, 0), Download},
		{"both deleted here", Policy{Dir: Both}, nil, file(1, 1), file(1, 1), DeleteRemote},
		{"both deleted there", Policy{Dir: Both}, file(1, 1), file(1, 1), nil, DeleteLocal},
		{"both never here", Policy{Dir: Both}, nil, file(1, 0), file(1, 0), Download},
		{"both new here", Policy{Dir: Both}, file(1, 1), nil, nil, Upload},
		{"both deleted here, changed there", Policy{Dir: Both}, nil, file(1, 1), file(2, 0), Download},
		{"both deleted here, relinked there", Policy{Dir: Both}, nil, file(1, 1), link(1, "a"), DeleteRemote},
		{"both deleted here, relinked and changed there", Policy{Dir: Both}, nil, file(1, 1), link(2, "a"), Download},
		{"both never here, relinked there", Policy{Dir: Both}, nil, file(1, 0), link(1, "a"), Download},
		{"both relinked there", Policy{Dir: Both}, file(1, 1), file(1, 1), link(1, "a"), UpdateLocal},
		{"both changed here, deleted there", Policy{Dir: Both}, file(2, 1), file(1, 1), nil, Upload},
		{"both changed, local", Policy{Dir: Both, Conflict: KeepLocal}, file(2, 1), file(1, 1), file(3, 0), Upload},
		{"both changed, remote", Policy{Dir: Both, Conflict: KeepRemote}, file(2, 1), file(1, 1), file(3, 0), Download},
		{"both changed, newer", Policy{Dir: Both, Conflict: KeepNewer}, file(4, 1), file(1, 1), file(3, 0), Upload},
		{"both changed, both", Policy{Dir: Both, Conflict: KeepBoth}, file(2, 1), file(1, 1), file(3, 0), Upload},
		{"both directories", Policy{Dir: Both}, &tree.Entry{Path: "f", Kind: tree.Dir, Mode: 0o700}, nil, dir,
			UpdateRemote},
	} {
		if got := Decide(c.p, c.local, c.base, c.remote, nil); got.Op != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.Op, c.want)
		}
	}
	a := Decide(Policy{Dir: Both, Conflict: KeepBoth, Stamp: time.Unix(0, 0)}, file(2, 1), file(1, 1), file(3, 0), nil)
	if a.CopyTo != "f.conflict-19700101T000000Z" || a.Conflict != keptBoth+a.CopyTo {
		t.Errorf("the copy is %q: %q", a.CopyTo, a.Conflict)
	}
}

// TestNewerDistrustsFuture checks that a modification time in the future decides no conflict: both sides are kept. A
// small difference between the clocks of two machines does not count.
// mission: D2
func TestNewerDistrustsFuture(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	for _, c := range []struct {
		local, remote time.Duration
		want          Op
		both          bool
	}{
		{-time.Hour, -time.Minute, Download, false},
		{-time.Minute, -time.Hour, Upload, false},
		{-time.Hour, time.Minute, Download, false},
		{time.Minute, -time.Hour, Upload, false},
		{-time.Hour, 24 * time.Hour, Upload, true},
		{24 * time.Hour, -time.Hour, Upload, true},
		{24 * time.Hour, 48 * time.Hour, Upload, true},
	} {
		entry := func(inode uint64, etag string, after time.Duration) *tree.Entry {
			return &tree.Entry{Path: "f", Kind: tree.File, Size: int64(inode), ModTime: tree.At(now.Add(after)),
				Inode: inode, ETag: etag}
		}
		p := Policy{Dir: Both, Conflict: KeepNewer, Stamp: now}
		a := Decide(p, entry(2, "", c.local), entry(1, "a", -48*time.Hour), entry(3, "b", c.remote), nil)
		if a.Op != c.want || (a.CopyTo != "") != c.both || a.Copy != a.CopyTo || a.Conflict == "" ||
			c.both && a.Conflict != keptFuture+a.CopyTo {
			t.Errorf("%s here and %s there: %s, %q, copy %q", c.local, c.remote, a.Op, a.Conflict, a.CopyTo)
		}
	}
}

// TestRenounce checks that a renounced record is none at all, also if it came from an interrupted sync: nothing is
// resumed from it.
func TestRenounce(t *testing.T) {
	p := Sides{Base: &tree.Entry{Path: "f"}, Fresh: true, Added: true}
	if p.Renounce(); p.Base != nil || p.Fresh || p.Added || !p.Renounced {
		t.Errorf("it is %+v", p)
	}
}

// FuzzDecide checks that no plan loses content of one side only, for any state of the three sides.
func FuzzDecide(f *testing.F) {
	f.Add(uint64(1), uint8(0))
	f.Fuzz(func(t *testing.T, bits uint64, how uint8) {
		entry := func(b uint64) *tree.Entry {
			if b&1 == 0 {
				return nil
			}
			e := &tree.Entry{Path: "f", Kind: tree.Kind(b>>1&1) + 1, ModTime: tree.Nano(int64(b >> 4 & 3)),
				Inode: b >> 6 & 3, Change: int64(b >> 8 & 3), ETag: string(rune('a' + b>>10&3))}
			if e.Kind == tree.File {
				e.Size = int64(b >> 2 & 3)
			}
			return e
		}
		local, base, remote := entry(bits), entry(bits>>16), entry(bits>>32)
		p := Policy{Dir: []Direction{Up, Down, Both}[how%3], Mirror: how&4 != 0, Checked: how&8 != 0,
			Conflict: []Conflicts{KeepBoth, KeepNewer, KeepLocal, KeepRemote}[how>>4&3]}
		a := Decide(p, local, base, remote, nil)
		switch {
		case a.Op == DeleteLocal && (remote != nil || local == nil):
			t.Errorf("deletes the volume's, and the bucket has one: %+v", a)
		case a.Op == DeleteRemote && (local != nil || remote == nil):
			t.Errorf("deletes the bucket's, and the volume has one: %+v", a)
		case (a.Op == DeleteLocal || a.Op == DeleteRemote) && !p.Mirror && (p.Dir != Both || base == nil):
			t.Errorf("deletes what nobody deleted: %+v", a)
		case (a.Op == Upload || a.Op == UpdateRemote) && (local == nil || p.Dir == Down):
			t.Errorf("uploads nothing, or against the direction: %+v", a)
		case (a.Op == Download || a.Op == UpdateLocal) && (remote == nil || p.Dir == Up):
			t.Errorf("downloads nothing, or against the direction: %+v", a)
		case local != nil && remote == nil && p.Dir != Down && a.Op == Keep:
			if base == nil {
				t.Errorf("does not upload what only the volume has: %+v", a)
			}
		}
	})
}
