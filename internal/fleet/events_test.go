package fleet_test

import (
	"encoding/json"
	"io"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// mission: A6, F1
func TestEventsOfDenialsSayWhatWasDenied(t *testing.T) {
	t.Parallel()
	e := record.Event{Type: record.EventDenied, Sandbox: record.Sandbox{ID: "sbx_1", Account: account,
		Status: record.Running},
		Denial: engine.Denial{Seq: 3, Protocol: "tcp", Domain: "evil.example", Address: "1.2.3.4", Port: 443,
			Reason: "no rule allows the name", Count: 2}}
	for _, d := range e.Drafts() {
		got, err := json.Marshal(d.Data)
		if err != nil || !strings.Contains(string(got),
			`"domain":"evil.example","address":"1.2.3.4","port":443,"reason":"no rule allows the name","count":2`) {
			t.Errorf("in %s: %s, %v", d.Stream, got, err)
		}
	}
}

// mission: F1, A9
func TestEventsArePublished(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	j := event.Open(t.Context(), event.Options{Store: testdb.Open(t).Events()})
	w.opts.Event = record.Publish(t.Context(), j)
	f := w.open(t)
	sb := create(t, f, spec.Request{Name: "n"})
	if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
		t.Fatal(err)
	}
	w.fail("create", errors.Newf(errors.Unavailable, "boom"))
	failed, err := f.Create(t.Context(), account, spec.Request{})
	if err == nil {
		t.Fatal("it was created")
	}
	if err := j.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	read := func(stream string) string {
		t.Helper()
		r, err := j.Subscribe(t.Context(), stream, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		var lines []string
		for {
			batch, err := r.Next(t.Context())
			if errors.Is(err, io.EOF) {
				return strings.Join(lines, "\n")
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range batch {
				lines = append(lines, e.Type+" "+string(e.Data))
			}
		}
	}
	own := read(sb.ID)
	for _, want := range []string{
		`sandbox.starting {"sandbox_id":"` + sb.ID + `","name":"n","status":"creating"}`,
		`sandbox.stage {"sandbox_id":"` + sb.ID +
			`","name":"n","status":"creating","stage":{"name":"boot","ms":3},"image_id":"` + sb.ImageID + `"}`,
		`sandbox.ready {"sandbox_id":"` + sb.ID + `","name":"n","status":"running"`,
		`sandbox.terminated {"sandbox_id":"` + sb.ID + `","name":"n","status":"terminated"`,
	} {
		if !strings.Contains(own, want) {
			t.Errorf("%s is missing in\n%s", want, own)
		}
	}
	all, other := read(event.AccountStream(account)), read(failed.ID)
	if !strings.Contains(all, own[:strings.Index(own, "\n")]) ||
		!strings.HasSuffix(all, other[strings.LastIndex(other, "\n"):]) {
		t.Errorf("the account's stream:\n%s", all)
	}
	if !strings.Contains(other, `"status":"failed","reason":"boom","failed_stage":"create"`) {
		t.Errorf("the failed one's stream:\n%s", other)
	}
}
