package store

import (
	"context"
	"database/sql"
	"encoding/json"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/repo"
)

// Repos stores the records of repositories and of their image builds.
type Repos struct{ db *DB }

var _ repo.Store = Repos{}

// Repos returns the store of repositories.
func (db *DB) Repos() Repos { return Repos{db} }

// storedRepo is a repository with the fields hidden from clients.
type storedRepo struct {
	repo.Repo
	Retired []string `json:"retired,omitempty"`
}

// PutRepo implements repo.Store.
func (s Repos) PutRepo(ctx context.Context, r repo.Repo, builds ...repo.Build) error {
	text, err := json.Marshal(storedRepo{r, r.Retired})
	if err != nil {
		return errors.Wrapf(err, "encode repository %s", r.ID)
	}
	return s.db.change(ctx, "write repository "+r.ID, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO repos (id, account, name, record) VALUES (?, ?, ?, ?)
			ON CONFLICT (id) DO UPDATE SET name = excluded.name, record = excluded.record`, r.ID, r.Account, r.Name,
			string(text))
		if taken(err) {
			return repo.NameTaken(r.Name)
		}
		if err != nil {
			return err
		}
		for _, b := range builds {
			text, err := json.Marshal(b)
			if err != nil {
				return errors.Wrapf(err, "encode build %s", b.ID)
			}
			if _, err := tx.ExecContext(ctx,
				`INSERT INTO repo_builds (id, repo, record) VALUES (?, ?, ?) ON CONFLICT (id) DO UPDATE SET record = `+
					`excluded.record`,
				b.ID, r.ID, string(text)); err != nil {
				return errors.Wrapf(err, "write build %s", b.ID)
			}
		}
		return nil
	})
}

// Repo implements repo.Store.
func (s Repos) Repo(ctx context.Context, id string) (repo.Repo, error) {
	found, err := s.query(ctx, "SELECT account, record FROM repos WHERE id = ?", id)
	return only(found, err, repo.NotFound(id))
}

// Repos implements repo.Store.
func (s Repos) Repos(ctx context.Context, account string) ([]repo.Repo, error) {
	return s.query(ctx, "SELECT account, record FROM repos WHERE ?1 = '' OR account = ?1 ORDER BY name, id", account)
}

func (s Repos) query(ctx context.Context, query string, args ...any) ([]repo.Repo, error) {
	stored, err := decodeRows(ctx, s.db, "repositories", func(r *storedRepo, account string) { r.Account = account },
		query, args...)
	list := make([]repo.Repo, 0, len(stored))
	for _, r := range stored {
		r.Repo.Retired = r.Retired
		list = append(list, r.Repo)
	}
	return list, err
}

// DeleteRepo implements repo.Store.
func (s Repos) DeleteRepo(ctx context.Context, id string) error {
	return s.db.change(ctx, "delete repository "+id, func(tx *sql.Tx) error {
		if err := mustChange(ctx, tx, repo.NotFound(id), "DELETE FROM repos WHERE id = ?", id); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, "DELETE FROM repo_builds WHERE repo = ?", id)
		return err
	})
}

// Builds implements repo.Store.
func (s Repos) Builds(ctx context.Context, id string, limit int) ([]repo.Build, error) {
	if limit <= 0 {
		limit = -1
	}
	return decodeRows(ctx, s.db, "builds of repositories", func(b *repo.Build, of string) { b.Repo = of },
		"SELECT repo, record FROM repo_builds WHERE repo = ? ORDER BY id DESC LIMIT ?", id, limit)
}

// TrimBuilds implements repo.Store.
func (s Repos) TrimBuilds(ctx context.Context, id string, keep int) error {
	_, err := s.db.write.ExecContext(ctx, "DELETE FROM repo_builds WHERE repo = ?1 AND id <= "+
		"(SELECT id FROM repo_builds WHERE repo = ?1 ORDER BY id DESC LIMIT 1 OFFSET ?2)", id, keep)
	return s.db.explain(err, "shorten the history of repository "+id)
}
