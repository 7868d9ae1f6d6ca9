// Package inbox keeps what waits for a person: approvals, questions and finished turns of all sessions of an account,
// and logins that no longer work. Box is the entry point.
//
// A session reports its open questions as a set, whenever the set changes and once after a restart. So the Box needs no
// memory of its own: an item that a crashed server has not recorded is recorded by the next one, and the key of an item
// prevents a second one for the same fact.
package inbox

import (
	"context"
	"encoding/json"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/fault"
	"github.com/RelevanceAI/harvest/internal/base/ids"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
)

// The events of an inbox's stream. Their data is the Item.
const (
	EventAdded  = "inbox.added"
	EventClosed = "inbox.closed"
)

// Stream is the stream of the events of an account's inbox.
func Stream(account string) string { return "inbox/" + account }

// Store keeps items. Package store implements it; package storetest tests it.
type Store interface {
	// AddItem numbers and inserts an item, unless its account and session have one with its Key; then it returns false.
	// If the account then has more than keep items, AddItem deletes the oldest: first closed ones, then those that
	// need no answer.
	AddItem(ctx context.Context, item Item, keep int) (Item, bool, error)
	// PutItem replaces an item.
	PutItem(ctx context.Context, item Item) error
	// Items returns items of an account, the newest first. A Limit of 0 means no limit.
	Items(ctx context.Context, account string, f Filter) ([]Item, error)
	// OpenItems returns the waiting items of all accounts, the oldest first.
	OpenItems(ctx context.Context) ([]Item, error)
	// DueItems returns the items with one of the bits in Due, the oldest first.
	DueItems(ctx context.Context, bits int) ([]Item, error)
	// Delivered clears bits of an item's Due.
	Delivered(ctx context.Context, item Item, bits int) error
}

// Filter selects items. The zero value selects all.
type Filter struct {
	Waiting bool
	Session string // "" means every session, and logins
	Before  int64  // only lower numbers; 0 means all
	Limit   int
}

// Receiver gets new items, at least once each. Items that are closed before are left out. Wants and Send may be called
// concurrently.
type Receiver interface {
	// Wants reports whether the receiver gets an item.
	Wants(item Item) bool
	// Send sends an item. It returns Invalid if it is pointless to try again.
	Send(ctx context.Context, item Item) error
}

// Options of a Box. Store and Journal are required. Other zero fields get the default given in their comments.
type Options struct {
	Store     Store
	Journal   *event.Journal
	Receivers []Receiver    // at most 16; items that are due remember the position of their receiver
	Keep      int           // items of an account: 1000
	Pause     time.Duration // before the second attempt to send an item; it doubles each time, to 5 minutes: 1 s
	GiveUp    time.Duration // age at which an item is no longer sent: 24 hours
}

// Box holds the inboxes of all accounts. All methods may be called concurrently. A nil Box drops everything.
type Box struct {
	opts Options
	ctx  context.Context // ends with Close
	stop context.CancelFunc
	work tasks.Group
	wake []chan struct{} // of the receivers

	mu sync.Mutex // held while an item changes, so that its events are in order
}

// dueEvent is the bit of the event stream. The receivers have the bits above it.
const dueEvent = 1

const longPause = 5 * time.Minute

// Open returns a Box. It publishes the events that an earlier server could not, and resumes sending.
func Open(ctx context.Context, opts Options) (*Box, error) {
	if opts.Keep == 0 {
		opts.Keep = 1000
	}
	if opts.Pause == 0 {
		opts.Pause = time.Second
	}
	if opts.GiveUp == 0 {
		opts.GiveUp = 24 * time.Hour
	}
	b := &Box{opts: opts}
	due, err := opts.Store.DueItems(ctx, dueEvent)
	if err != nil {
		return nil, err
	}
	for _, item := range due {
		b.publish(ctx, item)
	}
	b.ctx, b.stop = context.WithCancel(context.WithoutCancel(ctx))
	for n, r := range opts.Receivers {
		wake := make(chan struct{}, 1)
		wake <- struct{}{}
		b.wake = append(b.wake, wake)
		b.work.Go(func() { b.deliver(r, dueEvent<<(n+1), wake) })
	}
	return b, nil
}

// Close stops sending. The next Box sends the rest.
func (b *Box) Close() {
	b.stop()
	b.work.Close()
}

// Add adds an item, unless there is one with its key. Account, Key, Kind and What must be set.
func (b *Box) Add(ctx context.Context, item Item) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.add(ctx, item)
}

func (b *Box) add(ctx context.Context, item Item) error {
	item.ID, item.State, item.Due = "inb_"+ids.New(), Waiting, dueEvent
	if item.Since.IsZero() {
		item.Since = time.Now().UTC()
	}
	item.fit()
	for n, r := range b.opts.Receivers {
		if r.Wants(item) {
			item.Due |= dueEvent << (n + 1)
		}
	}
	item, err := redacted(item)
	if err != nil {
		return err
	}
	item, added, err := b.opts.Store.AddItem(ctx, item, b.opts.Keep)
	if err != nil || !added {
		return err
	}
	fault.Point("inbox.added")
	b.publish(ctx, item)
	for _, wake := range b.wake {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	return nil
}

// Open makes items the open ones of a session: approvals, questions and silence. It adds those that are new, and closes
// the others. answers has the answers to closed ones, by key.
func (b *Box) Open(ctx context.Context, account, session string, items []Item, answers map[string]string) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	old, err := b.opts.Store.Items(ctx, account, Filter{Waiting: true, Session: session})
	if err != nil {
		return err
	}
	for _, item := range slices.Backward(old) {
		open := slices.ContainsFunc(items, func(o Item) bool { return o.Key == item.Key })
		if open || item.Kind == Finished {
			continue
		}
		state := Withdrawn
		answer, answered := answers[item.Key]
		if answered {
			state = Answered
		}
		if err := b.close(ctx, item, state, answer); err != nil {
			return err
		}
	}
	for _, item := range items {
		item.Account, item.Session = account, session
		if slices.ContainsFunc(old, func(o Item) bool { return o.Key == item.Key }) {
			continue
		}
		if err := b.add(ctx, item); err != nil {
			return err
		}
	}
	return nil
}

// Retain withdraws what waits for an answer in sessions that are not live: an earlier server ended them, but could not
// record that here.
func (b *Box) Retain(ctx context.Context, live func(session string) bool) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	open, err := b.opts.Store.OpenItems(ctx)
	if err != nil {
		return err
	}
	for _, item := range open {
		if item.Session == "" || item.Kind == Finished || live(item.Session) {
			continue
		}
		if err := b.close(ctx, item, Withdrawn, ""); err != nil {
			return err
		}
	}
	return nil
}

// Selection selects waiting items to mark as seen. Numbers name items; the others select all that need no answer.
type Selection struct {
	Numbers []int64
	Session string
	Secret  string // login of that name
	All     bool
}

// See marks items as seen. Kinds: NotFound (no such number), Conflict (a number of an item that needs an answer). Items
// that are closed already stay as they are.
func (b *Box) See(ctx context.Context, account string, s Selection) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	found, err := b.opts.Store.Items(ctx, account, Filter{Waiting: len(s.Numbers) == 0, Session: s.Session})
	if err != nil {
		return err
	}
	var chosen []Item
	for _, number := range s.Numbers {
		at := slices.IndexFunc(found, func(i Item) bool { return i.Number == number })
		switch {
		case at < 0:
			return errors.Remedy(errors.Newf(errors.NotFound, "inbox item %d: not found", number),
				"list the inbox: harvest inbox")
		case found[at].State == Waiting && found[at].Kind.Answerable():
			return errors.Remedy(errors.Newf(errors.Conflict, "inbox item %d: it waits for an answer", number),
				"answer it: harvest inbox answer %d", number)
		}
		chosen = append(chosen, found[at])
	}
	for _, item := range slices.Backward(found) {
		if !item.Kind.Answerable() && (s.All || s.Session != "" || s.Secret != "" && item.Secret == s.Secret) {
			chosen = append(chosen, item)
		}
	}
	for _, item := range chosen {
		if item.State != Waiting {
			continue
		}
		if err := b.close(ctx, item, Seen, ""); err != nil {
			return err
		}
	}
	return nil
}

// Items returns items of an account, the newest first.
func (b *Box) Items(ctx context.Context, account string, f Filter) ([]Item, error) {
	return b.opts.Store.Items(ctx, account, f)
}

// close ends an item. Receivers that have not got it do not get it any longer.
func (b *Box) close(ctx context.Context, item Item, state State, answer string) error {
	item.State, item.Answer, item.Closed, item.Due = state, Line(answer), time.Now().UTC(), dueEvent
	item, err := redacted(item)
	if err != nil {
		return err
	}
	if err := b.opts.Store.PutItem(ctx, item); err != nil {
		return err
	}
	b.publish(ctx, item)
	return nil
}

// publish publishes the event of an item's state. If it fails, the next server publishes it.
func (b *Box) publish(ctx context.Context, item Item) {
	name := EventAdded
	if item.State != Waiting {
		name = EventClosed
	}
	err := b.opts.Journal.Publish(ctx, event.Draft{Stream: Stream(item.Account), Type: name, Data: item})
	if err == nil {
		err = b.opts.Store.Delivered(ctx, item, dueEvent)
	}
	if err != nil {
		logf.Errorf(ctx, "publish the inbox item %s: %v", item.ID, err)
	}
}

// redacted returns an item without the values of secrets.
func redacted(item Item) (Item, error) {
	text, err := event.Encode(item)
	if err != nil {
		return item, errors.Wrapf(err, "encode an inbox item")
	}
	clean := Item{Account: item.Account, Key: item.Key, Due: item.Due}
	return clean, errors.Wrapf(json.Unmarshal(text, &clean), "decode an inbox item")
}
