package migrate_test

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/anonymous"
	"github.com/RelevanceAI/harvest/internal/modal/apps"
	"github.com/RelevanceAI/harvest/internal/modal/environments"
	"github.com/RelevanceAI/harvest/internal/modal/migrate"
	"github.com/RelevanceAI/harvest/internal/modal/queues"
	"github.com/RelevanceAI/harvest/internal/modal/sealing"
	"github.com/RelevanceAI/harvest/internal/store/records"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

func write(t *testing.T, dir, name, text string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// oldFiles writes the files of the earlier version into dir, in its formats.
func oldFiles(t *testing.T, dir string) {
	t.Helper()
	write(t, dir, "apps.json", `{"acme ap-1":{"account":"acme","environment":"main","name":"web",`+
		`"created_at":"2026-01-02T03:04:05Z","versions":[{"number":3,"at":"2026-01-02T03:04:05Z"}]},`+
		`"acme im-1":{"account":"acme","environment":"","name":"im-1",`+
		`"created_at":"2026-01-02T03:04:05Z","deleted":true}}`)
	write(t, dir, "environments.json",
		`{"acme":{"staging":{"prefix":"dev","created_at":"2026-01-02T03:04:05Z"}}}`)
	b64 := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	write(t, dir, "acme~qu-jobs.queue", strings.Join([]string{
		`{"b":1767322800000,"e":"main","q":"jobs","n":2}`,
		`{"k":"key1 put","m":1767322800000}`,
		`{"n":2,"v":["` + b64("a") + `","` + b64("b") + `"]}`,
		`{"p":"` + b64("part") + `","n":4,"v":["` + b64("x") + `"],"k":"key1 again","m":1767322800000}`,
		`{"t":1}`,
		`{"p":"` + b64("gone") + `","n":5,"v":["` + b64("y") + `"]}`,
		`{"p":"` + b64("gone") + `","c":true}`,
		`{"v":["brok`,
	}, "\n"))
	var sealed bytes.Buffer
	if err := sealing.Seal(&sealed, []byte("key"), strings.NewReader(`{"A":"value"}`)); err != nil {
		t.Fatal(err)
	}
	path := write(t, dir, "acme~st-x1.secret", sealed.String())
	if at := time.Now().Add(-time.Hour); os.Chtimes(path, at, at) != nil {
		t.Fatal("the time of the secret's last use cannot be set")
	}
	write(t, dir, "sb-1.journal", "{\"main\":\"p1\"}\n{\"exec\":\"e1\",\"process\":\"p2\"}\n{\"exec\":\"e2")
	write(t, dir, "view-1.base", `{"f":{}}`)
	write(t, dir, "output-1", "another file")
}

// TestFiles checks that each object of the earlier version is found in the store, and that only files of other purposes
// are left. An interruption before a file is removed changes nothing.
func TestFiles(t *testing.T) {
	t.Parallel()
	dir, store := t.TempDir(), testdb.Open(t).Records()
	for range 2 {
		oldFiles(t, dir)
		if err := migrate.Files(t.Context(), dir, store); err != nil {
			t.Fatal(err)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 || left[0].Name() != "output-1" {
		t.Errorf("there are left %v, %v", left, err)
	}
	r, err := apps.Open(t.Context(), store, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	if a, err := r.Get("acme", "ap-1"); err != nil || a.Name != "web" || a.Account != "acme" || a.Last().Number != 3 {
		t.Errorf("the app is %+v, %v", a, err)
	}
	if _, err := r.Get("acme", "im-1"); !r.Deleted("acme", "im-1") || errors.KindOf(err) != errors.NotFound {
		t.Errorf("the deleted image is not, or an app: %v", err)
	}
	envs, err := environments.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	if prefix, err := envs.Prefix("acme", "staging"); err != nil || prefix != "dev" {
		t.Errorf("the environment has the prefix %q, %v", prefix, err)
	}
	s, err := anonymous.Open(t.Context(), store, []byte("key"))
	if err != nil {
		t.Fatal(err)
	}
	if pairs, ok := s.Get(records.ID{Account: "acme", ID: "st-x1"}, time.Now()); !ok || pairs["A"] != "value" {
		t.Errorf("the secret has %v, %v", pairs, ok)
	}
	journal, err := store.Get(t.Context(), records.Journal, records.ID{ID: "sb-1"})
	if err != nil || len(journal) != 2 || string(journal[0].Data) != `{"main":"p1"}` || journal[1].Number != 1 {
		t.Errorf("the journal is %v, %v", journal, err)
	}
	view, err := store.Get(t.Context(), records.View, records.ID{ID: "view-1"})
	if err != nil || len(view) != 1 || string(view[0].Data) != `{"f":{}}` {
		t.Errorf("the view is %v, %v", view, err)
	}
}

// TestQueue checks that a queue has the values that were put and not taken, with their numbers, and the keys of its
// puts.
func TestQueue(t *testing.T) {
	t.Parallel()
	dir, store, jobs := t.TempDir(), testdb.Open(t).Records(), records.ID{Account: "acme", ID: "qu-jobs"}
	oldFiles(t, dir)
	if err := migrate.Files(t.Context(), dir, store); err != nil {
		t.Fatal(err)
	}
	keys, err := store.Get(t.Context(), records.QueueKey, jobs)
	if err != nil || len(keys) != 2 || !strings.Contains(string(keys[1].Data), "key1 again") {
		t.Errorf("the keys are %v, %v", keys, err)
	}
	q, err := queues.Open(t.Context(), store)
	if err != nil {
		t.Fatal(err)
	}
	got, err := q.Get(jobs)
	if err != nil || got.Name != "jobs" || got.Environment != "main" || got.Created.UnixMilli() != 1767322800000 ||
		got.Partitions != 2 || got.Total != 2 {
		t.Errorf("the queue is %+v, %v", got, err)
	}
	for part, want := range map[string]queues.Value{"": {Number: 4, Data: []byte("b")},
		"part": {Number: 5, Data: []byte("x")}} {
		values, err := q.Next(t.Context(), jobs, []byte(part), 0, 0)
		if err != nil || len(values) != 1 || values[0].Number != want.Number ||
			!bytes.Equal(values[0].Data, want.Data) {
			t.Errorf("%q has %v, %v, want %v", part, values, err, want)
		}
	}
	if err := q.Put(jobs, nil, [][]byte{[]byte("c")}, ""); err != nil {
		t.Fatal(err)
	}
	if values, err := q.Next(t.Context(), jobs, nil, 4, 0); err != nil || len(values) != 1 || values[0].Number != 7 {
		t.Errorf("the next value is %v, %v", values, err)
	}
}

// TestFailures checks that a damaged file and a full disk are errors, and that the file stays.
func TestFailures(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"apps.json", "environments.json"} {
		dir := t.TempDir()
		path := write(t, dir, name, `{"acme`)
		err := migrate.Files(t.Context(), dir, testdb.Open(t).Records())
		if err == nil || errors.RemedyOf(err) == "" || !strings.Contains(err.Error(), path) {
			t.Errorf("a damaged %s: %v", name, err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Errorf("it is gone: %v", err)
		}
	}
	dir := t.TempDir()
	oldFiles(t, dir)
	full := &storetest.Unwritable{Store: testdb.Open(t).Records(),
		Err: errors.Newf(errors.Exhausted, "the disk is full")}
	if err := migrate.Files(t.Context(), dir, full); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("on a full disk: %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 7 {
		t.Errorf("there are left %v, %v", left, err)
	}
}
