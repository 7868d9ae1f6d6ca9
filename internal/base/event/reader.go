package event

import (
	"context"
	"io"
	"iter"
	"slices"
	"sort"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Reader reads a stream from a given position. Only one goroutine at a time may use it. Unread events take no
// memory.
type Reader struct {
	journal *Journal
	stream  *stream
	group   *group
	after   int64 // the id of the last event that was returned
	live    bool  // it has caught up once
	lagged  bool
	closed  bool
	batch   []*Event // the last result of next
}

// Subscribe returns a reader of all events with ids above after, including future ones. 0 means from the
// beginning. The caller must close it. Invalid if after is beyond the end of the stream, as after restoring a
// backup.
func (j *Journal) Subscribe(ctx context.Context, name string, after int64) (*Reader, error) {
	return j.subscribe(ctx, name, func(last int64) (int64, error) {
		if after < 0 || after > last {
			return 0, errors.Remedy(errors.Newf(errors.Invalid,
				"the stream %.100s has %d events, and no event after %d", name, last, after), "begin again from 0")
		}
		return after, nil
	})
}

// Tail is Subscribe from the last n events on. 0 means only future events.
func (j *Journal) Tail(ctx context.Context, name string, n int) (*Reader, error) {
	return j.subscribe(ctx, name, func(last int64) (int64, error) { return max(0, last-int64(max(0, n))), nil })
}

func (j *Journal) subscribe(ctx context.Context, name string, from func(last int64) (int64, error)) (*Reader, error) {
	r := &Reader{journal: j, stream: j.stream(name, 1)}
	s := r.stream
	_, err := s.load(ctx, j.opts.Store)
	s.mu.Lock()
	if err == nil {
		r.after, err = from(s.last)
	}
	r.group = s.join()
	s.mu.Unlock()
	if err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

// After returns the id after which Next continues.
func (r *Reader) After() int64 { return r.after }

// Close ends the reader. It may be called more than once.
func (r *Reader) Close() {
	if r.closed {
		return
	}
	r.closed = true
	s := r.stream
	s.mu.Lock()
	s.leave(r.group)
	s.mu.Unlock()
	r.journal.mu.Lock()
	s.refs--
	r.journal.mu.Unlock()
}

// Next returns one or more events, and waits until there is one. io.EOF means that no more events will come:
// after Lagged, or when the Journal is closed and every event was returned. If ctx ends, Next may be called
// again without losing an event.
func (r *Reader) Next(ctx context.Context) ([]*Event, error) {
	batch, err := r.next(ctx, nil)
	return slices.Clone(batch), err
}

// AppendNext is Next for a caller that forwards the events: it appends their frames to buf and returns their
// number. The number is 0, without an error, if beat fires first.
func (r *Reader) AppendNext(ctx context.Context, buf []byte, beat <-chan time.Time) (_ []byte, n int, err error) {
	batch, err := r.next(ctx, beat)
	for _, e := range batch {
		if e.frame != nil {
			buf = append(buf, e.frame...)
		} else {
			buf = e.appendFrame(buf)
		}
	}
	return buf, len(batch), err
}

// next returns events that are valid until the next call. It returns none if beat fires first.
func (r *Reader) next(ctx context.Context, beat <-chan time.Time) ([]*Event, error) {
	s := r.stream
	clear(r.batch) // release the events already sent while waiting
	for {
		if r.lagged || r.closed {
			return nil, io.EOF
		}
		s.mu.Lock()
		wake, ended, visible := r.group.wake, s.ended, r.group.visible
		var first int64
		r.batch = r.batch[:0]
		if len(s.recent) > 0 {
			first = s.recent[0].ID
			if skip := r.after + 1 - first; skip >= 0 && r.after < visible {
				r.batch = append(r.batch, s.recent[skip:visible+1-first]...)
			}
		}
		s.mu.Unlock()
		switch {
		case len(r.batch) > 0:
			r.live, r.after = true, r.batch[len(r.batch)-1].ID
			return r.batch, nil
		case r.after >= visible && ended:
			return nil, io.EOF
		case r.after >= visible:
			r.live = true
			select {
			case <-wake:
			case <-beat:
				return nil, nil
			case <-ctx.Done():
				return nil, errors.Wrapf(ctx.Err(), "wait for events")
			}
		case r.live && first > 0:
			r.lagged = true
			return []*Event{notice(s.name, Lagged, r.after, first)}, nil
		default:
			return r.catchUp(ctx, visible)
		}
	}
}

// catchUp returns older events from the Store, because events up to visible are missing.
func (r *Reader) catchUp(ctx context.Context, visible int64) ([]*Event, error) {
	found, err := r.journal.opts.Store.Read(ctx, r.stream.name, r.after, pageEvents)
	if err != nil {
		return nil, errors.Wrapf(err, "read the events of %s", r.stream.name)
	}
	// Events that are persisted but not shown yet stay hidden: Subscribe would reject their ids.
	found = found[:sort.Search(len(found), func(i int) bool { return found[i].ID > visible })]
	before, first := r.after, visible+1
	r.after = visible
	if len(found) > 0 {
		first, r.after = found[0].ID, found[len(found)-1].ID
	}
	if first > before+1 {
		found = append([]*Event{notice(r.stream.name, Pruned, before, first)}, found...)
	}
	return found, nil
}

// All yields the events one by one until the stream or ctx ends. The end of ctx is an error. All closes the
// reader.
func (r *Reader) All(ctx context.Context) iter.Seq2[*Event, error] {
	return func(yield func(*Event, error) bool) {
		defer r.Close()
		for {
			batch, err := r.Next(ctx)
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			for _, e := range batch {
				if !yield(e, nil) {
					return
				}
			}
		}
	}
}
