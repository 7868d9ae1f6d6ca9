package client

import (
	"cmp"
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// Follow selects events. The zero value selects all events of the account, from the beginning.
type Follow struct {
	Stream string // a sandbox, by ID or name, or a session, by ID; "" means all
	After  int64  // only events after this ID
	Tail   int    // if positive, only the last so many and new events; if negative, only new events
	// Attended means that a person reads the events of a session and can answer the model's questions, which otherwise
	// do not wait in a session that asks nothing.
	Attended bool

	path string // route of the stream; "" means api.Events
}

// Pauses before the client reconnects a broken stream.
const (
	firstAgain = 100 * time.Millisecond
	longAgain  = 5 * time.Second
)

// Events yields events as they happen, until ctx ends, which is an error, or the caller stops. It resumes a broken
// stream at the same position: no event is lost or repeated. An error ends the events; an error at the beginning
// means that the stream does not exist.
func (c *Client) Events(ctx context.Context, f Follow) iter.Seq2[api.Event, error] {
	return func(yield func(api.Event, error) bool) {
		err := c.resume(ctx, func(l *link) error {
			return c.followOnce(ctx, &f, func(e api.Event) error {
				if !yield(e, nil) {
					return stopped(errNoMore)
				}
				return nil
			}, l)
		})
		if err != nil && !errors.Is(err, errNoMore) {
			yield(api.Event{}, err)
		}
	}
}

// errNoMore means that the caller wants no further events.
var errNoMore = errors.Newf(errors.Canceled, "the receiver wants no further events")

// stop is an error of the caller, which ends a stream.
type stop struct{ error }

func (s stop) Unwrap() error { return s.error }

func stopped(err error) error {
	if err == nil {
		return nil
	}
	return stop{err}
}

// link is the sequence of connections of a stream.
type link struct {
	ever  bool          // a connection was established
	pause time.Duration // before the next connection
}

// resume calls once for one connection after the other, until ctx ends, once returns an error that does not come from
// the connection, or no connection can be established at all. It also resumes a stream that ends: the server has
// ended, and another one starts.
func (c *Client) resume(ctx context.Context, once func(*link) error) error {
	l := link{pause: firstAgain}
	for {
		err := once(&l)
		var own stop
		switch {
		case errors.As(err, &own):
			return own.error
		case ctx.Err() != nil:
			return errors.Wrapf(ctx.Err(), "follow a stream")
		case err != nil && (!l.ever || errors.KindOf(err) != errors.Unavailable):
			return err
		}
		timer := time.NewTimer(l.pause)
		l.pause = min(2*l.pause, longAgain)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
		}
	}
}

// followOnce reads the events of one connection, and updates the position in f.
func (c *Client) followOnce(ctx context.Context, f *Follow, yield func(api.Event) error, l *link) error {
	query := url.Values{}
	if f.Stream != "" {
		query.Set("stream", f.Stream)
	}
	switch {
	case f.After > 0:
		query.Set("after", strconv.FormatInt(f.After, 10))
	case f.Tail != 0:
		query.Set("tail", strconv.Itoa(max(0, f.Tail)))
	}
	if f.Attended {
		query.Set("attended", "true")
	}
	header := http.Header{"Accept": {api.TypeEvents}}
	resp, err := c.do(ctx, http.MethodGet, cmp.Or(f.path, api.Events), query, nil, header)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	l.ever = true
	move := func(id string) (n int64, err error) {
		if n, err = strconv.ParseInt(id, 10, 64); err != nil {
			return 0, broken(io.ErrUnexpectedEOF)
		}
		f.After, f.Tail = n, 0
		return n, nil
	}
	alone := func(id string) error { // at the start of the stream
		_, err := move(id)
		return err
	}
	return readFrames(resp.Body, alone, func(id, name string, data []byte) error {
		e := api.Event{Type: name, Data: data}
		if id != "" {
			if e.ID, err = move(id); err != nil {
				return err
			}
		}
		if name == "" {
			return nil
		}
		l.pause = firstAgain
		if e.Type == api.EventLagged {
			return nil // resume reconnects
		}
		return yield(e)
	})
}
