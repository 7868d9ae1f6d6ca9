package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/inbox"
)

// Inbox stores what waits for people.
type Inbox struct{ db *DB }

var _ inbox.Store = Inbox{}

// Inbox returns the store of what waits for people.
func (db *DB) Inbox() Inbox { return Inbox{db} }

// AddItem implements inbox.Store.
func (s Inbox) AddItem(ctx context.Context, item inbox.Item, keep int) (inbox.Item, bool, error) {
	added := true
	err := s.db.change(ctx, "add an inbox item", func(tx *sql.Tx) error {
		if err := tx.QueryRowContext(ctx, "INSERT INTO inbox_numbers (account, last) VALUES (?, 1) "+
			"ON CONFLICT (account) DO UPDATE SET last = last + 1 RETURNING last", item.Account).Scan(
			&item.Number); err != nil {
			return err
		}
		data, err := json.Marshal(item)
		if err != nil {
			return errors.Wrapf(err, "encode an inbox item")
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO inbox (account, number, session, key, waiting, answerable, due, "+
			"data) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", item.Account, item.Number, item.Session, item.Key,
			item.State == inbox.Waiting, item.Kind.Answerable(), item.Due, string(data))
		if taken(err) {
			added = false
			return errAdded
		}
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "DELETE FROM inbox WHERE account = ?1 AND number IN (SELECT number FROM inbox "+
			"WHERE account = ?1 ORDER BY waiting, answerable, number "+
			"LIMIT max(0, (SELECT count(*) FROM inbox WHERE account = ?1) - ?2))", item.Account, keep)
		return err
	})
	if !added {
		return inbox.Item{}, false, nil
	}
	return item, err == nil, err
}

// errAdded rolls back the insertion of an item that exists.
var errAdded = errors.Errorf("the inbox has the item")

// PutItem implements inbox.Store.
func (s Inbox) PutItem(ctx context.Context, item inbox.Item) error {
	data, err := json.Marshal(item)
	if err != nil {
		return errors.Wrapf(err, "encode an inbox item")
	}
	_, err = s.db.write.ExecContext(ctx,
		"UPDATE inbox SET waiting = ?, due = ?, data = ? WHERE account = ? AND number = ?",
		item.State == inbox.Waiting, item.Due, string(data), item.Account, item.Number)
	return s.db.explain(err, "write an inbox item")
}

// Items implements inbox.Store.
func (s Inbox) Items(ctx context.Context, account string, f inbox.Filter) ([]inbox.Item, error) {
	limit := f.Limit
	if limit <= 0 {
		limit = -1
	}
	return s.query(ctx, "WHERE account = ?1 AND (NOT ?2 OR waiting = 1) AND (?3 = '' OR session = ?3) "+
		"AND (?4 = 0 OR number < ?4) ORDER BY number DESC LIMIT ?5", account, f.Waiting, f.Session, f.Before, limit)
}

// OpenItems implements inbox.Store.
func (s Inbox) OpenItems(ctx context.Context) ([]inbox.Item, error) {
	return s.query(ctx, "WHERE waiting = 1 ORDER BY account, number")
}

// DueItems implements inbox.Store.
func (s Inbox) DueItems(ctx context.Context, bits int) ([]inbox.Item, error) {
	return s.query(ctx, "WHERE due > 0 AND due & ? != 0 ORDER BY account, number", bits)
}

func (s Inbox) query(ctx context.Context, where string, args ...any) ([]inbox.Item, error) {
	return scanAll(ctx, s.db, "read the inbox", func(rows *sql.Rows, item *inbox.Item) error {
		var data sql.RawBytes
		if err := rows.Scan(&item.Account, &item.Key, &item.Due, &data); err != nil {
			return err
		}
		if err := json.Unmarshal(data, item); err != nil {
			return damaged(err, s.db.path)
		}
		return nil
	}, "SELECT account, key, due, data FROM inbox "+where, args...)
}

// Delivered implements inbox.Store.
func (s Inbox) Delivered(ctx context.Context, item inbox.Item, bits int) error {
	_, err := s.db.write.ExecContext(ctx, "UPDATE inbox SET due = due & ~? WHERE account = ? AND number = ?", bits,
		item.Account, item.Number)
	return s.db.explain(err, "record the delivery of an inbox item")
}
