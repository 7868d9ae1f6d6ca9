package server_test

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	journal "github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store"
)

// sent sends the head of a request and the given part of its body.
func (w *world) sent(text string) (net.Conn, *bufio.Reader) {
	w.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(w.url, "http://"))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	if _, err := io.WriteString(conn, text); err != nil {
		w.t.Fatal(err)
	}
	return conn, bufio.NewReader(conn)
}

// TestBodyThatStalls checks that the server does not wait for a body that stalls, and gives the sender the reason, on
// every route.
func TestBodyThatStalls(t *testing.T) {
	t.Parallel()
	w := start(t, func(o *server.Options) { o.Patience = 200 * time.Millisecond })
	box := w.create()
	for route, half := range map[string]string{
		"POST " + api.Sandboxes:                                      `{"name":`,
		"POST " + api.Path(api.SandboxExec, box.ID):                  `{"args":["true"`,
		"PUT " + api.Path(api.SandboxFiles, box.ID) + "?path=/tmp/x": "half a file",
	} {
		conn, in := w.sent(route + " HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n" + half)
		resp, err := http.ReadResponse(in, nil)
		if err != nil {
			t.Fatalf("%s: %v", route, err)
		}
		var p api.Problem
		if err := json.NewDecoder(resp.Body).Decode(&p); err != nil || resp.StatusCode != http.StatusRequestTimeout ||
			!strings.Contains(p.Detail, "no data") || p.Remedy == "" {
			t.Errorf("%s: %s, %+v, %v", route, resp.Status, p, err)
		}
		conn.Close()
	}
	if resp, _ := w.do("GET", api.Path(api.SandboxFiles, box.ID)+"?path=/tmp/x",
		""); resp.StatusCode != http.StatusNotFound {
		t.Errorf("half a file is there: %s", resp.Status)
	}
}

// withJournal adds events to a server, with a separate database.
func withJournal(t *testing.T) (*journal.Journal, func(*server.Options)) {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "harvest.db"))
	if err != nil {
		t.Fatal(err)
	}
	j := journal.Open(t.Context(), journal.Options{Store: db.Events()})
	t.Cleanup(func() {
		if err := errors.Join(j.Close(context.WithoutCancel(t.Context())), db.Close()); err != nil {
			t.Error(err)
		}
	})
	return j, func(o *server.Options) { o.Events = j }
}

const (
	floods    = 400       // events, of
	floodSize = 100 << 10 // bytes: far more than buffers of sockets hold, and than the journal keeps in memory
)

func flood(t *testing.T, j *journal.Journal) {
	t.Helper()
	text := strings.Repeat("x", floodSize)
	for range floods {
		if err := j.Publish(t.Context(), journal.Draft{Stream: journal.AccountStream(account.Personal),
			Type: "test.flood", Data: map[string]string{"text": text}}); err != nil {
			t.Fatal(err)
		}
	}
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestEventsNobodyReads checks that clients of the event stream that do not read block nothing and take no memory. A
// client that reads again gets the rest of the interrupted event, without gaps, and then a message that it was too
// slow. It is not parallel, as it looks at the memory of the whole process.
//
// mission: F1, E10
func TestEventsNobodyReads(t *testing.T) {
	testenv.Long(t)
	j, with := withJournal(t)
	w := start(t, with)
	request := "GET " + api.Events + " HTTP/1.1\r\nHost: localhost\r\n\r\n"
	var slow []*bufio.Reader
	for range 10 {
		_, in := w.sent(request)
		resp, err := http.ReadResponse(in, nil)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatal(resp, err)
		}
		body := bufio.NewReader(resp.Body)
		if line, err := body.ReadString('\n'); err != nil || line != "id: 0\n" { // and nothing more
			t.Fatal(line, err)
		}
		slow = append(slow, body)
	}
	before := heap()
	flood(t, j)
	if used := heap() - before; used > 64<<20 {
		t.Errorf("ten readers that do not read take %d MiB", used>>20)
	}
	_, in := w.sent(request) // a new client gets everything
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	if last, how := readIDs(resp.Body, floods); last != floods || how != "" {
		t.Errorf("another reader got %d of %d events, and then %q", last, floods, how)
	}
	if last, how := readIDs(slow[0], floods); last >= floods || how != journal.Lagged {
		t.Errorf("who was too slow got %d of %d events, and then %q", last, floods, how)
	}
}

// TestEventsReaderIsGivenUp checks that a client of the event stream that reads nothing at all is disconnected.
func TestEventsReaderIsGivenUp(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	j, with := withJournal(t)
	w := start(t, with, func(o *server.Options) { o.Patience = 100 * time.Millisecond })
	_, in := w.sent("GET " + api.Events + " HTTP/1.1\r\nHost: localhost\r\n\r\n")
	resp, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	flood(t, j)
	for w.server.Idle() == 0 { // its request is the only one
		time.Sleep(10 * time.Millisecond)
	}
	if last, how := readIDs(resp.Body, floods); last >= floods || how != "" {
		t.Errorf("it got %d of %d events, and then %q", last, floods, how)
	}
}

// readIDs reads events until id until. It returns the last id, and a text if an id is missing or if an event without an
// id arrives.
func readIDs(from io.Reader, until int64) (last int64, how string) {
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 2*floodSize)
	for last < until && lines.Scan() {
		var id int64
		if n, _ := fmt.Sscanf(lines.Text(), "id: %d", &id); n == 1 && id > 0 {
			if id != last+1 {
				return last, fmt.Sprintf("%d follows %d", id, last)
			}
			last = id
		}
		if name, ok := strings.CutPrefix(lines.Text(), "event: stream."); ok {
			return last, "stream." + name
		}
	}
	return last, ""
}

// onDatabase is a server, and its fleet, with records in the database at path.
func onDatabase(t *testing.T, path string) (*world, *fleet.Fleet) {
	t.Helper()
	db, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	eng, err := fake.Open(t.TempDir(), fake.Options{})
	if err != nil {
		t.Fatal(err)
	}
	fleet, err := fleet.Open(t.Context(), fleet.Options{Engine: eng, Store: db.Sandboxes()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(fleet.Close(context.WithoutCancel(t.Context())), eng.Close()); err != nil {
			t.Error(err)
		}
	})
	return start(t, func(o *server.Options) {
		o.Fleet, o.Images, o.Volumes, o.Replays = fleet, eng.Images(), eng.Volumes(), db.Replays()
	}), fleet
}

// destroyAll destroys every sandbox of a fleet.
func destroyAll(t *testing.T, fleet *fleet.Fleet) {
	t.Helper()
	all, err := fleet.List(t.Context(), "", record.Filter{})
	for _, sb := range all {
		err = errors.Join(err, fleet.Destroy(t.Context(), sb.Account, sb.ID))
	}
	if err != nil {
		t.Error(err)
	}
}

// refused checks that an answer is a problem with this code, and with these words in its detail and its remedy.
func refused(t *testing.T, what string, code int, resp *http.Response, text, detail, remedy string) {
	t.Helper()
	var p api.Problem
	if err := json.Unmarshal([]byte(text), &p); err != nil || resp.StatusCode != code ||
		!strings.Contains(p.Detail, detail) || !strings.Contains(p.Remedy, remedy) {
		t.Errorf("%s: %s %s, want %d, %q and %q", what, resp.Status, text, code, detail, remedy)
	}
}

// TestFullDiskUnderTheServer checks that on a full disk, requests that must be recorded fail with 507 and a remedy.
// Running sandboxes continue, and with space again everything works.
// mission: A8
func TestFullDiskUnderTheServer(t *testing.T) {
	t.Parallel()
	dir := testenv.SmallDisk(t, "size=2m")
	w, fleet := onDatabase(t, filepath.Join(dir, "harvest.db"))
	box := w.create()
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 4<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	body := `{"tags":{"a":"` + strings.Repeat("x", 250) + `"}}`
	resp, text := w.do("POST", api.Sandboxes, body)
	for n := 0; resp.StatusCode == http.StatusCreated && n < 200; n++ { // the log may have room
		resp, text = w.do("POST", api.Sandboxes, body)
	}
	refused(t, "on a full disk", http.StatusInsufficientStorage, resp, text, "no space left", "free space")
	if resp, text := w.do("POST", api.Sandboxes, body, api.HeaderIdempotency,
		"one"); resp.StatusCode != http.StatusInsufficientStorage {
		t.Errorf("with an Idempotency-Key: %s %s", resp.Status, text)
	}
	if resp, text := w.do("GET", api.Path(api.Sandboxed, box.ID), ""); resp.StatusCode != http.StatusOK ||
		!strings.Contains(text, `"running"`) {
		t.Errorf("what runs: %s %s", resp.Status, text)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	if resp, text := w.do("POST", api.Sandboxes, body, api.HeaderIdempotency,
		"one"); resp.StatusCode != http.StatusCreated {
		t.Errorf("with space again: %s %s", resp.Status, text)
	}
	if resp, text := w.do("POST", api.Path(api.SandboxExec, box.ID),
		`{"args":["echo","on"]}`); resp.StatusCode != http.StatusOK || !strings.Contains(text, "on") {
		t.Errorf("a command with space again: %s %s", resp.Status, text)
	}
	destroyAll(t, fleet)
}

// TestReadOnlyDiskUnderTheServer checks that requests that must be recorded fail with 503 and a remedy after disk
// errors have made the file system read-only under a running server. Reads still succeed, and commands still run.
// mission: A8
func TestReadOnlyDiskUnderTheServer(t *testing.T) {
	t.Parallel()
	dir, disk := t.TempDir(), filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(disk, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(disk, 32<<20); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"mkfs.ext4", "-q", disk}, {"mount", "-o", "loop", disk, dir}} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Skipf("run it as root on a machine with loop devices (apt-get install e2fsprogs): %s: %v: %s",
				args[0], err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	w, fleet := onDatabase(t, filepath.Join(dir, "harvest.db"))
	box := w.create()
	// As after an error of the disk (ext4(5), "abort").
	if out, err := exec.CommandContext(t.Context(), "mount", "-o", "remount,abort", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	resp, text := w.do("POST", api.Sandboxes, "{}")
	refused(t, "a new sandbox", http.StatusServiceUnavailable, resp, text, "does not work", "dmesg")
	if resp, text := w.do("GET", api.Path(api.Sandboxed, box.ID), ""); resp.StatusCode != http.StatusOK ||
		!strings.Contains(text, `"running"`) {
		t.Errorf("what runs: %s %s", resp.Status, text)
	}
	if resp, text := w.do("POST", api.Path(api.SandboxExec, box.ID),
		`{"args":["echo","on"]}`); resp.StatusCode != http.StatusOK || !strings.Contains(text, "on") {
		t.Errorf("a command: %s %s", resp.Status, text)
	}
	if err := fleet.Destroy(t.Context(), account.Personal, box.ID); err == nil {
		t.Error("the end of the sandbox was recorded on a disk that cannot be written")
	}
}

// TestLockedDatabaseUnderTheServer checks that requests that must be recorded wait while another program locks the
// database, and fail after ten seconds with 503 and a remedy. Once the lock is free, everything works.
// mission: A8
func TestLockedDatabaseUnderTheServer(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "harvest.db")
	w, fleet := onDatabase(t, path)
	db, err := sql.Open("sqlite", path+"?_pragma=busy_timeout(60000)") // the server may be writing
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	other, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if _, err := other.ExecContext(t.Context(), "BEGIN IMMEDIATE"); err != nil {
		t.Fatal(err)
	}
	resp, text := w.do("POST", api.Sandboxes, "{}")
	refused(t, "while another program writes", http.StatusServiceUnavailable, resp, text, "is in use",
		"the other program")
	answer := make(chan string, 1)
	go func() {
		resp, text := w.do("POST", api.Sandboxes, "{}")
		answer <- resp.Status + " " + text
	}()
	for w.server.Idle() != 0 && len(answer) == 0 { // until it is there
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := other.ExecContext(t.Context(), "ROLLBACK"); err != nil {
		t.Fatal(err)
	}
	if got := <-answer; !strings.HasPrefix(got, "201") {
		t.Errorf("a request that waited: %s", got)
	}
	destroyAll(t, fleet)
}
