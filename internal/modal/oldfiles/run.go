package oldfiles

import (
	"context"
	"crypto/rand"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
)

// run is an operation and its result.
type run struct {
	id, box string

	mu      sync.Mutex
	cancel  context.CancelFunc // guarded by mu; of a watch
	output  [][]byte           // guarded by mu; not sent yet
	size    int64              // guarded by mu; of output
	failed  *Error             // guarded by mu
	done    bool               // guarded by mu
	read    time.Time          // guarded by mu; when a client last read
	sent    bool               // guarded by mu; a client has read the end
	changed chan struct{}      // guarded by mu; closed when output or done changes
}

// begin adds an operation of a sandbox.
func (s *Sessions) begin(box string) (*run, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := 0
	for id, r := range s.runs {
		if r.box != box {
			continue
		}
		if r.delivered(keptEnd) {
			delete(s.runs, id)
		} else {
			n++
		}
	}
	if n >= mostRuns {
		return nil, errors.Remedy(errors.Newf(errors.Exhausted, "sandbox: has %d operations on files", mostRuns),
			"read their results")
	}
	r := &run{id: "fe-" + rand.Text(), box: box, read: time.Now(), changed: make(chan struct{})}
	s.runs[r.id] = r
	return r, nil
}

func (s *Sessions) drop(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.runs, id)
}

// pending returns the bytes of a sandbox's results that were not read.
func (s *Sessions) pending(box string) (n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.runs {
		if r.box == box {
			r.mu.Lock()
			n += r.size
			r.mu.Unlock()
		}
	}
	return n
}

// add adds output. It fails if more than most bytes wait for their reader.
func (r *run) add(data []byte, most int64) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.size+int64(len(data)) > most {
		return &Error{NoMemory, "the reader is too slow"}
	}
	r.output = append(r.output, data)
	r.size += int64(len(data))
	r.wake()
	return nil
}

// wake wakes the readers. r.mu is held.
func (r *run) wake() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// finish sets the result.
func (r *run) finish(out []byte, failed *Error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(out) > 0 {
		n := min(len(out), part)
		r.output = append(r.output, out[:n])
		r.size += int64(n)
		out = out[n:]
	}
	r.failed, r.done = failed, true
	r.wake()
}

// forgotten reports whether the result was not read for some time.
func (r *run) forgotten() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.read) > keptResult && (r.done || r.cancel == nil)
}

// delivered reports whether a client has read the end of the result, at least the given time ago.
func (r *run) delivered(ago time.Duration) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.sent && time.Since(r.read) > ago
}

// stop ends a watch.
func (r *run) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cancel != nil {
		r.cancel()
	}
}

// idle reports whether r has no reader.
func (r *run) idle() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.read) > keptResult
}

// next returns the next output, or the end. more is closed when there may be more.
func (r *run) next() (data []byte, done bool, failed *Error, more <-chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.read = time.Now()
	if len(r.output) > 0 {
		data = r.output[0]
		r.output = r.output[1:]
		r.size -= int64(len(data))
		return data, false, nil, nil
	}
	r.sent = r.done
	return nil, r.done, r.failed, r.changed
}

// Batch is a part of a result.
type Batch struct {
	Output []byte
	Failed *Error
	EOF    bool // nothing follows
}

// Box returns the sandbox of a result. NotFound if there is no such result.
func (s *Sessions) Box(id string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.runs[id]; r != nil {
		return r.box, nil
	}
	return "", errors.Newf(errors.NotFound, "Exec '%.100s' not found", id)
}

// Output sends the parts of a result that were not sent yet, until its end or the time limit.
func (s *Sessions) Output(ctx context.Context, id string, limit time.Duration, send func(Batch) error) error {
	s.mu.Lock()
	r := s.runs[id]
	s.mu.Unlock()
	if r == nil {
		return errors.Newf(errors.NotFound, "Exec '%.100s' not found", id)
	}
	timer := time.NewTimer(limit)
	defer timer.Stop()
	tick := time.NewTicker(lookAround)
	defer tick.Stop()
	for {
		data, done, failed, more := r.next()
		switch {
		case data != nil:
			if err := send(Batch{Output: data}); err != nil {
				return err
			}
			continue
		case done && failed != nil:
			if err := send(Batch{Failed: failed}); err != nil {
				return err
			}
			return send(Batch{EOF: true})
		case done:
			return send(Batch{EOF: true})
		}
		select {
		case <-more:
		case <-tick.C: // the read is noted again
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-s.ctx.Done():
			return nil
		}
	}
}

// watch starts a watch, which ends after its time limit, with the sandbox, or when its events have no reader.
func (s *Sessions) watch(r *run, files Files, req *pb.ContainerFileWatchRequest) {
	ctx, cancel := context.WithCancel(s.ctx)
	if req.HasTimeoutSecs() {
		limit := time.Duration(min(req.GetTimeoutSecs(), 1e6)) * time.Second
		ctx, cancel = context.WithTimeout(s.ctx, limit)
	}
	r.mu.Lock()
	r.cancel = cancel
	r.mu.Unlock()
	go func() {
		defer cancel()
		tick := time.NewTicker(lookAround)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if r.idle() {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	go func() {
		defer cancel()
		err := files.Watch(ctx, req.GetPath(), req.GetRecursive(), func(json []byte) error {
			return r.add(append(json, '\n', '\n'), mostEvents)
		})
		var failed *Error
		if err != nil && !errors.As(err, &failed) {
			failed = &Error{Message: errors.Message(err)}
		}
		r.finish(nil, failed)
	}()
}
