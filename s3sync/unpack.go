package s3sync

import (
	"context"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/errors"
)

// packs are those that an empty volume is filled from, in order: the one in whose range the plan is, some that are fetched ahead, and those before it
// until their last file is made.
type packs struct {
	r     *run
	g     *errgroup.Group
	index *packIndex
	z     *zstd.Decoder
	slots *semaphore.Weighted // packs in memory

	at   int     // where the plan is in the index
	open []*pack // from at on: fetched, or being so
	all  []*pack
}

// pack is one of them on its way.
type pack struct {
	ps      *packs
	ready   chan struct{}
	content *packContent // once it is ready; nil if it cannot be had
	buf     *buffer

	mu    sync.Mutex
	users int // guarded by mu: files to be made from it, and the plan
}

// openPacks returns the packs to fill the volume from, nil where that is no use: there are none, or the volume has files already, of which
// few may be missing.
func (r *run) openPacks(ctx context.Context, g *errgroup.Group) (*packs, error) {
	if r.o.Direction != Down || r.o.Only != "" {
		return nil, nil
	}
	dir, err := dup(r.t.root)
	if err != nil {
		return nil, nil //nolint:nilerr // who scans the volume says what is wrong with it
	}
	_, err = dir.Readdirnames(1)
	dir.Close()
	if !errors.Is(err, io.EOF) {
		return nil, nil //nolint:nilerr // see above
	}
	index, _, err := r.b.index(ctx)
	if fatal(err) {
		return nil, err
	}
	if err != nil || index == nil || len(index.Packs) == 0 {
		return nil, nil //nolint:nilerr // there is another way to all files
	}
	z, err := packReader()
	if err != nil {
		return nil, err
	}
	if err := r.sem.Acquire(ctx, packsMemory); err != nil {
		return nil, context.Cause(ctx)
	}
	r.room = maxInFlight - packsMemory // a part of a very large file would wait for all of it, for ever
	return &packs{r: r, g: g, index: index, z: z, slots: semaphore.NewWeighted(packsAhead), at: -1}, nil
}

// assign gives a file that is to be fetched the pack of its range. Jobs come in order. It waits until there is room for the pack: those before it are
// let go by their last file.
func (ps *packs) assign(ctx context.Context, j *job) error {
	if ps == nil || j.done == nil || j.Op != Download || !j.remote.packable() || j.remote.foreign || j.copyTo != "" {
		return nil
	}
	at := ps.index.row(max(ps.at, 0), j.remote.order())
	for ; ps.at < at; ps.at++ {
		if len(ps.open) > 0 {
			ps.open[0].release()
			ps.open = ps.open[1:]
		}
	}
	if len(ps.open) == 0 {
		if err := ps.slots.Acquire(ctx, 1); err != nil {
			return context.Cause(ctx)
		}
		ps.fetch(ctx)
	}
	for ps.at+len(ps.open) < len(ps.index.Packs) && ps.slots.TryAcquire(1) {
		ps.fetch(ctx)
	}
	j.pack = ps.open[0]
	j.pack.use()
	return nil
}

// fetch begins to fetch the next pack, for which there is a slot.
func (ps *packs) fetch(ctx context.Context) {
	row := &ps.index.Packs[ps.at+len(ps.open)]
	p := &pack{ps: ps, ready: make(chan struct{}), users: 1}
	ps.open, ps.all = append(ps.open, p), append(ps.all, p)
	if row.ID == "" {
		close(p.ready)
		return
	}
	p.use()
	ps.g.Go(func() error {
		defer p.release()
		defer close(p.ready)
		// Without the pack each of its files comes by itself, and says what is wrong.
		raw := ps.r.buffers.get(row.Size)
		defer ps.r.buffers.put(raw)
		res, err := ps.r.b.getKnown(ctx, row.key(), row.ETag, 0, row.Size, row.Size, raw.b[:row.Size], &row.CRC)
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		p.buf = ps.r.buffers.get(packSize)
		p.content, _ = decodePack(ps.z, res.body, p.buf.b)
		return nil
	})
}

// close gives all memory back, also what a sync that ended early still held. Nobody is at work any more.
func (ps *packs) close() {
	if ps == nil {
		return
	}
	for _, p := range ps.all {
		if p.buf != nil {
			ps.r.buffers.put(p.buf)
			p.content, p.buf = nil, nil
		}
	}
	ps.z.Close()
}

func (p *pack) use() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
}

// release is called by each user once. The last one's gives the memory back.
func (p *pack) release() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	if p.buf != nil {
		p.ps.r.buffers.put(p.buf)
	}
	p.content, p.buf = nil, nil
	p.ps.slots.Release(1)
}

// find waits for the pack, and returns what it has of a file: as the manifest says, or nothing.
func (p *pack) find(ctx context.Context, e *Entry) ([]byte, bool, error) {
	if p == nil {
		return nil, false, nil
	}
	select {
	case <-p.ready:
	case <-ctx.Done():
		return nil, false, context.Cause(ctx)
	}
	if p.content == nil {
		return nil, false, nil
	}
	body, ok := p.content.find(e)
	return body, ok, nil
}
