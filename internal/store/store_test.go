package store

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

// helperEnv makes this test binary run a helper in a separate process.
const helperEnv = "HARVEST_STORE_TEST_HELPER"

func TestMain(m *testing.M) {
	switch os.Getenv(helperEnv) {
	case "":
		os.Exit(m.Run())
	case "write": // until killed
		writeForever(os.Args[1])
	case "open":
		_, err := Open(context.Background(), filepath.Join(os.Args[1], "db"))
		fmt.Printf("%s: %s | %s\n", errors.KindOf(err), errors.Message(err), errors.RemedyOf(err))
	case "lock":
		l, err := LockDir(os.Args[1])
		fmt.Printf("%s: %s | %s\n", errors.KindOf(err), errors.Message(err), errors.RemedyOf(err))
		if l != nil {
			_, _ = bufio.NewReader(os.Stdin).ReadString('\n') // hold it until stdin ends
		}
	}
}

func helper(t *testing.T, what, arg string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, arg)
	cmd.Env = append(os.Environ(), helperEnv+"="+what)
	cmd.Stderr = os.Stderr
	return cmd
}

func open(t *testing.T, path string) *DB {
	t.Helper()
	db, err := Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func TestConformance(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(t *testing.T) record.Store {
		return open(t, filepath.Join(t.TempDir(), "odd ?name#%41", "..", "odd ?name#%41.db")).Sandboxes()
	})
}

func TestRecordsSurviveReopening(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	first := open(t, path)
	want := storetest.Full("sbx_1")
	if err := first.Sandboxes().Put(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, path).Sandboxes().Get(t.Context(), "sbx_1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("after reopening (-want +got):\n%s", diff)
	}
}

func TestFilesAreNobodyElsesBusiness(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db := open(t, filepath.Join(dir, "db"))
	if err := db.Sandboxes().Put(t.Context(), storetest.Full("sbx_1")); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) < 2 {
		t.Fatalf("files: %v, %v; want the database and its log", entries, err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, want 0600", e.Name(), info.Mode())
		}
	}
}

// raw opens the file without our checks.
func raw(t *testing.T, path string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db
}

func TestMigrateFromEveryVersion(t *testing.T) {
	t.Parallel()
	for version := range len(migrations()) + 1 {
		t.Run(strconv.Itoa(version), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "db")
			old := raw(t, path)
			for _, statements := range migrations()[:version] {
				if _, err := old.Exec(statements); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := old.Exec(fmt.Sprintf("PRAGMA user_version = %d", version)); err != nil {
				t.Fatal(err)
			}
			rows := oldRows(t)
			for _, r := range rows {
				if r.since > version {
					continue
				}
				if _, err := old.Exec("INSERT INTO "+r.table+" ("+r.columns+") VALUES ("+r.values+")",
					r.args...); err != nil {
					t.Fatalf("%s: %v", r.table, err)
				}
			}
			old.Close()
			db := open(t, path)
			for _, r := range rows {
				found := -1
				err := db.read.QueryRow("SELECT count(*) FROM "+r.table+" WHERE ("+r.columns+") = ("+r.values+")",
					r.args...).Scan(&found)
				if want := map[bool]int{true: 1}[r.since <= version]; err != nil || found != want {
					t.Errorf("%s has %d of the %d rows, %v", r.table, found, want, err)
				}
			}
			migrated(t, db, version)
		})
	}
}

// TestMigrateRootsOfKeys checks that grants of older versions, whose subject was a sign-in, keep their root.
func TestMigrateRootsOfKeys(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	old := raw(t, path)
	for _, statements := range append(migrations()[:5:5], `INSERT INTO keys VALUES
		('oau_1', 'oauth', 'acme', 'c', 'member', 'read', 'h1', 1, 0, 0, 'sig_1', 'key_1', 0),
		('sig_1', 'sign-in', 'acme', '', 'admin', 'read', 'h2', 1, 0, 0, 'sig_ann', 'key_1', 0),
		('key_2', 'key', 'acme', 'k', 'admin', 'read', 'h3', 1, 0, 0, '', 'key_1', 0)`, "PRAGMA user_version = 5") {
		if _, err := old.Exec(statements); err != nil {
			t.Fatal(err)
		}
	}
	old.Close()
	db := open(t, path)
	for hash, want := range map[string][3]string{"h1": {"", "sig_1", "key_1"}, "h2": {"sig_ann", "key_1", "key_1"},
		"h3": {"", "key_1", ""}} {
		k, err := db.Keys().KeyByHash(t.Context(), hash)
		if got := [3]string{k.Subject, k.MadeBy, k.Root}; err != nil || got != want {
			t.Errorf("%s: %q, %v", hash, got, err)
		}
	}
}

// TestMigrateDamagedRecords checks that damaged records do not prevent the migration of any version, and are left out
// of all sums.
//
// mission: F4
func TestMigrateDamagedRecords(t *testing.T) {
	t.Parallel()
	for version := 1; version <= len(migrations()); version++ {
		t.Run(strconv.Itoa(version), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "db")
			old := raw(t, path)
			do := func(statement string, args ...any) {
				t.Helper()
				if _, err := old.Exec(statement, args...); err != nil {
					t.Fatal(err)
				}
			}
			for _, statements := range migrations()[:version] {
				do(statements)
			}
			do("INSERT INTO sessions (id, account, live, record, place) " +
				"VALUES ('ses_bad', 'acme', 0, '{\"turns\":', 'ses_bad')")
			for _, r := range oldRows(t) {
				if r.table == "sessions" || r.table == "sandboxes" {
					do("INSERT INTO "+r.table+" ("+r.columns+") VALUES ("+r.values+")", r.args...)
				}
			}
			do("INSERT INTO sandboxes (id, account, name, status, live, ended_at, data) VALUES ('sbx_bad', 'acme', " +
				"'b', 'failed', 0, 1, 'no JSON')")
			do(fmt.Sprintf("PRAGMA user_version = %d", version))
			old.Close()
			db := open(t, path)
			if got, err := db.Sessions().Totals(t.Context(), "acme"); err != nil || got.Sessions != 1 ||
				got.Turns != 4 {
				t.Errorf("the sessions' totals: %+v, %v", got, err)
			}
			if got, err := db.Sandboxes().Totals(t.Context(), "acme"); err != nil || got.Sandboxes != 1 {
				t.Errorf("the sandboxes' totals: %+v, %v", got, err)
			}
			if got, err := db.Sessions().Session(t.Context(), "ses_old"); err != nil || got.ID != "ses_old" {
				t.Errorf("the session: %+v, %v", got, err)
			}
			var text string
			if err := db.read.QueryRow("SELECT sql FROM sqlite_schema WHERE name = 'sessions_totals'").Scan(&text); err != nil || !strings.Contains(text, "json_valid") {
				t.Errorf("the index is %q, %v", text, err)
			}
		})
	}
}

// oldRow is a record as a version has written it.
type oldRow struct {
	since                  int // the version
	table, columns, values string
	args                   []any
}

// oldRows returns one record of each kind. Those of sandboxes and sessions are complete.
func oldRows(t *testing.T) []oldRow {
	t.Helper()
	text := func(v any) any {
		data, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	sb, ses := storetest.Full("sbx_old"), storetest.FullSession("ses_old")
	return []oldRow{
		{1, "sandboxes", "id, account, name, status, live, ended_at, data",
			"'sbx_old', 'acme', 'näme', 'failed', 0, ?, ?",
			[]any{sb.Ended.UnixMilli(), text(sandboxRecord{sb, sb.Handle, sb.Commands, sb.Denied, sb.Withheld,
				sb.Suspension})}},
		{1, "secrets", "account, name, keys, sealed, created_at, updated_at, used_at",
			`'acme', 's', '["A"]', x'0102', 1, 2, 3`, nil},
		{1, "events", "stream, id, type, at, data", `'sbx_old', 7, 'sandbox.ready', 1, '{}'`, nil},
		{1, "streams", "stream, last", "'sbx_old', 7", nil},
		{1, "keys", "id, kind, account, name, role, scopes, hash, created, expires, last_used, subject, made_by, until",
			"'key_old', 'key', 'acme', 'k', 'admin', 'read write', 'hash', 1, 0, 0, '', '', 0", nil},
		{1, "replays", "account, key, request, created, status, type, body",
			"'acme', 'r', 'hash', 1, 201, 'application/json', x'7b7d'", nil},
		{1, "schedules", "account, name, data", `'acme', 'nightly', '{"name":"nightly"}'`, nil},
		{1, "runs", "id, account, job, open, data",
			`'run_old', 'acme', 'nightly', 0, '{"id":"run_old","job":"nightly"}'`, nil},
		{1, "sessions", "id, account, live, record, place", "'ses_old', 'acme', 0, ?, 'ses_old'",
			[]any{text(storedSession{ses, ses.Process, ses.Deliveries, ses.Stopping, ses.Sandbox})}},
		{1, "messages", "id, session, record", `'msg_old', 'ses_old', '{"id":"msg_old","prompt":"p"}'`, nil},
		{1, "repos", "id, account, name, record", `'repo_old', 'acme', 'r', '{"id":"repo_old","name":"r"}'`, nil},
		{1, "repo_builds", "id, repo, record", `'bld_old', 'repo_old', '{"id":"bld_old"}'`, nil},
		{1, "secret_loans", "borrower, account, sealed", "'sbx_old', 'acme', x'03'", nil},
		{1, "unsent", "sandbox, account, data", `'sbx_old', 'acme', '{"sandbox":"sbx_old"}'`, nil},
		{1, "dicts", "number, account, id, environment, name, created_at, heard_at, bytes",
			"1, 'acme', 'di-old', 'main', 'd', 1, 1, 2", nil},
		{1, "dict_entries", "dict, key, value, used_at", "1, x'01', x'02', 1", nil},
		{1, "modal_records", "row, kind, account, id, number, data", "1, 'app', 'acme', 'ap-old', 0, x'7b7d'", nil},
		{1, "usage", "id, data", `'sbx_old', '{"interval_seconds":5,"samples":[]}'`, nil},
		{4, "inbox", "account, number, session, key, waiting, answerable, due, data",
			`'acme', 1, 'ses_old', 'k', 1, 1, 0, '{"id":"inb_old","number":1}'`, nil},
		{4, "inbox_numbers", "account, last", "'acme', 1", nil},
	}
}

// migrated checks how the current program reads the records of oldRows that a version had, and that it can write.
func migrated(t *testing.T, db *DB, version int) {
	t.Helper()
	s, totals := db.Sandboxes(), record.Totals{}
	if version >= 1 {
		want := storetest.Full("sbx_old")
		got, err := s.Get(t.Context(), "sbx_old")
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("the sandbox: %v\n%s", err, diff)
		}
		totals.Add(want, want.Ended)
	}
	if err := s.Put(t.Context(), storetest.Full("sbx_new")); err != nil {
		t.Errorf("put: %v", err)
	}
	totals.Add(storetest.Full("sbx_new"), time.Time{})
	if got, err := s.Totals(t.Context(), "acme"); err != nil || got.Sandboxes != totals.Sandboxes ||
		math.Abs(got.Seconds-totals.Seconds) > 0.01 || math.Abs(got.Cost-totals.Cost) > 1e-9 {
		t.Errorf("the totals are %+v, %v, want %+v", got, err, totals)
	}
	if version >= 1 {
		if k, err := db.Keys().KeyByHash(t.Context(), "hash"); err != nil || k.ID != "key_old" || k.Subject != "" ||
			len(k.Scopes) != 2 {
			t.Errorf("the key: %+v, %v", k, err)
		}
		got, err := db.Sessions().Session(t.Context(), "ses_old")
		if diff := cmp.Diff(storetest.FullSession("ses_old"), got); err != nil || diff != "" {
			t.Errorf("the session: %v\n%s", err, diff)
		}
		if got, err := db.Sessions().Totals(t.Context(), "acme"); err != nil || got.Turns != 4 {
			t.Errorf("the sessions' totals: %+v, %v", got, err)
		}
	}
	const withoutRow = 1 // totals, which is derived from the other tables
	if kinds := len(oldRows(t)); kinds != tables(t, db)-withoutRow {
		t.Errorf("there are %d tables: add a row of each new one to oldRows", tables(t, db))
	}
}

// tables counts the tables.
func tables(t *testing.T, db *DB) (n int) {
	t.Helper()
	if err := db.read.QueryRow("SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'").Scan(&n); err != nil {
		t.Fatal(err)
	}
	return n
}

// TestTotalsReadNoRecords checks that the usage of an account is read without its records.
func TestTotalsReadNoRecords(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	var id, parent, unused int
	var how string
	if err := db.read.QueryRow("EXPLAIN QUERY PLAN "+totals, "acme").Scan(&id, &parent, &unused, &how); err != nil ||
		!strings.Contains(how, "USING COVERING INDEX sessions_totals (account=?)") {
		t.Errorf("%s, %v", how, err)
	}
}

func TestMigrationsAreNumberedWithoutGaps(t *testing.T) {
	t.Parallel()
	entries, err := migrationFiles.ReadDir("migrations")
	if err != nil {
		t.Fatal(err)
	}
	for i, e := range entries {
		if want := fmt.Sprintf("%04d_", i+1); !strings.HasPrefix(e.Name(), want) {
			t.Errorf("migration %s: want the number %s", e.Name(), want)
		}
	}
}

func TestFailedMigrationChangesNothing(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	next := len(migrations()) + 1
	if err := db.migrateTo(t.Context(), next, "CREATE TABLE half (a); CREATE TABLE half (a);"); err == nil {
		t.Fatal("a migration with a mistake succeeded")
	}
	var version, tables int
	if err := db.read.QueryRow("PRAGMA user_version").Scan(&version); err != nil || version != next-1 {
		t.Errorf("version is %d, %v, want %d", version, err, next-1)
	}
	if err := db.read.QueryRow("SELECT count(*) FROM sqlite_schema WHERE name = 'half'").Scan(&tables); err != nil ||
		tables != 0 {
		t.Errorf("%d tables of the failed migration, %v", tables, err)
	}
}

// refused opens the file and checks that the refusal names the problem and the remedy.
func refused(t *testing.T, path string, kind errors.Kind, words ...string) {
	t.Helper()
	db, err := Open(t.Context(), path)
	if err == nil {
		db.Close()
		t.Fatal("it was opened")
	}
	check(t, fmt.Sprintf("%s: %s | %s", errors.KindOf(err), errors.Message(err), errors.RemedyOf(err)),
		append(words, string(kind)+":")...)
	if errors.RemedyOf(err) == "" {
		t.Errorf("%v has no remedy", err)
	}
}

func check(t *testing.T, text string, words ...string) {
	t.Helper()
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
}

func TestNewerDatabaseIsRefused(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	if _, err := raw(t, path).Exec(fmt.Sprintf("PRAGMA user_version = %d", len(migrations())+1)); err != nil {
		t.Fatal(err)
	}
	refused(t, path, errors.Unsupported, "newer Harvest", path)
}

func TestDamagedFileIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	good := filepath.Join(dir, "good")
	db := open(t, good)
	for i := range 200 {
		if err := db.Sandboxes().Put(t.Context(), storetest.Full(fmt.Sprintf("sbx_%03d", i))); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	middle := bytes.Clone(content)
	for i := 5 * 4096; i < 9*4096; i++ {
		middle[i] = 0xa5
	}
	refused(t, write("middle", middle), errors.Internal, "damaged", "backup")
	refused(t, write("head", append(bytes.Repeat([]byte("x"), 100), content[100:]...)), errors.Internal,
		"damaged", "backup")
	refused(t, write("short", content[:len(content)/2]), errors.Internal, "damaged", "backup")
	refused(t, write("foreign", []byte("this is a text file that is longer than a page header\n")),
		errors.Internal, "damaged")
}

func TestUndecodableRecordIsDamage(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	if _, err := db.write.Exec("INSERT INTO sandboxes VALUES ('sbx_1', 'acme', '', 'running', 1, 0, 'no JSON')"); err != nil {
		t.Fatal(err)
	}
	_, err := db.Sandboxes().Get(t.Context(), "sbx_1")
	check(t, errors.Message(err), "damaged")
}

func TestPathsThatCannotBe(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	refused(t, dir, errors.Invalid, "cannot be a file")
	refused(t, filepath.Join(dir, "none", "db"), errors.Invalid, "cannot be a file")
}

func TestBackup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	db := open(t, filepath.Join(dir, "db"))
	want := storetest.Full("sbx_1")
	if err := db.Sandboxes().Put(t.Context(), want); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "copy")
	if err := db.Backup(t.Context(), path); err != nil {
		t.Fatal(err)
	}
	later := storetest.Full("sbx_2")
	if err := db.Sandboxes().Put(t.Context(), later); err != nil {
		t.Fatal(err)
	}
	all, err := open(t, path).Sandboxes().List(t.Context(), "", record.Filter{All: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]record.Sandbox{want}, all); diff != "" {
		t.Errorf("the backup has (-want +got):\n%s", diff)
	}
	if err := db.Backup(t.Context(), path); !errors.Is(err, errors.Conflict) {
		t.Errorf("a backup over an existing file: %v, want Conflict", err)
	}
	if err := db.Backup(t.Context(), filepath.Join(dir, "none", "copy")); !errors.Is(err, errors.Invalid) {
		t.Errorf("a backup into a missing directory: %v, want Invalid", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := db.Backup(ctx, filepath.Join(dir, "canceled")); !errors.Is(err, errors.Canceled) {
		t.Errorf("a canceled backup: %v, want Canceled", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "canceled")); !os.IsNotExist(err) {
		t.Errorf("a canceled backup left its file: %v", err)
	}
}

func TestErrorsAfterClose(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := db.Sandboxes()
	_, get := s.Get(t.Context(), "sbx_1")
	_, list := s.List(t.Context(), "", record.Filter{})
	_, find := s.Find(t.Context(), "acme", "sbx", 2)
	_, remove := s.Delete(t.Context(), storetest.Full("x").Created)
	for what, err := range map[string]error{"Put": s.Put(t.Context(), storetest.Full("x")), "Get": get, "List": list,
		"Find": find, "Delete": remove} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}

func TestBusyDatabaseIsUnavailable(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "db")
	db := open(t, path)
	// Another program holds the write lock. Our program would wait for 10 s, but the test does not.
	if _, err := db.write.Exec("PRAGMA busy_timeout = 0"); err != nil {
		t.Fatal(err)
	}
	other, err := raw(t, path).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	err = db.Sandboxes().Put(t.Context(), storetest.Full("sbx_1"))
	if !errors.Is(err, errors.Unavailable) {
		t.Errorf("put while another program writes: %v, want Unavailable", err)
	}
}

// writeForever puts records and prints how many are committed.
func writeForever(dir string) {
	db, err := Open(context.Background(), filepath.Join(dir, "db"))
	if err != nil {
		panic(err)
	}
	for i := 0; ; i++ {
		if err := db.Sandboxes().Put(context.Background(), storetest.Full(fmt.Sprintf("sbx_%06d", i))); err != nil {
			panic(err)
		}
		fmt.Println(i + 1)
	}
}

func TestKilledWhileWriting(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	committed := 0
	for range 5 {
		cmd := helper(t, "write", dir)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		n := 0
		for lines.Scan() {
			if n, err = strconv.Atoi(lines.Text()); err != nil {
				t.Fatal(err)
			}
			if n == 40+7*committed%50 {
				if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the writer was not killed")
		}
		committed = max(committed, n)
		db, err := Open(t.Context(), filepath.Join(dir, "db"))
		if err != nil {
			t.Fatalf("open after kill -9: %v", err)
		}
		all, err := db.Sandboxes().List(t.Context(), "", record.Filter{All: true})
		if err != nil || len(all) < committed {
			t.Errorf("%d records, %v; %d were committed before the kill", len(all), err, committed)
		}
		db.Close()
	}
}

func TestFullDisk(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "size=400k")
	db := open(t, filepath.Join(dir, "db"))
	s := db.Sandboxes()
	var err error
	n := 0
	for ; err == nil && n < 10_000; n++ {
		err = s.Put(t.Context(), storetest.Full(fmt.Sprintf("sbx_%06d", n)))
	}
	if !errors.Is(err, errors.Exhausted) {
		t.Fatalf("writing %d records to a full disk: %v, want Exhausted", n, err)
	}
	check(t, errors.Message(err)+errors.RemedyOf(err), "no space left", "free space")
	all, err := s.List(t.Context(), "", record.Filter{All: true})
	if err != nil || len(all) != n-1 {
		t.Errorf("%d records, %v; %d were committed", len(all), err, n-1)
	}
	if err := db.Backup(t.Context(), filepath.Join(dir, "copy")); !errors.Is(err, errors.Exhausted) {
		t.Errorf("a backup to a full disk: %v, want Exhausted", err)
	}
	if err := unix.Mount("", dir, "", unix.MS_REMOUNT, "size=4m"); err != nil {
		t.Fatal(err)
	}
	if err := s.Put(t.Context(), storetest.Full("sbx_after")); err != nil {
		t.Errorf("put after space was made: %v", err)
	}
}

// asNobody runs the helper as another user.
func asNobody(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("this needs root, to become somebody else")
	}
	// The test binary is in a directory that is only ours.
	dir, err := os.MkdirTemp("", "store-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	// A separate process makes the copy: if this process had the file open for writing, its other children could hold
	// it open too, and then it could not be started.
	target := filepath.Join(dir, "helper")
	if out, err := exec.CommandContext(t.Context(), "cp", cmd.Path, target).CombinedOutput(); err != nil {
		t.Fatalf("copy the test binary: %v: %s", err, out)
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.Path = target
	cmd.Dir, cmd.Stderr = "/", nil // it could not write its coverage, and would report that
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
}

// shared returns a directory that every user can reach.
func shared(t *testing.T, mode os.FileMode) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "store-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, mode); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestReadOnlyDirectory(t *testing.T) {
	t.Parallel()
	dir := shared(t, 0o755)
	if db, err := Open(t.Context(), filepath.Join(dir, "db")); err != nil {
		t.Fatal(err)
	} else {
		db.Close()
	}
	for _, mode := range []os.FileMode{0o600, 0o644} { // not readable; readable
		if err := os.Chmod(filepath.Join(dir, "db"), mode); err != nil {
			t.Fatal(err)
		}
		cmd := helper(t, "open", dir)
		asNobody(t, cmd)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		check(t, string(out), "denied: ", "cannot be written", "make it and its directory writable")
	}
	empty := shared(t, 0o755)
	cmd := helper(t, "open", empty)
	asNobody(t, cmd)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	check(t, string(out), "denied: ", "cannot be written")
}

func TestFileErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		kind errors.Kind
		word string
	}{
		{syscall.EACCES, errors.Denied, "cannot be written"},
		{syscall.EROFS, errors.Denied, "cannot be written"},
		{syscall.ENOSPC, errors.Exhausted, "no space left"},
		{syscall.EDQUOT, errors.Exhausted, "no space left"},
		{syscall.ENOENT, errors.Invalid, "cannot be a file"},
	} {
		err := fileError(&os.PathError{Op: "open", Path: "/data/db", Err: c.err}, "/data/db")
		if !errors.Is(err, c.kind) || errors.RemedyOf(err) == "" {
			t.Errorf("%v: %v with the remedy %q, want %s with one", c.err, err, errors.RemedyOf(err), c.kind)
		}
		check(t, errors.Message(err), c.word, "/data/db")
	}
	if err := fileError(syscall.EIO, "/data/db"); !errors.Is(err, errors.Internal) {
		t.Errorf("an I/O error: %v, want Internal", err)
	}
}

func TestSQLiteErrorsSayWhatToDo(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	_, readOnly := raw(t, "file:"+db.path+"?mode=ro").Exec("CREATE TABLE x (a)")
	_, cannotOpen := raw(t, filepath.Join(db.path, "below")).Exec("CREATE TABLE x (a)")
	_, syntax := db.write.Exec("no SQL")
	for _, c := range []struct {
		err  error
		kind errors.Kind
	}{{readOnly, errors.Denied}, {cannotOpen, errors.Denied}, {syntax, errors.Internal}} {
		if err := db.explain(c.err, "try it"); !errors.Is(err, c.kind) {
			t.Errorf("%v became %v, want %s", c.err, err, c.kind)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s := db.Sandboxes()
	if err := s.Put(ctx, storetest.Full("sbx_1")); !errors.Is(err, errors.Canceled) {
		t.Errorf("a canceled put: %v, want Canceled", err)
	}
	if _, err := Open(ctx, filepath.Join(t.TempDir(), "db")); !errors.Is(err, errors.Canceled) {
		t.Errorf("a canceled open: %v, want Canceled", err)
	}
	bad := storetest.Full("sbx_1")
	bad.Cost = math.NaN()
	if err := s.Put(t.Context(), bad); !errors.Is(err, errors.Internal) {
		t.Errorf("a record that is no JSON: %v, want Internal", err)
	}
}

// A statement that is canceled while it runs is a cancellation too.
func TestInterruptedStatement(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	ctx, cancel := context.WithCancel(t.Context())
	started := make(chan error, 1)
	go func() {
		_, err := db.read.ExecContext(ctx,
			"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n")
		started <- err
	}()
	for db.read.Stats().InUse == 0 {
		runtime.Gosched()
	}
	cancel()
	if err := db.explain(<-started, "count for ever"); !errors.Is(err, errors.Canceled) {
		t.Errorf("%v, want Canceled", err)
	}
}
