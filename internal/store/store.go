// Package store stores Harvest's records in one SQLite file and locks the data directory of that
// file.
//
// Each of Sandboxes, Secrets, Events, Schedules, Repos, Dicts and Records implements the small Store interface of
// the package that owns the records. Package storetest has the tests of these interfaces.
package store

import (
	"context"
	"database/sql"
	"encoding/json"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/RelevanceAI/harvest/client/errors"
)

// DB is an open database. It is safe for concurrent use. Only one process at a time should open a
// file: see Lock.
type DB struct {
	path string
	// file is open until the connections are closed: closing it earlier would drop SQLite's locks.
	file *os.File
	// SQLite allows one writer at a time. With a single connection for writing, writers queue here
	// and the wait respects the context, unlike in SQLite's busy handler.
	write, read *sql.DB

	replays    atomic.Int64 // number of BeginReplay calls
	statements sync.Map     // of statementKey to *sql.Stmt
}

const readers = 4

// Open opens the database file at path, which it creates if missing, and updates its schema. Kinds:
// Denied if the file or its directory is not writable, Exhausted if the disk is full, Unsupported
// if a newer Harvest wrote the file, Internal with a remedy if the file is damaged.
func Open(ctx context.Context, path string) (*DB, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return nil, errors.Wrapf(err, "the database's path")
	}
	// SQLite gives its other files the mode of this one. Other users must not read the records.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fileError(err, path)
	}
	db := &DB{path: path, file: f}
	if db.write, err = connect(path, 1, "_txlock=immediate"); err != nil {
		f.Close()
		return nil, err
	}
	if db.read, err = connect(path, readers); err != nil {
		db.write.Close()
		f.Close()
		return nil, err
	}
	if err := db.prepare(ctx); err != nil {
		db.Close()
		return nil, err
	}
	return db, nil
}

func connect(path string, conns int, params ...string) (*sql.DB, error) {
	// With synchronous=NORMAL, a commit survives the end of this process but perhaps not a power
	// failure, which no sandbox survives either. In exchange, a commit needs no fsync.
	params = append(params, "_pragma=busy_timeout(10000)", "_pragma=journal_mode(WAL)", "_pragma=synchronous(NORMAL)")
	dsn := url.URL{Scheme: "file", Path: path, RawQuery: strings.Join(params, "&")}
	db, err := sql.Open("sqlite", dsn.String())
	if err != nil {
		return nil, errors.Wrapf(err, "open %s", path)
	}
	db.SetMaxOpenConns(conns)
	db.SetMaxIdleConns(conns)
	return db, nil
}

// prepare checks the integrity of the file and migrates it.
func (db *DB) prepare(ctx context.Context) error {
	var result string
	if err := db.write.QueryRowContext(ctx, "PRAGMA quick_check(1)").Scan(&result); err != nil {
		return db.explain(err, "check the database")
	}
	if result != "ok" {
		return damaged(errors.Errorf("quick_check: %s", result), db.path)
	}
	return db.migrate(ctx)
}

// Close closes the database. It is idempotent.
func (db *DB) Close() error {
	err := errors.Join(db.read.Close(), db.write.Close())
	if closed := db.file.Close(); !errors.Is(closed, os.ErrClosed) {
		err = errors.Join(err, closed)
	}
	return errors.Wrapf(err, "close %s", db.path)
}

// Backup writes a consistent copy of the database to a new file at path, while the database is in
// use. It returns Conflict if the file exists.
func (db *DB) Backup(ctx context.Context, path string) error {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if os.IsExist(err) {
		return errors.Remedy(errors.Newf(errors.Conflict, "%s exists already", path),
			"choose another file for the backup")
	}
	if err != nil {
		return fileError(err, path)
	}
	defer f.Close()
	own, err := connect(db.path, 1)
	if err != nil {
		return err
	}
	defer own.Close()
	// VACUUM INTO accepts an empty file.
	if _, err := own.ExecContext(ctx, "VACUUM INTO ?", path); err != nil {
		os.Remove(path)
		return db.explain(err, "back the database up")
	}
	if err := f.Sync(); err != nil {
		return fileError(err, path)
	}
	return nil
}

// statementKey is a query with its connection pool.
type statementKey struct {
	pool  *sql.DB
	query string
}

// statement returns a prepared query, which each connection of pool (db.read or db.write) parses
// only once. It is for a few frequent queries. It must not be called while a transaction holds the
// only connection of db.write.
func (db *DB) statement(ctx context.Context, pool *sql.DB, query string) (*sql.Stmt, error) {
	key := statementKey{pool, query}
	if s, ok := db.statements.Load(key); ok {
		return s.(*sql.Stmt), nil
	}
	s, err := pool.PrepareContext(ctx, query)
	if err != nil {
		return nil, err
	}
	if other, loaded := db.statements.LoadOrStore(key, s); loaded {
		s.Close()
		return other.(*sql.Stmt), nil
	}
	return s, nil
}

// change runs do in a transaction, which fails if do fails.
func (db *DB) change(ctx context.Context, what string, do func(tx *sql.Tx) error) error {
	tx, err := db.write.BeginTx(ctx, nil)
	if err != nil {
		return db.explain(err, what)
	}
	defer func() { _ = tx.Rollback() }() // does nothing after Commit
	if err := do(tx); err != nil {
		return db.explain(err, what)
	}
	return db.explain(tx.Commit(), what)
}

// executor is a database or a transaction.
type executor interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// mustChange runs a statement that changes a row. It returns missing if there is no such row.
func mustChange(ctx context.Context, on executor, missing error, query string, args ...any) error {
	result, err := on.ExecContext(ctx, query, args...)
	if err != nil {
		return err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return errors.Join(errors.Wrapf(err, "count the changed rows"), missing)
	}
	return nil
}

// taken reports whether a statement failed because another row has a value that must be unique.
func taken(err error) bool {
	var e *sqlite.Error
	return errors.As(err, &e) && e.Code() == sqlite3.SQLITE_CONSTRAINT_UNIQUE
}

// scanAll returns the rows of a query, each as scan reads it. Each different query becomes a cached
// statement, so there must be few.
func scanAll[T any](ctx context.Context, db *DB, what string, scan func(rows *sql.Rows, to *T) error, query string,
	args ...any) ([]T, error) {
	known, err := db.statement(ctx, db.read, query)
	if err != nil {
		return nil, db.explain(err, what)
	}
	rows, err := known.QueryContext(ctx, args...)
	if err != nil {
		return nil, db.explain(err, what)
	}
	defer rows.Close()
	var found []T
	for rows.Next() {
		var one T
		if err := scan(rows, &one); err != nil {
			return nil, db.explain(err, what)
		}
		found = append(found, one)
	}
	return found, db.explain(rows.Err(), what)
}

// decodeRows decodes rows of an account and a JSON record. own sets the account in the record.
func decodeRows[T any](ctx context.Context, db *DB, what string, own func(*T, string), query string,
	args ...any) ([]T, error) {
	return scanAll(ctx, db, "read the "+what, func(rows *sql.Rows, record *T) error {
		var account string
		var data sql.RawBytes
		if err := rows.Scan(&account, &data); err != nil {
			return err
		}
		if err := json.Unmarshal(data, record); err != nil {
			return damaged(err, db.path)
		}
		own(record, account)
		return nil
	}, query, args...)
}

// only returns the record that a query has found, or missing.
func only[T any](found []T, err, missing error) (one T, _ error) {
	if err != nil {
		return one, err
	}
	if len(found) == 0 {
		return one, missing
	}
	return found[0], nil
}

// explain adds kind and text to an error of SQLite. It returns nil for nil.
func (db *DB) explain(err error, what string) error {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return errors.Wrapf(err, "%s", what)
	}
	err = errors.Wrapf(err, "%s", what)
	switch e.Code() & 0xff { // the higher bits refine the low byte
	case sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB:
		return damaged(err, db.path)
	case sqlite3.SQLITE_FULL:
		return fullError(err, db.path)
	case sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM:
		return deniedError(err, db.path)
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED:
		return errors.Remedy(errors.Explainf(err, errors.Unavailable, "the database %s is in use", db.path),
			"try again; if it fails again, find the other program that has it open")
	case sqlite3.SQLITE_IOERR:
		return errors.Remedy(errors.Explainf(err, errors.Unavailable,
			"the disk of the database %s does not work", db.path),
			"read the kernel's log (dmesg): Linux makes a file system read-only that has errors; repair it, or move "+
				"the data directory")
	case sqlite3.SQLITE_INTERRUPT:
		return errors.Explainf(err, errors.Canceled, "the request was canceled")
	}
	return err
}

func damaged(err error, path string) error {
	return errors.Remedy(errors.Explainf(err, errors.Internal, "the database %s is damaged", path),
		"put the harvest.db of a backup in its place (harvest backup makes one), or move it and its -wal and -shm "+
			"files away to begin with an empty one")
}

func fullError(err error, path string) error {
	err = errors.Join(err, syscall.ENOSPC) // SQLite does not return it
	return errors.Remedy(errors.Explainf(err, errors.Exhausted, "there is no space left for the database %s", path),
		"free space on its disk, or move the data directory")
}

func deniedError(err error, path string) error {
	return errors.Remedy(errors.Explainf(err, errors.Denied, "the database %s cannot be written", path),
		"make it and its directory writable for this user, or choose another data directory")
}
