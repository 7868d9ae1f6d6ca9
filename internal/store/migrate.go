package store

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"io/fs"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Migrations are numbered from 0001 without gaps. One that was released is never changed.
//
//go:embed migrations/*.sql
var migrationFiles embed.FS

var migrations = sync.OnceValue(func() []string {
	names, err := fs.Glob(migrationFiles, "migrations/*.sql")
	if err != nil {
		panic(err) // the pattern is a constant
	}
	texts := make([]string, len(names))
	for i, name := range names {
		text, err := migrationFiles.ReadFile(name)
		if err != nil {
			panic(err) // the file is in the binary
		}
		texts[i] = string(text)
	}
	return texts
})

// migrate runs the missing migrations, each in a transaction that also sets its number.
func (db *DB) migrate(ctx context.Context) error {
	var version int
	if err := db.write.QueryRowContext(ctx, "PRAGMA user_version").Scan(&version); err != nil {
		return db.explain(err, "read the schema's version")
	}
	all := migrations()
	if version > len(all) {
		return errors.Remedy(errors.Newf(errors.Unsupported,
			"the database %s was written by a newer Harvest (its schema is %d, this one knows %d)", db.path,
			version, len(all)),
			"use a Harvest that is at least as new, or another data directory")
	}
	for ; version < len(all); version++ {
		if err := db.migrateTo(ctx, version+1, all[version]); err != nil {
			return err
		}
	}
	return nil
}

func (db *DB) migrateTo(ctx context.Context, version int, statements string) error {
	return db.change(ctx, fmt.Sprintf("migrate the database to schema %d", version), func(tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, statements); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA user_version = %d", version))
		return err
	})
}
