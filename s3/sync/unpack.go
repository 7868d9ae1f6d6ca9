package sync

import (
	"context"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/s3/tree"
)

// packs are the packs in use to fill an empty volume, in order: the one of the plan's current
// range, some that are fetched ahead, and earlier ones until their last file is made.
type packs struct {
	b     *Bucket
	bufs  *pool
	g     *errgroup.Group
	index *packIndex
	z     *zstd.Decoder
	slots *semaphore.Weighted // packs in memory

	at   int     // the plan's position in the index
	open []*pack // from at on: fetched, or being fetched
	all  []*pack
}

// pack is a pack that is fetched or in use.
type pack struct {
	ps      *packs
	ready   chan struct{}
	content *packContent // set before ready is closed; nil if unavailable
	buf     *buffer

	mu    sync.Mutex
	users int // guarded by mu: files to be made from it, and the plan
}

// newPacks returns the packs of b's index, which is not empty. g runs the downloads.
func newPacks(b *Bucket, index *packIndex, bufs *pool, g *errgroup.Group) (*packs, error) {
	z, err := packReader()
	if err != nil {
		return nil, err
	}
	return &packs{b: b, bufs: bufs, g: g, index: index, z: z, slots: semaphore.NewWeighted(packsAhead), at: -1}, nil
}

// assign returns the pack of the range of a file to be downloaded, or nil if none holds it. Files
// come in order. It waits until there is room for the pack: the last file of an earlier pack frees
// its room. The caller must release the pack.
func (ps *packs) assign(ctx context.Context, e *tree.Entry) (*pack, error) {
	if ps == nil || !packable(e) || e.Foreign {
		return nil, nil
	}
	at := ps.index.row(max(ps.at, 0), e.Order())
	for ; ps.at < at; ps.at++ {
		if len(ps.open) > 0 {
			ps.open[0].release()
			ps.open = ps.open[1:]
		}
	}
	if len(ps.open) == 0 {
		if err := ps.slots.Acquire(ctx, 1); err != nil {
			return nil, context.Cause(ctx)
		}
		ps.fetch(ctx)
	}
	for ps.at+len(ps.open) < len(ps.index.Packs) && ps.slots.TryAcquire(1) {
		ps.fetch(ctx)
	}
	ps.open[0].use()
	return ps.open[0], nil
}

// fetch begins to fetch the next pack, for which the caller has a slot.
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
		// Without the pack, each of its files is downloaded from its object, and reports any
		// problem.
		raw := ps.bufs.get(row.Size)
		defer ps.bufs.put(raw)
		res, err := ps.b.getKnown(ctx, row.key(), row.ETag, 0, row.Size, row.Size, raw.b[:row.Size], &row.CRC)
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		p.buf = ps.bufs.get(packSize)
		p.content, _ = decodePack(ps.z, res.body, p.buf.b)
		return nil
	})
}

// close frees all memory, including that of a sync that ended early. All workers have ended.
func (ps *packs) close() {
	if ps == nil {
		return
	}
	for _, p := range ps.all {
		if p.buf != nil {
			ps.bufs.put(p.buf)
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

// release ends one use. The last one frees the memory.
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
		p.ps.bufs.put(p.buf)
	}
	p.content, p.buf = nil, nil
	p.ps.slots.Release(1)
}

// find waits for the pack, and returns the content of a file if it matches the manifest.
func (p *pack) find(ctx context.Context, e *tree.Entry) ([]byte, bool, error) {
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
