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
		pause, connected := firstAgain, false
		for {
			err := c.followOnce(ctx, &f, func(e api.Event) bool {
				pause = firstAgain
				return yield(e, nil)
			}, &connected)
			switch {
			case errors.Is(err, errBroken):
				return
			case ctx.Err() != nil:
				yield(api.Event{}, errors.Wrapf(ctx.Err(), "follow events"))
				return
			case err != nil && (!connected || errors.KindOf(err) != errors.Unavailable):
				yield(api.Event{}, err)
				return
			}
			timer := time.NewTimer(pause)
			pause = min(2*pause, longAgain)
			select {
			case <-timer.C:
			case <-ctx.Done():
				timer.Stop()
			}
		}
	}
}

// errBroken says that the caller wants no more.
var errBroken = errors.Newf(errors.Canceled, "no more events are wanted")

// followOnce reads one connection's events, and keeps f where it is.
func (c *Client) followOnce(ctx context.Context, f *Follow, yield func(api.Event) bool, connected *bool) error {
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
	*connected = true
	return readFrames(resp.Body, func(id, name string, data []byte) error {
		e := api.Event{Type: name, Data: data}
		if id != "" {
			if e.ID, err = strconv.ParseInt(id, 10, 64); err != nil {
				return broken(io.ErrUnexpectedEOF)
			}
			f.After = e.ID
		}
		if e.Type == api.EventLagged {
			return nil // it is taken up again
		}
		if !yield(e) {
			return errBroken
		}
		return nil
	})
}
