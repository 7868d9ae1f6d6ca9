package pack

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/manifest"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/state"
)

// Repack maintains the packs during a sync up: it counts the changes in each range and rebuilds the
// packs that have aged.
type Repack struct {
	Packing

	loaded  bool
	at      int
	index   *Index
	etag    string
	changed bool // the index must be written
	err     error

	mu   sync.Mutex
	made map[string]bool // guarded by mu: packs that this sync has stored, or may have
}

// Packing has the two sides of a repack, and the resources that it shares with its sync.
type Packing struct {
	B        *object.Bucket
	From     *object.Bucket // the previous version, or nil
	Versions bool           // b is one of several versions
	T        *tree.Tree
	St       *state.State
	Buffers  *buffer.Pool
	// Memory waits for memory for n bytes. The caller must call release.
	Memory func(ctx context.Context, n int64) (buf []byte, release func(), err error)
	Lack   func(error) // reports a failure that affects no file
}

// NewRepack begins to count changes.
func NewRepack(p Packing) *Repack { return &Repack{Packing: p, made: map[string]bool{}} }

// Changes counts a small file that op added, changed or removed. was and is are the bucket's entry
// before and after it. Files come in order.
func (p *Repack) Changes(ctx context.Context, op plan.Op, was, is *tree.Entry) {
	if p == nil || p.err != nil {
		return
	}
	if op == plan.DeleteRemote {
		is = nil
	}
	if !packable(was) && !packable(is) || packable(was) && packable(is) && was.CRC == is.CRC && was.Size == is.Size {
		return
	}
	place := ""
	for _, e := range []*tree.Entry{was, is} {
		if e != nil {
			place = e.Order()
		}
	}
	if p.load(ctx); p.err != nil {
		return
	}
	p.at = p.index.row(p.at, place)
	row := &p.index.Packs[p.at]
	row.Stale++
	if packable(was) {
		row.Sum ^= mark(was)
	}
	if packable(is) {
		row.Sum ^= mark(is)
	}
	p.changed = true
}

// load fetches the index once. Without an index, all files need to be packed.
func (p *Repack) load(ctx context.Context) {
	if p.loaded || p.err != nil {
		return
	}
	p.loaded = true
	// The packs may be out of date until this sync has updated them.
	if err := os.Remove(p.St.File(state.Packed)); err != nil && !errors.IsNotExist(err) {
		p.err = errors.Wrapf(err, "note that packs are to be made")
		return
	}
	from := p.B
	if p.From != nil {
		from = p.From
	}
	p.index, p.etag, p.err = ReadIndex(ctx, from)
	if errors.Is(p.err, object.ErrChangedObject) {
		p.err = object.ErrOvertaken
	}
	if p.err == nil && (p.index == nil || len(p.index.Packs) == 0) {
		p.index, p.changed = &Index{Format: format, Version: version, Packs: []Row{{Stale: 1}}}, true
	}
	if p.From != nil { // its packs are not in this version
		p.etag, p.changed = "", true
	}
}

// Make updates the packs from the files of the volume. All files are in the bucket by now, so
// failures are reported but do not end the sync.
func (p *Repack) Make(ctx context.Context) error {
	if p == nil {
		return nil
	}
	if _, err := os.Stat(p.St.File(state.Packed)); err == nil && !p.loaded && !p.Versions {
		return nil
	}
	p.load(ctx)
	err := p.err
	if err == nil {
		err = p.recount()
	}
	if err == nil && p.changed {
		err = p.replace(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, object.ErrOvertaken) {
		return nil // another sync has updated the packs; the next one checks again
	}
	if err == nil {
		err = errors.Wrapf(os.WriteFile(p.St.File(state.Packed), nil, 0o600), "note that packs are made")
	}
	if err != nil {
		p.Lack(errors.Explainf(err, errors.KindOf(err),
			"cannot make packs, so empty volumes fill more slowly: %s", errors.Message(err)))
	}
	return nil
}

// recount marks packs for a rebuild if their ranges have other files than were counted: an earlier
// sync counted them but did not write the index, or did not maintain packs.
func (p *Repack) recount() error {
	sums, at := make([]uint64, len(p.index.Packs)), 0
	for e, err := range manifest.ReadFile(p.St.Written()) {
		if err != nil {
			return err
		}
		if packable(e) {
			at = p.index.row(at, e.Order())
			sums[at] ^= mark(e)
		}
	}
	for i, sum := range sums {
		if row := &p.index.Packs[i]; row.Sum != sum {
			row.Sum, row.Stale, p.changed = sum, row.Count+1, true
		}
	}
	return nil
}

// replace writes the packs that must be rebuilt, then the index, and then deletes the packs that
// are not in the index.
func (p *Repack) replace(ctx context.Context) error {
	p.Buffers.Close() // free the unused buffers: other sizes are needed now
	before := map[string]bool{}
	for _, row := range p.index.Packs {
		before[row.ID] = true
	}
	next, err := p.write(ctx)
	if err != nil {
		p.withdraw(ctx)
		return err
	}
	for _, row := range next {
		delete(before, row.ID)
	}
	if len(before) == 0 {
		return nil
	}
	return p.sweep(ctx, before, next)
}

// write stores the packs that must be rebuilt and then the index, and returns its rows.
func (p *Repack) write(ctx context.Context) ([]Row, error) {
	next, err := p.rows(ctx)
	if err != nil {
		return nil, err
	}
	raw, err := cbor.Marshal(Index{Format: format, Version: version, Packs: next})
	if err != nil {
		return nil, errors.Wrapf(err, "write the index of packs")
	}
	if len(raw) > maxIndex {
		return nil, errTooManyPacks
	}
	_, err = p.B.PutIf(ctx, IndexKey, bytes.NewReader(raw), int64(len(raw)), "application/cbor", p.etag)
	return next, err
}

var errTooManyPacks = errors.Newf(errors.Exhausted, "there are too many packs")

// withdrawTime bounds the attempt to delete the packs of an index that could not be stored.
const withdrawTime = 5 * time.Second

// withdraw deletes the packs of an index that could not be stored, so that files can use their
// room. If the state of the index is unknown, or the deletion fails, a later sweep deletes them.
func (p *Repack) withdraw(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), withdrawTime)
	defer cancel()
	x, _, err := ReadIndex(ctx, p.B)
	if err != nil {
		return
	}
	if x != nil {
		for _, row := range x.Packs {
			delete(p.made, row.ID)
		}
	}
	_ = p.delete(ctx, slices.Collect(maps.Keys(p.made)), func(error) {})
}

// sweep deletes packs that are in no index: those of the previous index, and those that interrupted
// syncs left more than a day ago.
func (p *Repack) sweep(ctx context.Context, before map[string]bool, next []Row) error {
	has := map[string]bool{}
	for _, row := range next {
		has[row.ID] = true
	}
	now := time.Now().Add(p.B.Skew())
	var gone []string
	for o, err := range p.B.Below(p.B.Prefix()+Prefix).All(ctx, object.AnyOrder) {
		if err != nil {
			return err
		}
		if !has[o.Key] && (before[o.Key] || now.Sub(o.Time) > 24*time.Hour) {
			gone = append(gone, o.Key)
		}
	}
	var kept error
	err := p.delete(ctx, gone, func(err error) { kept = err })
	if err == nil && kept != nil {
		p.Lack(errors.Explainf(kept, errors.KindOf(kept),
			"cannot delete replaced packs: %s", errors.Message(kept)))
	}
	return err
}

// delete deletes packs by their names.
func (p *Repack) delete(ctx context.Context, names []string, failed func(error)) error {
	at := p.B.Below(p.B.Prefix() + Prefix)
	for some := range slices.Chunk(names, object.DeleteAtOnce) {
		if err := at.Delete(ctx, some, func(_ string, err error) { failed(err) }); err != nil {
			return err
		}
	}
	return nil
}

// name records the name of a pack of this sync.
func (p *Repack) name(id string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made[id] = true
	return id
}

// rows returns the rows of the next index. Ranges that have not aged keep their rows.
func (p *Repack) rows(ctx context.Context) ([]Row, error) {
	g, making := errgroup.WithContext(ctx)
	g.SetLimit(packsAtOnce)
	var next []*Row
	var members []*tree.Entry
	size, first, sum := int64(0), []byte(nil), uint64(0)
	open := false // a range that has aged is being gathered
	pack := func() {
		row, all := &Row{First: first, Sum: sum}, members
		next = append(next, row)
		members, size, sum = nil, 0, 0
		if len(all) > 0 {
			g.Go(func() error { return p.pack(making, row, all) })
		}
	}
	at := -1
	// reach advances to the range of a place. A pack may span adjacent ranges that have aged.
	reach := func(to int) {
		for ; at < to; at++ {
			row := &p.index.Packs[at+1]
			if row.aged() {
				if !open {
					open, first = true, row.First
				}
				continue
			}
			if open {
				pack()
				open = false
			}
			next = append(next, row)
			if p.From != nil && row.ID != "" {
				g.Go(func() error { return p.carry(making, row) })
			}
		}
	}
	for e, err := range manifest.ReadFile(p.St.Written()) {
		if err != nil {
			return nil, errors.Join(err, g.Wait())
		}
		if !packable(e) {
			continue
		}
		place := e.Order()
		if reach(p.index.row(max(at, 0), place)); !open {
			continue
		}
		n := e.Size + int64(len(place)) + 32
		if size+n > Size || len(members) == maxMembers {
			pack()
			first = []byte(place)
		}
		// Keep only the fields that are needed, since many are in memory.
		members = append(members, &tree.Entry{Path: e.Path, Kind: tree.File, Size: e.Size, CRC: e.CRC, HasCRC: true})
		size, sum = size+n, sum^mark(e)
		if making.Err() != nil {
			break
		}
		if len(next) > maxPacks {
			return nil, errors.Join(errTooManyPacks, g.Wait())
		}
	}
	reach(len(p.index.Packs) - 1)
	if open {
		pack()
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	rows := make([]Row, len(next))
	for i, row := range next {
		rows[i] = *row
	}
	return rows, nil
}

// carry copies a pack from the previous version. If it is missing there, the next sync packs the
// range.
func (p *Repack) carry(ctx context.Context, row *Row) error {
	key := Prefix + "/" + p.name(row.ID)
	etag, err := p.B.CopyFrom(ctx, p.From, key, key, row.ETag)
	if errors.KindOf(err) == errors.NotFound || errors.Is(err, object.ErrChangedObject) {
		*row = Row{First: row.First, Stale: 1, Sum: row.Sum}
		return nil
	}
	row.ETag = cmp.Or(etag, row.ETag)
	return err
}

// pack makes one pack of its members from the volume. It omits files that changed since they were
// uploaded.
func (p *Repack) pack(ctx context.Context, row *Row, entries []*tree.Entry) error {
	buf, release, err := p.Memory(ctx, Size)
	if err != nil {
		return err
	}
	defer release()
	out, releaseOut, err := p.Memory(ctx, 4<<20)
	if err != nil {
		return err
	}
	defer releaseOut()
	members, n := make([]Member, 0, len(entries)), int64(0)
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		body := buf[n : n+e.Size]
		if !p.T.Holds(e, body) {
			continue
		}
		members, n = append(members, Member{Place: []byte(e.Order()), Size: e.Size, CRC: e.CRC}), n+e.Size
	}
	if len(members) == 0 {
		return nil
	}
	raw, err := Encode(members, buf[:n], out)
	if err != nil {
		return err
	}
	row.ID, row.Size, row.CRC, row.Count = p.name(rand.Text()), int64(len(raw)), crc64nvme.Checksum(raw),
		int64(len(members))
	row.ETag, err = p.B.Put(ctx, row.Key(), raw, row.CRC, http.Header{"Content-Type": {"application/zstd"}})
	return err
}
