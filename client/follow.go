package client

import (
	"context"
	"io"
	"iter"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
)

// Follow says which events are wanted. The zero value is all of the account, from the beginning.
type Follow struct {
	Stream string // a sandbox, by id or name, or a session, by its id, instead of all
	After  int64  // only events behind that id
	Tail   int    // if positive, only the last so many, and what follows; if negative, only what follows
}

// Pauses before a stream that broke off is taken up again.
const (
	firstAgain = 100 * time.Millisecond
	longAgain  = 5 * time.Second
)

// Events yields events as they happen, until ctx ends, which is an error, or the caller breaks off. A stream that breaks off is taken
// up again where it was: nothing is lost and nothing comes twice. An error ends the events; one that comes first means that there
// is nothing to follow.
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

// errNoMore says that the caller wants no more.
var errNoMore = errors.Newf(errors.Canceled, "no more events are wanted")

// stop is an error of the caller's own, which ends a stream.
type stop struct{ error }

func (s stop) Unwrap() error { return s.error }

func stopped(err error) error {
	if err == nil {
		return nil
	}
	return stop{err}
}

// link is the connections of a stream, one after the other.
type link struct {
	ever  bool          // there was one
	pause time.Duration // before the next
}

// resume calls once for one connection after the other, until ctx ends, once returns an error that does not come from the connection, or
// there never is one. A stream that ends is taken up again as well: the server has ended, and another one begins.
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

// followOnce reads one connection's events, and keeps f where it is.
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
	resp, err := c.do(ctx, http.MethodGet, api.Events, query, nil, http.Header{"Accept": {api.TypeEvents}})
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	l.ever = true
	return readFrames(resp.Body, func(id, name string, data []byte) error {
		e := api.Event{Type: name, Data: data}
		if id != "" {
			if e.ID, err = strconv.ParseInt(id, 10, 64); err != nil {
				return broken(io.ErrUnexpectedEOF)
			}
			f.After, f.Tail = e.ID, 0
		}
		if name == "" { // where the stream begins
			return nil
		}
		l.pause = firstAgain
		if e.Type == api.EventLagged {
			return nil // it is taken up again
		}
		return yield(e)
	})
}
