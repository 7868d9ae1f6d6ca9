package client

import (
	"context"
	"encoding/json"
	"iter"
	"net/http"
	"net/url"

	"github.com/RelevanceAI/harvest/client/api"
)

// Inbox returns what waits for a person, newest first; all includes what waits no longer.
func (c *Client) Inbox(ctx context.Context, all bool) ([]api.InboxItem, error) {
	query := url.Values{}
	if all {
		query.Set("all", "true")
	}
	return list[api.InboxItem](ctx, c, api.Inbox, query)
}

// InboxSeen marks items that need no answer as seen.
func (c *Client) InboxSeen(ctx context.Context, req api.InboxSeenRequest) error {
	return c.call(ctx, http.MethodPost, api.InboxSeen, nil, req, nil)
}

// InboxEvents yields the items of the inbox as they are added and closed, as Events does with events. Fields of f other
// than After and Tail are ignored. The caller lists the items after the first event that it follows, or before, and
// keeps the one that is closed: an item is closed once.
func (c *Client) InboxEvents(ctx context.Context, f Follow) iter.Seq2[api.InboxItem, error] {
	return func(yield func(api.InboxItem, error) bool) {
		f := Follow{After: f.After, Tail: f.Tail, path: api.InboxEvents}
		for e, err := range c.Events(ctx, f) {
			var item api.InboxItem
			if err == nil && e.Type != api.EventInboxAdded && e.Type != api.EventInboxClosed {
				continue // such as stream.pruned
			}
			if err == nil {
				err = broken(json.Unmarshal(e.Data, &item))
			}
			if !yield(item, err) || err != nil {
				return
			}
		}
	}
}
