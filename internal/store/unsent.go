package store

import (
	"context"
	"encoding/json"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
)

// Unsent stores the volumes that are not uploaded to S3 yet.
type Unsent struct{ db *DB }

var _ storage.Store = Unsent{}

// Unsent returns the store of volumes that are not uploaded yet.
func (db *DB) Unsent() Unsent { return Unsent{db} }

// Put implements storage.Store.
func (s Unsent) Put(ctx context.Context, u storage.Unsent) error {
	data, err := json.Marshal(u)
	if err != nil {
		return errors.Wrapf(err, "encode the unsent files of %s", u.Sandbox)
	}
	_, err = s.db.write.ExecContext(ctx,
		"INSERT INTO unsent (sandbox, account, data) VALUES (?, ?, ?) ON CONFLICT (sandbox) DO UPDATE SET account = "+
			"excluded.account, data = excluded.data",
		u.Sandbox, u.Account, string(data))
	return s.db.explain(err, "record the unsent files of "+u.Sandbox)
}

// List implements storage.Store.
func (s Unsent) List(ctx context.Context) ([]storage.Unsent, error) {
	return decodeRows(ctx, s.db, "volumes to send", func(u *storage.Unsent, account string) { u.Account = account },
		"SELECT account, data FROM unsent ORDER BY sandbox")
}

// Delete implements storage.Store.
func (s Unsent) Delete(ctx context.Context, sandbox string) error {
	_, err := s.db.write.ExecContext(ctx, "DELETE FROM unsent WHERE sandbox = ?", sandbox)
	return s.db.explain(err, "note that "+sandbox+" has sent its volume")
}
