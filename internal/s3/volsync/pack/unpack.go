package pack

import (
	"context"
	"sync"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sync/semaphore"

	"github.com/RelevanceAI/harvest/internal/s3/buffer"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Packs are the packs in use to fill an empty volume, in order: the one of the plan's current
// range, some that are fetched ahead, and earlier ones until their last file is made.
type Packs struct {
	b     *object.Bucket
	bufs  *buffer.Pool
	g     *errgroup.Group
	index *Index
	z     *zstd.Decoder
	slots *semaphore.Weighted // packs in memory

	at   int     // the plan's position in the index
	open []*Pack // from at on: fetched, or being fetched
	all  []*Pack
}

// Pack is a pack that is fetched or in use.
type Pack struct {
	ps      *Packs
	ready   chan struct{}
	content *Content // set before ready is closed; nil if unavailable
	buf     *buffer.Buffer

	mu    sync.Mutex
	users int // guarded by mu: files to be made from it, and the plan
}

// New returns the packs of b's index, which is not empty. g runs the downloads.
func New(b *object.Bucket, index *Index, bufs *buffer.Pool, g *errgroup.Group) (*Packs, error) {
	z, err := newReader()
	if err != nil {
		return nil, err
	}
	return &Packs{b: b, bufs: bufs, g: g, index: index, z: z, slots: semaphore.NewWeighted(packsAhead), at: -1}, nil
}

// Assign returns the pack of the range of a file to be downloaded, or nil if none holds it. Files
// come in order. It waits until there is room for the pack: the last file of an earlier pack frees
// its room. The caller must release the pack.
func (ps *Packs) Assign(ctx context.Context, e *tree.Entry) (*Pack, error) {
	if ps == nil || !packable(e) || e.Foreign {
		return nil, nil
	}
	at := ps.index.row(max(ps.at, 0), e.Order())
	for ; ps.at < at; ps.at++ {
		if len(ps.open) > 0 {
			ps.open[0].Release()
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
func (ps *Packs) fetch(ctx context.Context) {
	row := &ps.index.Packs[ps.at+len(ps.open)]
	p := &Pack{ps: ps, ready: make(chan struct{}), users: 1}
	ps.open, ps.all = append(ps.open, p), append(ps.all, p)
	if row.ID == "" {
		close(p.ready)
		return
	}
	p.use()
	ps.g.Go(func() error {
		defer p.Release()
		defer close(p.ready)
		// Without the pack, each of its files is downloaded from its object, and reports any
		// problem.
		raw := ps.bufs.Get(row.Size)
		defer ps.bufs.Put(raw)
		res, err := ps.b.GetKnown(ctx, row.Key(), row.ETag, 0, row.Size, row.Size, raw.B[:row.Size], &row.CRC)
		if err != nil {
			return nil //nolint:nilerr // see above
		}
		p.buf = ps.bufs.Get(Size)
		p.content, _ = Decode(ps.z, res.Body, p.buf.B)
		return nil
	})
}

// Close frees all memory, including that of a sync that ended early. All workers have ended.
func (ps *Packs) Close() {
	if ps == nil {
		return
	}
	for _, p := range ps.all {
		if p.buf != nil {
			ps.bufs.Put(p.buf)
			p.content, p.buf = nil, nil
		}
	}
	ps.z.Close()
}

func (p *Pack) use() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.users++
}

// Release ends one use. The last one frees the memory.
func (p *Pack) Release() {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users > 0 {
		return
	}
	if p.buf != nil {
		p.ps.bufs.Put(p.buf)
	}
	p.content, p.buf = nil, nil
	p.ps.slots.Release(1)
}

// Find waits for the pack, and returns the content of a file if it matches the manifest.
func (p *Pack) Find(ctx context.Context, e *tree.Entry) ([]byte, bool, error) {
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
