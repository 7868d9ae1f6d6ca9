package server_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	journal "github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet/schedule"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// withBlocks gives the server secrets, schedules and events.
func withBlocks(t *testing.T) (change func(*server.Options), events *journal.Journal) {
	t.Helper()
	db := testdb.Open(t)
	vault, err := secret.Open(t.Context(), secret.Options{
		Store: db.Secrets(), KeyFile: filepath.Join(t.TempDir(), "secret.key"),
		Environ: []string{"GITHUB_TOKEN=of-the-server"}, EnvironAccount: account.Personal,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.WithoutCancel(t.Context())
	events = journal.Open(ctx, journal.Options{Store: db.Events()})
	schedules, err := schedule.Open(ctx, schedule.Options{Store: db.Schedules(), ByHand: true,
		Kinds: map[string]schedule.Func{
			"work": func(_ context.Context, job schedule.Job) (any, error) {
				if job.Args == nil {
					return nil, errors.Newf(errors.Invalid, "no arguments")
				}
				return job.Args, nil
			},
			api.JobRun: func(context.Context, schedule.Job) (any, error) { return nil, nil },
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(schedules.Close(ctx), events.Close(ctx)); err != nil {
			t.Error(err)
		}
	})
	return func(o *server.Options) { o.Secrets, o.Schedules, o.Events = vault, schedules, events }, events
}

// mission: F4, F1
func TestSecretRoutes(t *testing.T) {
	t.Parallel()
	blocks, _ := withBlocks(t)
	w := start(t, blocks)
	resp, body := w.do("POST", api.Secrets, `{"name":"s","pairs":{"B":"route-secret-value","A":""}}`)
	made := parse[api.Secret](t, body)
	if resp.StatusCode != 201 || made.Name != "s" || fmt.Sprint(made.Keys) != "[A B]" || made.Origin != "stored" ||
		made.Created.IsZero() {
		t.Errorf("%s %s", resp.Status, body)
	}
	w.want(409, "POST", api.Secrets, `{"name":"s","pairs":{"B":"x"}}`)
	w.want(201, "POST", api.Secrets, `{"name":"s","pairs":{"C":"x"},"mode":"merge"}`)
	w.want(400, "POST", api.Secrets, `{"name":"s","pairs":{"C":"x"},"mode":"other"}`)
	w.want(400, "POST", api.Secrets, `{"name":"../s","pairs":{"C":"x"}}`)
	w.want(400, "POST", api.Secrets, `{"name":"s","values":{"C":"x"}}`)
	if _, body = w.do("GET", "/v1/secrets/s", ""); fmt.Sprint(parse[api.Secret](t, body).Keys) != "[A B C]" ||
		strings.Contains(body, "route-secret") {
		t.Errorf("%s", body)
	}
	_, body = w.do("GET", api.Secrets+"?limit=1", "")
	page := parse[api.List[api.Secret]](t, body)
	if len(page.Data) != 1 || page.Data[0].Name != "github" || page.Data[0].Origin != "environment" ||
		page.NextCursor == "" {
		t.Errorf("%s", body)
	}
	if _, body = w.do("GET", api.Secrets+"?limit=1&cursor="+page.NextCursor, ""); parse[api.List[api.Secret]](t,
		body).Data[0].Name != "s" {
		t.Errorf("%s", body)
	}
	other := w.as(account.Request{Account: "acme"})
	other.want(404, "GET", "/v1/secrets/s", "")
	other.want(404, "DELETE", "/v1/secrets/github", "")
	w.as(account.Request{Scopes: []account.Scope{account.Read}}).want(403, "POST", api.Secrets,
		`{"name":"t","pairs":{"A":"x"}}`)
	if _, body = w.do("POST", api.Rekey, ""); body != `{"secrets":1}`+"\n" && body != `{"secrets":1}` {
		t.Errorf("rekey: %q", body)
	}
	other.want(403, "POST", api.Rekey, "")
	w.want(204, "DELETE", "/v1/secrets/s", "")
	w.want(404, "DELETE", "/v1/secrets/s", "")
	w.want(409, "DELETE", "/v1/secrets/github", "")
	if audit := w.audit.String(); strings.Contains(audit, "route-secret") {
		t.Errorf("the audit log has a value: %s", audit)
	}
}

// mission: F8, F1
func TestScheduleRoutes(t *testing.T) {
	t.Parallel()
	blocks, _ := withBlocks(t)
	w := start(t, blocks)
	resp, body := w.do("POST", api.Schedules,
		`{"name":"s","kind":"work","cron":"@daily","zone":"Europe/Berlin","args":{"a":1}}`)
	made := parse[api.Schedule](t, body)
	if resp.StatusCode != 201 || made.Retries != 3 || made.TimeoutSeconds != 600 || made.Missed != "run_once" ||
		made.Next.IsZero() || string(made.Args) != `{"a":1}` {
		t.Errorf("%s %s", resp.Status, body)
	}
	w.want(400, "POST", api.Schedules, `{"name":"s","kind":"work","cron":"nonsense"}`)
	w.want(400, "POST", api.Schedules, `{"name":"s","kind":"none","cron":"@daily"}`)
	w.want(400, "POST", api.Schedules, `{"name":"s","every":"1h"}`)
	if _, body = w.do("GET", api.Schedules, ""); len(parse[api.List[api.Schedule]](t, body).Data) != 1 {
		t.Errorf("%s", body)
	}
	if _, body = w.do("POST", "/v1/schedules/s/pause", ""); !parse[api.Schedule](t, body).Paused {
		t.Errorf("%s", body)
	}
	if _, body = w.do("POST", "/v1/schedules/s/resume", ""); parse[api.Schedule](t, body).Paused {
		t.Errorf("%s", body)
	}
	for n := range 3 {
		resp, body = w.do("POST", "/v1/schedules/s/run", "")
		run := parse[api.ScheduleRun](t, body)
		if resp.StatusCode != 202 || run.Status != "running" || run.Schedule != "s" {
			t.Errorf("run %d: %s %s", n, resp.Status, body)
		}
		for run.Ended.IsZero() {
			_, body = w.do("GET", "/v1/schedules/s/runs?limit=1", "")
			run = parse[api.List[api.ScheduleRun]](t, body).Data[0]
		}
		if run.Status != "succeeded" || string(run.Output) != `{"a":1}` {
			t.Errorf("%+v", run)
		}
	}
	cursor, seen := "", map[string]bool{}
	for range 3 {
		_, body = w.do("GET", "/v1/schedules/s/runs?limit=1&cursor="+cursor, "")
		page := parse[api.List[api.ScheduleRun]](t, body)
		seen[page.Data[0].ID], cursor = true, page.NextCursor
	}
	if len(seen) != 3 {
		t.Errorf("pages have %v", seen)
	}
	w.want(400, "GET", "/v1/schedules/s/runs?cursor=x", "")
	w.want(404, "GET", "/v1/schedules/none/runs", "")
	w.want(404, "GET", "/v1/schedules/none", "")
	w.want(404, "POST", "/v1/schedules/none/run", "")
	other := w.as(account.Request{Account: "acme", Role: account.Admin})
	other.want(404, "GET", "/v1/schedules/s", "")
	other.want(404, "POST", "/v1/schedules/s/run", "")
	other.want(403, "POST", api.Schedules, `{"name":"s","kind":"work","cron":"@daily"}`)

	// Every account has schedules of its own, but needs the scope to run commands.
	const own = `{"name":"own","kind":"run","cron":"@daily","new":true}`
	other.want(201, "POST", api.Schedules, own)
	other.want(409, "POST", api.Schedules, own)
	other.want(202, "POST", "/v1/schedules/own/run", "")
	other.want(200, "POST", "/v1/schedules/own/pause", "")
	writer := w.as(account.Request{Account: "acme", Scopes: []account.Scope{account.Read, account.Write}})
	writer.want(403, "POST", api.Schedules, `{"name":"mine","kind":"run","cron":"@daily"}`)
	writer.want(403, "POST", "/v1/schedules/own/resume", "")
	writer.want(403, "DELETE", "/v1/schedules/own", "")
	member := w.as(account.Request{Account: account.Personal, Role: account.Member})
	for _, path := range []string{"pause", "resume", "run"} {
		member.want(403, "POST", "/v1/schedules/s/"+path, "")
	}
	member.want(403, "DELETE", "/v1/schedules/s", "")
	member.want(403, "POST", api.Schedules, `{"name":"s","kind":"run","cron":"@daily"}`) // replaces the server's job
	other.want(204, "DELETE", "/v1/schedules/own", "")
	w.want(204, "DELETE", "/v1/schedules/s", "")
	w.want(404, "DELETE", "/v1/schedules/s", "")
}

func TestServerWithoutBlocks(t *testing.T) {
	t.Parallel()
	w := start(t)
	for _, route := range []string{"GET /v1/secrets", "POST /v1/secrets", "GET /v1/secrets/s", "DELETE /v1/secrets/s",
		"GET /v1/schedules", "POST /v1/schedules",
		"GET /v1/schedules/s", "DELETE /v1/schedules/s", "POST /v1/schedules/s/run", "GET /v1/schedules/s/runs",
		"GET /v1/events",
		"POST /v1/secrets/rekey", "POST /v1/backup"} {
		method, path, _ := strings.Cut(route, " ")
		if resp, body := w.do(method, path, "{}"); parse[api.Problem](t, body).Code != "unsupported" {
			t.Errorf("%s: %s %s", route, resp.Status, body)
		}
	}
}

// follow opens a stream of events, and returns a function that reads its frames.
func (w *world) follow(query string, header ...string) (next func() string, end func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	req, err := http.NewRequestWithContext(ctx, "GET", w.url+api.Events+query, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	header = append(append([]string{}, w.headers...), header...)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		w.t.Fatal(err)
	}
	if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != api.TypeEvents ||
		resp.Header.Get("X-Accel-Buffering") != "no" {
		text, _ := io.ReadAll(resp.Body)
		w.t.Fatalf("%s %v %s", resp.Status, resp.Header, text)
	}
	lines := bufio.NewScanner(resp.Body)
	return func() string {
			var frame []string
			for lines.Scan() {
				if lines.Text() == "" && len(frame) > 1 {
					return strings.Join(frame, "|")
				}
				if lines.Text() == "" {
					frame = nil // an id by itself marks the beginning of the stream
				}
				if lines.Text() != "" && !strings.HasPrefix(lines.Text(), ":") {
					frame = append(frame, lines.Text())
				}
			}
			return "end"
		}, func() {
			cancel()
			resp.Body.Close()
		}
}

// mission: F1
func TestEventStream(t *testing.T) {
	t.Parallel()
	blocks, events := withBlocks(t)
	w := start(t, blocks)
	box := w.create()
	publish := func(stream string, n int) {
		t.Helper()
		if err := events.Publish(t.Context(), journal.Draft{Stream: stream, Type: "test.happened",
			Data: map[string]int{"n": n}}); err != nil {
			t.Fatal(err)
		}
	}
	frame := func(id, n int) string {
		return fmt.Sprintf(`id: %d|event: test.happened|data: {"n":%d}`, id, n)
	}
	expect := func(next func() string, want ...string) {
		t.Helper()
		for _, w := range want {
			if got := next(); got != w {
				t.Errorf("%s, want %s", got, w)
			}
		}
	}
	all := journal.AccountStream(account.Personal)
	publish(all, 1)
	publish(all, 2)
	publish(box.ID, 7)
	publish(journal.AccountStream("acme"), 9)
	for _, c := range []struct {
		query  string
		header []string
		want   []string
	}{
		{"", nil, []string{frame(1, 1), frame(2, 2)}},
		{"?after=1", nil, []string{frame(2, 2)}},
		{"?after=0", []string{api.HeaderLastEvent, "1"}, []string{frame(2, 2)}},
		{"?tail=1", nil, []string{frame(2, 2)}},
		{"?stream=box", nil, []string{frame(1, 7)}},
		{"?stream=" + box.ID, nil, []string{frame(1, 7)}},
	} {
		next, end := w.follow(c.query, c.header...)
		expect(next, c.want...)
		end()
	}
	// The name of an ended sandbox finds its events, until another sandbox has the name.
	w.want(204, "DELETE", "/v1/sandboxes/box", "")
	byName, stop := w.follow("?stream=box")
	expect(byName, frame(1, 7))
	stop()
	second := w.create()
	publish(second.ID, 8)
	byName, stop = w.follow("?stream=box")
	expect(byName, frame(1, 8))
	stop()
	byID, stop := w.follow("?stream=" + box.ID)
	expect(byID, frame(1, 7))
	stop()

	next, end := w.follow("?tail=0")
	defer end()
	publish(all, 3)
	expect(next, frame(3, 3))

	other := w.as(account.Request{Account: "acme"})
	theirs, close := other.follow("")
	expect(theirs, frame(1, 9))
	close()
	other.want(404, "GET", api.Events+"?stream=box", "")
	w.want(404, "GET", api.Events+"?stream=none", "")
	for _, query := range []string{"?after=x", "?after=99", "?after=-1", "?tail=x", "?tail=-1", "?tail=10001"} {
		w.want(400, "GET", api.Events+query, "")
	}
	// The end of the server ends the stream, and so does that of the events.
	stopped := make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 2*time.Minute)
		defer cancel()
		w.server.Stop(ctx)
		stopped <- struct{}{}
	}()
	expect(next, "end")
	<-stopped
}

// TestConnectionsOfEventsAreLogged checks that the log has the client of an event stream and the number of events that
// it got.
// mission: F6, 10.3, 10.4
func TestConnectionsOfEventsAreLogged(t *testing.T) {
	t.Parallel()
	blocks, events := withBlocks(t)
	w := start(t, blocks)
	const id = "follows-and-leaves"
	lines := logged.lines(t, id)
	next, end := w.follow("", "X-Request-ID", id)
	for range 2 {
		if err := events.Publish(t.Context(), journal.Draft{Stream: journal.AccountStream(account.Personal),
			Type: "test.happened"}); err != nil {
			t.Fatal(err)
		}
		next()
	}
	end()
	for _, want := range []string{"a client follows events", "a client stopped following events, after 2",
		"GET \\\"/v1/events\\\": 200"} {
		select {
		case line := <-lines:
			if !strings.Contains(line, want) || !strings.Contains(line, "request_id="+id) {
				t.Errorf("the log says %s, want %s", line, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("the log does not say %s", want)
		}
	}
}

// TestQuietStreamsBeat checks that a quiet stream sends heartbeats.
// mission: F1
func TestQuietStreamsBeat(t *testing.T) {
	t.Parallel()
	blocks, _ := withBlocks(t)
	w := start(t, blocks, func(o *server.Options) { o.Heartbeat = 10 * time.Millisecond })
	w.create()
	for path, body := range map[string]string{api.Events: "", "/v1/sandboxes/box/exec": `{"args":["sleep","1000"]}`} {
		ctx, leave := context.WithCancel(t.Context())
		method := http.MethodGet
		if body != "" {
			method = http.MethodPost
		}
		req, err := http.NewRequestWithContext(ctx, method, w.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Accept", api.TypeEvents)
		resp, err := http.DefaultTransport.RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		beats, lines := 0, bufio.NewScanner(resp.Body)
		for beats < 3 && lines.Scan() {
			if strings.HasPrefix(lines.Text(), ":") {
				beats++
			}
		}
		if beats < 3 {
			t.Errorf("%s ended after %d comments: %v", path, beats, lines.Err())
		}
		leave()
		resp.Body.Close()
	}
}

func TestEventStreamEndsWithTheEvents(t *testing.T) {
	t.Parallel()
	blocks, events := withBlocks(t)
	w := start(t, blocks)
	next, end := w.follow("")
	defer end()
	if err := events.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := next(); got != "end" {
		t.Errorf("%s", got)
	}
}
