package event

import (
	"context"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// Options of a Journal. Store is required; other zero fields get the default named here.
type Options struct {
	Store Store
	// Window is how many of a stream's newest events stay in memory while the stream has readers: 4096. A
	// reader that has caught up and then falls further behind is too slow.
	Window int
	// WindowBytes bounds the size of the same events: 4 MiB.
	WindowBytes int
	// Delay is the longest time that an event waits to be sent together with later ones: 6 ms. Only busy
	// streams with many readers come near it. The first event after a pause never waits.
	Delay time.Duration
}

const (
	queued     = 256                   // calls of Publish that may wait
	together   = 1024                  // most events persisted in one write
	idle       = 1024                  // most streams without readers whose last id is remembered
	perReader  = 12 * time.Microsecond // of Delay
	pageEvents = 256                   // events per read while a reader catches up
)

// Journal persists and distributes events. All methods may be called concurrently. Only one process at a time
// may use a Store.
type Journal struct {
	opts Options
	done chan struct{} // closed when the last event is persisted, after Close

	sending sync.RWMutex // held for reading while sending to queue, for writing to close it
	closed  bool         // guarded by sending
	queue   chan request

	mu      sync.Mutex
	streams map[string]*stream // guarded by mu
}

type request struct {
	events []*Event
	result chan error // nil if no caller waits
}

// Open returns a Journal that continues after the last event in Store. The caller must Close it.
func Open(ctx context.Context, opts Options) *Journal {
	if opts.Window == 0 {
		opts.Window = 4096
	}
	if opts.WindowBytes == 0 {
		opts.WindowBytes = 4 << 20
	}
	if opts.Delay == 0 {
		opts.Delay = 6 * time.Millisecond
	}
	j := &Journal{opts: opts, done: make(chan struct{}), queue: make(chan request, queued),
		streams: map[string]*stream{}}
	go j.write(context.WithoutCancel(ctx))
	return j
}

// Publish persists the drafts in this order, all or none, and sends them to the readers. A nil error means that
// they are persisted. If ctx ends first, the outcome is unknown. Readers never delay Publish. Kinds: Invalid if
// a draft is too large, Unavailable after Close, and those of Store.Append.
func (j *Journal) Publish(ctx context.Context, drafts ...Draft) error {
	if len(drafts) == 0 {
		return nil
	}
	result := make(chan error, 1)
	if err := j.enqueue(ctx, drafts, result); err != nil {
		return err
	}
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait until events are persisted")
	}
}

// Post is Publish without waiting: the drafts are persisted soon, in the order of the calls. A failure is
// logged. Post blocks only while the queue is full.
func (j *Journal) Post(ctx context.Context, drafts ...Draft) {
	if len(drafts) == 0 {
		return
	}
	ctx = context.WithoutCancel(ctx)
	if err := j.enqueue(ctx, drafts, nil); err != nil {
		logf.Errorf(ctx, "post events: %v", err)
	}
}

func (j *Journal) enqueue(ctx context.Context, drafts []Draft, result chan error) error {
	if len(drafts) > MaxDrafts {
		return errors.Errorf("%d events at once, %d are allowed", len(drafts), MaxDrafts)
	}
	r := request{events: make([]*Event, len(drafts)), result: result}
	for i, d := range drafts {
		var err error
		if r.events[i], err = d.event(); err != nil {
			return err
		}
	}
	j.sending.RLock()
	defer j.sending.RUnlock()
	if j.closed {
		return errors.Newf(errors.Unavailable, "Harvest is shutting down")
	}
	select {
	case j.queue <- r:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "publish events")
	}
}

// Close persists all published events, delivers them to the readers, and ends the readers. Store stays open.
func (j *Journal) Close(ctx context.Context) error {
	j.sending.Lock()
	if !j.closed {
		j.closed = true
		close(j.queue)
	}
	j.sending.Unlock()
	select {
	case <-j.done:
		return nil
	case <-ctx.Done():
		return errors.Wrapf(ctx.Err(), "wait until events are persisted")
	}
}

// write persists the requests from the queue in batches until the queue is closed.
func (j *Journal) write(ctx context.Context) {
	defer close(j.done)
	for r := range j.queue {
		requests, n := []request{r}, len(r.events)
	more:
		for n < together {
			select {
			case r, ok := <-j.queue:
				if !ok {
					break more
				}
				requests = append(requests, r)
				n += len(r.events)
			default:
				break more
			}
		}
		events := make([]*Event, 0, n)
		for _, r := range requests {
			events = append(events, r.events...)
		}
		err := j.persist(ctx, events)
		for _, r := range requests {
			if r.result != nil {
				r.result <- err
			} else if err != nil {
				logf.Errorf(ctx, "%d events are lost: %v", len(r.events), err)
			}
		}
	}
	j.mu.Lock()
	streams := j.streams
	j.streams = nil
	j.mu.Unlock()
	for _, s := range streams {
		s.end()
	}
}

// persist numbers the events, stores them and shows them to readers.
func (j *Journal) persist(ctx context.Context, events []*Event) error {
	byStream := map[*stream][]*Event{}
	streams := map[string]*stream{}
	for _, e := range events {
		s := streams[e.Stream]
		if s == nil {
			s = j.stream(e.Stream, 0)
			streams[e.Stream] = s
		}
		byStream[s] = append(byStream[s], e)
	}
	for s, own := range byStream {
		last, err := s.load(ctx, j.opts.Store)
		if err != nil {
			return err
		}
		for i, e := range own {
			e.ID = last + int64(i) + 1
		}
	}
	if err := j.opts.Store.Append(ctx, events); err != nil {
		for s := range byStream {
			s.unload()
		}
		return errors.Wrapf(err, "persist %d events", len(events))
	}
	fault.Point("event.persisted")
	for s, own := range byStream {
		s.add(own, j.opts)
	}
	j.forget()
	return nil
}

// stream returns the stream of that name and adds readers to its reference count.
func (j *Journal) stream(name string, readers int) *stream {
	j.mu.Lock()
	defer j.mu.Unlock()
	s := j.streams[name]
	if s == nil {
		s = &stream{name: name}
		if j.streams == nil { // closed
			s.ended = true
			return s
		}
		j.streams[name] = s
	}
	s.refs += readers
	return s
}

// forget bounds the number of remembered streams without readers. Only the writer calls it, so no stream is in
// use by the writer then.
func (j *Journal) forget() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.streams) <= idle {
		return
	}
	for name, s := range j.streams {
		if s.refs == 0 {
			delete(j.streams, name)
		}
	}
}

// Last returns the id of the stream's newest event, 0 if it never had one.
func (j *Journal) Last(ctx context.Context, name string) (int64, error) {
	return j.opts.Store.Last(ctx, name)
}

// Prune removes events older than before and returns their number. stream "" means all streams. Readers that
// have yet to read a removed event get Pruned in its place.
func (j *Journal) Prune(ctx context.Context, stream string, before time.Time) (int, error) {
	return j.opts.Store.Prune(ctx, stream, before)
}
