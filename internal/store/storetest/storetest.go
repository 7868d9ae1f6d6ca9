// Package storetest tests implementations of the Store interfaces.
package storetest

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/usage"
)

// Run runs the suite. open returns a new, empty store.
func Run(t *testing.T, open func(t *testing.T) record.Store) {
	for _, check := range []struct {
		name string
		run  func(*testing.T, record.Store)
	}{
		{"a record comes back as it was put", roundTrip},
		{"a record is the caller's own copy", ownCopy},
		{"put replaces", replace},
		{"a missing record is NotFound", missing},
		{"names are unique among an account's live sandboxes", uniqueNames},
		{"list filters", list},
		{"list pages through everything once", pages},
		{"find by the beginning of the id", find},
		{"delete removes what ended before", remove},
		{"what a sandbox has used is kept as long as its record", keepUsage},
		{"totals of ended sandboxes outlive their records", totals},
		{"many at once", concurrent},
	} {
		t.Run(check.name, func(t *testing.T) {
			t.Parallel()
			check.run(t, open(t))
		})
	}
}

var day = time.Date(2026, 3, 1, 12, 30, 15, 123456789, time.UTC)

// Full returns a record with every field set.
func Full(id string) record.Sandbox {
	return record.Sandbox{
		ID: id, Account: "acme", Name: "näme", Tags: map[string]string{"a.b/c": `quote " and ' and %`, "k": ""},
		Engine: "fake", Isolation: "none", Image: "base", ImageID: "img_0123456789abcdef", Workdir: "/w", User: "u:g",
		Volumes: []spec.Mount{{Name: "v", Path: "/v", ReadOnly: true}}, Secrets: []string{"s"},
		Network: spec.Network{Mode: "allow", Allow: []string{"x.org"}, Deny: []string{"10.0.0.0/8"}},
		Ports:   []int{8080},
		Limits:  engine.Limits{CPU: 1.5, Memory: 1 << 33, Disk: 1 << 40, Processes: 3, Files: 4},
		Status:  record.Failed, Reason: "it broke", FailedStage: "start", OutOfMemory: true,
		Stages: []record.Stage{{Name: "image", MS: 1.25}}, Warm: true,
		Created: day, Started: day.Add(time.Second), Ended: day.Add(time.Minute), Expires: day.Add(time.Hour),
		LastUsed:           day.Add(2 * time.Second),
		IdleTimeoutSeconds: 90.5, IdleAction: "suspend", StartCommand: []string{"serve", "it"},
		Cost: 0.000123,
		Suspension: record.Suspension{Base: "img_1", Image: "img_2", Checkpoint: "chk_1",
			Commands: []record.Command{{ID: "p2", Deadline: day.Add(time.Hour), Background: true}}},
		Handle:   engine.Handle{ID: id, Ref: "ref-" + id},
		Denied:   7,
		Withheld: []string{"MODEL_KEY"},
		Commands: []record.Command{{ID: "p1", Deadline: day.Add(time.Minute), Detached: true}},
	}
}

func live(id, account, name string) record.Sandbox {
	return record.Sandbox{ID: id, Account: account, Name: name, Status: record.Running, Created: day,
		Expires: day.Add(time.Hour)}
}

func ended(id, account, name string, at time.Time) record.Sandbox {
	sb := live(id, account, name)
	sb.Status, sb.Ended = record.Terminated, at
	return sb
}

func put(t *testing.T, s record.Store, records ...record.Sandbox) {
	t.Helper()
	for _, sb := range records {
		if err := s.Put(t.Context(), sb); err != nil {
			t.Fatalf("put %s: %v", sb.ID, err)
		}
	}
}

func ids(found []record.Sandbox) []string {
	out := []string{}
	for _, sb := range found {
		out = append(out, sb.ID)
	}
	return out
}

func roundTrip(t *testing.T, s record.Store) {
	for _, want := range []record.Sandbox{Full("sbx_1"), live("sbx_2", "acme", "")} {
		put(t, s, want)
		got, err := s.Get(t.Context(), want.ID)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("record changed (-put +got):\n%s", diff)
		}
	}
}

func ownCopy(t *testing.T, s record.Store) {
	put(t, s, Full("sbx_1"))
	got, err := s.Get(t.Context(), "sbx_1")
	if err != nil {
		t.Fatal(err)
	}
	got.Tags["k"], got.Stages[0].Name, got.Commands[0].ID, got.Volumes[0].Name = "x", "x", "x", "x"
	again, err := s.Get(t.Context(), "sbx_1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(Full("sbx_1"), again); diff != "" {
		t.Errorf("changing what Get returned changed the record:\n%s", diff)
	}
}

func replace(t *testing.T, s record.Store) {
	sb := live("sbx_1", "acme", "n")
	put(t, s, sb)
	sb.Status, sb.Ended, sb.Reason = record.Terminated, day, "done"
	put(t, s, sb)
	all, err := s.List(t.Context(), "acme", record.Filter{All: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]record.Sandbox{sb}, all); diff != "" {
		t.Errorf("after replacing (-want +got):\n%s", diff)
	}
}

func missing(t *testing.T, s record.Store) {
	if _, err := s.Get(t.Context(), "sbx_none"); !errors.Is(err, errors.NotFound) {
		t.Errorf("Get of a missing record: %v, want NotFound", err)
	}
	if found, err := s.Find(t.Context(), "acme", "sbx_none", 2); err != nil || len(found) != 0 {
		t.Errorf("Find of a missing record: %v, %v", found, err)
	}
}

func uniqueNames(t *testing.T, s record.Store) {
	put(t, s, live("sbx_1", "acme", "n"), live("sbx_2", "other", "n"), live("sbx_3", "acme", ""),
		live("sbx_4", "acme", ""))
	if err := s.Put(t.Context(), live("sbx_5", "acme", "n")); !errors.Is(err, errors.Conflict) {
		t.Errorf("a second live sandbox of one name: %v, want Conflict", err)
	}
	if _, err := s.Get(t.Context(), "sbx_5"); !errors.Is(err, errors.NotFound) {
		t.Errorf("the refused record: %v, want NotFound", err)
	}
	put(t, s, live("sbx_1", "acme", "n"), ended("sbx_1", "acme", "n", day), live("sbx_5", "acme", "n"),
		ended("sbx_6", "acme", "n", day))
}

func list(t *testing.T, s record.Store) {
	one, two := live("sbx_1", "acme", "one"), live("sbx_2", "acme", "two")
	one.Tags = map[string]string{"team": "x", `odd".$key`: "1"}
	two.Tags = map[string]string{"team": "x", "env": "prod"}
	lost := live("sbx_3", "acme", "")
	lost.Status = record.Lost
	put(t, s, one, two, lost, ended("sbx_4", "acme", "one", day), live("sbx_5", "other", ""))
	for _, c := range []struct {
		account string
		filter  record.Filter
		want    []string
	}{
		{"acme", record.Filter{}, []string{"sbx_3", "sbx_2", "sbx_1"}},
		{"acme", record.Filter{All: true}, []string{"sbx_4", "sbx_3", "sbx_2", "sbx_1"}},
		{"", record.Filter{}, []string{"sbx_5", "sbx_3", "sbx_2", "sbx_1"}},
		{"nobody", record.Filter{All: true}, []string{}},
		{"acme", record.Filter{Statuses: []record.Status{record.Terminated, record.Lost}},
			[]string{"sbx_4", "sbx_3"}},
		{"acme", record.Filter{Name: "one"}, []string{"sbx_1"}},
		{"acme", record.Filter{Name: "one", All: true}, []string{"sbx_4", "sbx_1"}},
		{"acme", record.Filter{Tags: map[string]string{"team": "x"}}, []string{"sbx_2", "sbx_1"}},
		{"acme", record.Filter{Tags: map[string]string{"team": "x", "env": "prod"}}, []string{"sbx_2"}},
		{"acme", record.Filter{Tags: map[string]string{`odd".$key`: "1"}}, []string{"sbx_1"}},
		{"acme", record.Filter{Tags: map[string]string{"team": "y"}}, []string{}},
		{"acme", record.Filter{Tags: map[string]string{"none": ""}}, []string{}},
		{"acme", record.Filter{All: true, Limit: 2}, []string{"sbx_4", "sbx_3"}},
		{"acme", record.Filter{All: true, Before: "sbx_3"}, []string{"sbx_2", "sbx_1"}},
	} {
		found, err := s.List(t.Context(), c.account, c.filter)
		if err != nil {
			t.Fatalf("%q %+v: %v", c.account, c.filter, err)
		}
		if diff := cmp.Diff(c.want, ids(found)); diff != "" {
			t.Errorf("List(%q, %+v) (-want +got):\n%s", c.account, c.filter, diff)
		}
	}
}

func pages(t *testing.T, s record.Store) {
	want := []string{}
	for i := 24; i >= 0; i-- {
		put(t, s, live(fmt.Sprintf("sbx_%02d", i), "acme", ""))
		want = append(want, fmt.Sprintf("sbx_%02d", i))
	}
	got, before := []string{}, ""
	for {
		page, err := s.List(t.Context(), "acme", record.Filter{Limit: 10, Before: before})
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, ids(page)...)
		if len(page) < 10 {
			break
		}
		before = page[len(page)-1].ID
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("all pages (-want +got):\n%s", diff)
	}
}

func find(t *testing.T, s record.Store) {
	put(t, s, live("sbx_aa", "acme", "web"), ended("sbx_ab", "acme", "old", day), live("sbx_b", "other", "web"),
		live("sbx_c", "acme", ""))
	for _, c := range []struct {
		account, prefix string
		limit           int
		want            []string
	}{
		{"acme", "sbx_aa", 2, []string{"sbx_aa"}},
		{"acme", "sbx_a", 2, []string{"sbx_ab", "sbx_aa"}},
		{"acme", "sbx_b", 2, []string{}},
		{"acme", "web", 2, []string{}},
		{"acme", "sbx_%", 2, []string{}},
		{"acme", "sbx", 9, []string{"sbx_c", "sbx_ab", "sbx_aa"}},
		{"acme", "sbx", 2, []string{"sbx_c", "sbx_ab"}},
	} {
		found, err := s.Find(t.Context(), c.account, c.prefix, c.limit)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, ids(found)); diff != "" {
			t.Errorf("Find(%q, %q, %d) (-want +got):\n%s", c.account, c.prefix, c.limit, diff)
		}
	}
}

func remove(t *testing.T, s record.Store) {
	put(t, s, live("sbx_1", "acme", ""), ended("sbx_2", "acme", "", day),
		ended("sbx_3", "other", "", day.Add(time.Hour)))
	for _, want := range []int{1, 0} {
		if n, err := s.Delete(t.Context(), day.Add(time.Minute)); err != nil || n != want {
			t.Errorf("Delete = %d, %v, want %d", n, err, want)
		}
	}
	left, err := s.List(t.Context(), "", record.Filter{All: true})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"sbx_3", "sbx_1"}, ids(left)); diff != "" {
		t.Errorf("left after Delete (-want +got):\n%s", diff)
	}
}

func keepUsage(t *testing.T, s record.Store) {
	get := func(id string) usage.Usage {
		t.Helper()
		u, err := s.Usage(t.Context(), id)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if u := get("sbx_1"); u.Interval != 0 || u.PeakMemory != 0 || len(u.Samples) != 0 {
		t.Errorf("before anything was put: %+v", u)
	}
	put(t, s, live("sbx_1", "acme", ""), ended("sbx_2", "acme", "", day))
	sample := func(after time.Duration, cpu float64) usage.Sample {
		return usage.Sample{Time: day.Add(after), Usage: engine.Usage{CPU: cpu, Memory: 1 << 40,
			Received: 3, Sent: 4}}
	}
	want := usage.Usage{Interval: 2.5, PeakMemory: 1 << 41, Samples: []usage.Sample{sample(0, 0.125),
		sample(time.Second, 1.5)}}
	for _, u := range []usage.Usage{{Interval: 1, Samples: []usage.Sample{sample(0, 9)}}, want} {
		for _, id := range []string{"sbx_1", "sbx_2"} {
			if err := s.PutUsage(t.Context(), id, u); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n, err := s.Delete(t.Context(), day.Add(time.Minute)); err != nil || n != 1 {
		t.Errorf("Delete = %d, %v", n, err)
	}
	if diff := cmp.Diff(want, get("sbx_1")); diff != "" {
		t.Errorf("what came back (-want +got):\n%s", diff)
	}
	if u := get("sbx_2"); len(u.Samples) != 0 {
		t.Errorf("kept after its record was deleted: %+v", u)
	}
}

func concurrent(t *testing.T, s record.Store) {
	const workers, each = 8, 25
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				id := fmt.Sprintf("sbx_%d_%02d", w, i)
				if err := s.Put(t.Context(), live(id, "acme", id[4:])); err != nil {
					t.Errorf("put: %v", err)
				}
				if _, err := s.Get(t.Context(), id); err != nil {
					t.Errorf("get of a stored value: %v", err)
				}
			}
		})
	}
	wg.Wait()
	all, err := s.List(t.Context(), "acme", record.Filter{})
	if err != nil || len(all) != workers*each {
		t.Errorf("%d records, %v, want %d", len(all), err, workers*each)
	}
}

func totals(t *testing.T, s record.Store) {
	running := live("sbx_2", "acme", "")
	running.Started, running.Cost = day, 5
	never := ended("sbx_3", "acme", "", day.Add(time.Hour)) // it was never ready
	back := ended("sbx_4", "acme", "", day.Add(-time.Hour)) // the clock was set back
	back.Started = day
	theirs := ended("sbx_5", "other", "", day.Add(time.Second))
	theirs.Started, theirs.Cost = day, 2
	put(t, s, Full("sbx_1"), running, never, back, theirs)
	want := func(account string, want record.Totals) {
		t.Helper()
		got, err := s.Totals(t.Context(), account)
		if diff := cmp.Diff(want, got, cmpopts.EquateApprox(0, 0.002)); err != nil || diff != "" {
			t.Errorf("the totals of %s: %v\n%s", account, err, diff)
		}
	}
	want("acme", record.Totals{Sandboxes: 3, Seconds: 59, Cost: 0.000123})
	want("other", record.Totals{Sandboxes: 1, Seconds: 1, Cost: 2})
	want("nobody", record.Totals{})
	running.Status, running.Ended = record.Terminated, day.Add(120*time.Minute)
	running.SuspendedSeconds = 1800 // which do not count
	put(t, s, running)
	running.Reason = "told once more"
	put(t, s, running, theirs)
	if _, err := s.Delete(t.Context(), day.AddDate(1, 0, 0)); err != nil {
		t.Fatal(err)
	}
	want("acme", record.Totals{Sandboxes: 4, Seconds: 5459, Cost: 5.000123})
	want("other", record.Totals{Sandboxes: 1, Seconds: 1, Cost: 2})
}
