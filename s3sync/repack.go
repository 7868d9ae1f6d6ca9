package s3sync

import (
	"bytes"
	"context"
	"crypto/rand"
	"net/http"
	"os"
	"time"

	"github.com/fxamacker/cbor/v2"
	"github.com/minio/crc64nvme"
	"golang.org/x/sync/errgroup"

	"github.com/RelevanceAI/harvest/errors"
)

// repack is what a sync up does about packs: it counts what changes in the range of each, and makes those anew that have aged.
type repack struct {
	r  *run
	st *state

	loaded  bool
	at      int
	index   *packIndex
	etag    string
	changed bool // the index must be written
	err     error
}

// changes counts the small file of a job that came, changed or went. Jobs come in order.
func (p *repack) changes(ctx context.Context, j *job) {
	if p == nil || p.err != nil || j.err != nil {
		return
	}
	was, is := j.remote, j.out
	if j.Op == DeleteRemote {
		is = nil
	}
	if !was.packable() && !is.packable() || was.packable() && is.packable() && was.CRC == is.CRC && was.Size == is.Size {
		return
	}
	place := ""
	for _, e := range []*Entry{was, is} {
		if e != nil {
			place = e.order()
		}
	}
	if p.load(ctx); p.err != nil {
		return
	}
	p.at = p.index.row(p.at, place)
	p.index.Packs[p.at].Stale++
	p.changed = true
}

// load fetches the index, once. Without one all files are yet to be packed.
func (p *repack) load(ctx context.Context) {
	if p.loaded || p.err != nil {
		return
	}
	p.loaded = true
	// From now on it is not known whether the packs are as they should be, until they are.
	if err := os.Remove(p.st.file(statePacked)); err != nil && !errors.IsNotExist(err) {
		p.err = errors.Wrapf(err, "note that packs are to be made")
		return
	}
	from := p.r.b
	if p.r.o.from != nil {
		from = p.r.o.from
	}
	if p.index, p.etag, p.err = from.index(ctx); p.err == nil && (p.index == nil || len(p.index.Packs) == 0) {
		p.index, p.changed = &packIndex{Format: packsFormat, Version: packsVersion, Packs: []packRow{{Stale: 1}}}, true
	}
	if p.r.o.from != nil { // its packs stay there
		p.etag, p.changed = "", true
	}
}

// make brings the packs to what the bucket has since this sync, from the files of the volume. All files are in the bucket by now: what fails is named, and
// ends nothing.
func (p *repack) make(ctx context.Context) error {
	if p == nil {
		return nil
	}
	if _, err := os.Stat(p.st.file(statePacked)); err == nil && !p.loaded && !p.r.versions() {
		return nil
	}
	p.load(ctx)
	err := p.err
	if err == nil && p.changed {
		err = p.replace(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, errOvertaken) {
		return nil // the packs are as another sync made them; the next one looks again
	}
	if err == nil {
		err = errors.Wrapf(os.WriteFile(p.st.file(statePacked), nil, 0o600), "note that packs are made")
	}
	if err != nil {
		p.r.fail(packPrefix, errors.Explainf(err, errors.KindOf(err), "packs could not be made, so that empty volumes fill more slowly: %s", errors.Message(err)))
	}
	return nil
}

// replace writes the packs that are to be made anew, then the index, and then deletes the packs that it does not have.
func (p *repack) replace(ctx context.Context) error {
	p.r.buffers.close() // what was free is given back: other sizes are needed now
	before := map[string]bool{}
	for _, row := range p.index.Packs {
		before[row.ID] = true
	}
	next, err := p.rows(ctx)
	if err != nil {
		return err
	}
	raw, err := cbor.Marshal(packIndex{Format: packsFormat, Version: packsVersion, Packs: next})
	if err != nil {
		return errors.Wrapf(err, "write the index of packs")
	}
	if len(raw) > maxIndex {
		return errors.Newf(errors.Exhausted, "there are too many packs")
	}
	if _, err := p.r.b.putIf(ctx, packsKey, bytes.NewReader(raw), int64(len(raw)), "application/cbor", p.etag); err != nil {
		return err
	}
	return p.sweep(ctx, before, next)
}

// sweep deletes packs that no index has: those of the index before, and what syncs left that were cut short a day ago.
func (p *repack) sweep(ctx context.Context, before map[string]bool, next []packRow) error {
	for _, row := range next {
		delete(before, row.ID)
	}
	has := map[string]bool{}
	for _, row := range next {
		has[row.ID] = true
	}
	at, err := p.r.b.At(p.r.b.prefix + packPrefix)
	if err != nil {
		return err
	}
	var gone []string
	for o, err := range at.all(ctx, anyOrder) {
		if err != nil {
			return err
		}
		if !has[o.key] && (before[o.key] || time.Since(o.time) > 24*time.Hour) {
			gone = append(gone, o.key)
		}
	}
	for len(gone) > 0 {
		n := min(len(gone), deleteAtOnce)
		if err := at.delete(ctx, gone[:n], func(key string, err error) { p.r.fail(packPrefix+"/"+key, err) }); err != nil {
			return err
		}
		gone = gone[n:]
	}
	return nil
}

// rows returns the rows of the next index. Ranges that have not aged keep theirs.
func (p *repack) rows(ctx context.Context) ([]packRow, error) {
	g, making := errgroup.WithContext(ctx)
	g.SetLimit(packsAtOnce)
	var next []*packRow
	var members []*Entry
	size, first := int64(0), []byte(nil)
	open := false // a range that has aged is being gathered
	pack := func() {
		row, all := &packRow{First: first}, members
		next = append(next, row)
		members, size = nil, 0
		if len(all) > 0 {
			g.Go(func() error { return p.pack(making, row, all) })
		}
	}
	at := -1
	// reach comes to the range of a place; from one that has aged to another one, a pack may go on.
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
			if p.r.o.from != nil && row.ID != "" {
				g.Go(func() error { return p.carry(making, row) })
			}
		}
	}
	for e, err := range readFile(p.st.written()) {
		if err != nil {
			return nil, errors.Join(err, g.Wait())
		}
		if !e.packable() {
			continue
		}
		place := e.order()
		if reach(p.index.row(max(at, 0), place)); !open {
			continue
		}
		n := e.Size + int64(len(place)) + 32
		if size+n > packSize || len(members) == packMembers {
			pack()
			first = []byte(place)
		}
		members, size = append(members, e), size+n
		if making.Err() != nil {
			break
		}
	}
	reach(len(p.index.Packs) - 1)
	if open {
		pack()
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	rows := make([]packRow, len(next))
	for i, row := range next {
		rows[i] = *row
	}
	return rows, nil
}

// carry copies a pack from the version before. One that is gone there leaves its range to be packed by the next sync.
func (p *repack) carry(ctx context.Context, row *packRow) error {
	key := row.key()
	etag, err := p.r.b.copyObject(ctx, p.r.o.from, key, key, row.ETag)
	if errors.KindOf(err) == errors.NotFound || errors.Is(err, errChangedObject) {
		*row = packRow{First: row.First, Stale: 1}
		return nil
	}
	row.ETag = etag
	return err
}

// pack makes one pack of what the volume has of its members. What is not there as it went up, is not in it.
func (p *repack) pack(ctx context.Context, row *packRow, entries []*Entry) error {
	buf, release, err := p.r.buffer(ctx, packSize)
	if err != nil {
		return err
	}
	defer release()
	out, releaseOut, err := p.r.buffer(ctx, 4<<20)
	if err != nil {
		return err
	}
	defer releaseOut()
	members, n := make([]packMember, 0, len(entries)), int64(0)
	for _, e := range entries {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		body := buf[n : n+e.Size]
		if !p.r.t.holds(e, body) {
			continue
		}
		members, n = append(members, packMember{Place: []byte(e.order()), Size: e.Size, CRC: e.CRC}), n+e.Size
	}
	if len(members) == 0 {
		return nil
	}
	raw, err := encodePack(members, buf[:n], out)
	if err != nil {
		return err
	}
	row.ID, row.Size, row.CRC, row.Count = rand.Text(), int64(len(raw)), crc64nvme.Checksum(raw), int64(len(members))
	row.ETag, err = p.r.b.put(ctx, row.key(), raw, row.CRC, http.Header{"Content-Type": {"application/zstd"}})
	return err
}

// holds reads a file into body, and reports whether it is as e says.
func (t *Tree) holds(e *Entry, body []byte) bool {
	f, st, err := t.open(e.Path)
	if err != nil {
		return false
	}
	defer f.Close()
	return st.Size == e.Size && readAt(f, e, body, 0) == nil && crc64nvme.Checksum(body) == e.CRC
}
