package sync

import (
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/s3/tree"
)

func TestDecide(t *testing.T) {
	file := func(size int64, inode uint64) *tree.Entry {
		return &tree.Entry{Path: "f", Kind: tree.File, Size: size, ModTime: tree.Nano(size), Inode: inode, Change: size,
			ETag: "e" + string(rune('0'+size))}
	}
	dir := &tree.Entry{Path: "f", Kind: tree.Dir, Mode: 0o755}
	for _, c := range []struct {
		name                string
		p                   policy
		local, base, remote *tree.Entry
		want                Op
	}{
		{"up new", policy{dir: Up}, file(1, 1), nil, nil, Upload},
		{"up same inode", policy{dir: Up}, file(1, 1), file(1, 1), file(1, 1), Keep},
		{"up unknown inode", policy{dir: Up}, file(1, 1), nil, file(1, 0), UpdateRemote},
		{"up changed", policy{dir: Up}, file(2, 1), file(1, 1), file(1, 1), Upload},
		{"up only there", policy{dir: Up}, nil, nil, file(1, 0), Keep},
		{"up only there, mirror", policy{dir: Up, mirror: true}, nil, nil, file(1, 0), DeleteRemote},
		{"up contents", policy{dir: Up, checked: true}, file(1, 1), file(1, 1), file(1, 1), UpdateRemote},
		{"down new", policy{dir: Down}, nil, nil, file(1, 0), Download},
		{"down only here", policy{dir: Down}, file(1, 1), nil, nil, Keep},
		{"down only here, mirror", policy{dir: Down, mirror: true}, file(1, 1), nil, nil, DeleteLocal},
		{"down changed", policy{dir: Down}, file(1, 1), file(1, 1), file(2, 0), Download},
		{"down directory", policy{dir: Down}, dir, nil, dir, Keep},
		{"both nothing", policy{dir: Both}, file(1, 1), file(1, 1), file(1, 1), Keep},
		{"both here", policy{dir: Both}, file(2, 1), file(1, 1), file(1, 1), Upload},
		{"both there", policy{dir: Both}, file(1, 1), file(1, 1), file(2, 0), Download},
		{"both deleted here", policy{dir: Both}, nil, file(1, 1), file(1, 1), DeleteRemote},
		{"both deleted there", policy{dir: Both}, file(1, 1), file(1, 1), nil, DeleteLocal},
		{"both never here", policy{dir: Both}, nil, file(1, 0), file(1, 0), Download},
		{"both new here", policy{dir: Both}, file(1, 1), nil, nil, Upload},
		{"both deleted here, changed there", policy{dir: Both}, nil, file(1, 1), file(2, 0), Download},
		{"both changed here, deleted there", policy{dir: Both}, file(2, 1), file(1, 1), nil, Upload},
		{"both changed, local", policy{dir: Both, conflict: KeepLocal}, file(2, 1), file(1, 1), file(3, 0), Upload},
		{"both changed, remote", policy{dir: Both, conflict: KeepRemote}, file(2, 1), file(1, 1), file(3, 0), Download},
		{"both changed, newer", policy{dir: Both, conflict: KeepNewer}, file(4, 1), file(1, 1), file(3, 0), Upload},
		{"both changed, both", policy{dir: Both, conflict: KeepBoth}, file(2, 1), file(1, 1), file(3, 0), Upload},
		{"both directories", policy{dir: Both}, &tree.Entry{Path: "f", Kind: tree.Dir, Mode: 0o700}, nil, dir,
			UpdateRemote},
	} {
		if got := decide(c.p, c.local, c.base, c.remote, nil); got.Op != c.want {
			t.Errorf("%s: %s, want %s", c.name, got.Op, c.want)
		}
	}
	a := decide(policy{dir: Both, conflict: KeepBoth, stamp: time.Unix(0, 0)}, file(2, 1), file(1, 1), file(3, 0), nil)
	if a.copyTo != "f.conflict-19700101T000000Z" || a.Conflict != keptBoth+a.copyTo {
		t.Errorf("the copy is %q: %q", a.copyTo, a.Conflict)
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
		p := policy{dir: []Direction{Up, Down, Both}[how%3], mirror: how&4 != 0, checked: how&8 != 0,
			conflict: []Conflicts{KeepBoth, KeepNewer, KeepLocal, KeepRemote}[how>>4&3]}
		a := decide(p, local, base, remote, nil)
		switch {
		case a.Op == DeleteLocal && (remote != nil || local == nil):
			t.Errorf("deletes the volume's, and the bucket has one: %+v", a)
		case a.Op == DeleteRemote && (local != nil || remote == nil):
			t.Errorf("deletes the bucket's, and the volume has one: %+v", a)
		case (a.Op == DeleteLocal || a.Op == DeleteRemote) && !p.mirror && (p.dir != Both || base == nil):
			t.Errorf("deletes what nobody deleted: %+v", a)
		case (a.Op == Upload || a.Op == UpdateRemote) && (local == nil || p.dir == Down):
			t.Errorf("uploads nothing, or against the direction: %+v", a)
		case (a.Op == Download || a.Op == UpdateLocal) && (remote == nil || p.dir == Up):
			t.Errorf("downloads nothing, or against the direction: %+v", a)
		case local != nil && remote == nil && p.dir != Down && a.Op == Keep:
			if base == nil {
				t.Errorf("does not upload what only the volume has: %+v", a)
			}
		}
	})
}
