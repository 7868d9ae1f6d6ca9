package fleet_test

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

func spareOf(t *testing.T, f *fleet.Fleet, owner string, req spec.Request) record.Sandbox {
	t.Helper()
	req.Owner = owner
	sb, err := f.Create(t.Context(), record.SpareAccount, req)
	if err != nil {
		t.Fatal(err)
	}
	return sb
}

// A sandbox made ahead has its owner's volumes, but is in no list, quota or cost of the owner until the owner takes it.
func TestSpare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testSpare)
}

func testSpare(t *testing.T) {
	w := newWorld(t)
	w.opts.Quotas = reserve.Quotas{Sandboxes: 2}
	w.opts.Prices = reserve.Prices{CPUSecond: 1}
	f := w.open(t)
	create(t, f, spec.Request{})
	spare := spareOf(t, f, account, spec.Request{Volumes: []spec.Mount{{Name: "mine", Path: "/v"}},
		IdleTimeoutSeconds: 60, TimeoutSeconds: 3600})
	create(t, f, spec.Request{}) // the quota has room
	if list, err := f.List(t.Context(), account, record.Filter{}); err != nil || len(list) != 2 {
		t.Errorf("listed: %d sandboxes, %v", len(list), err)
	}
	if !w.volumes["acme~mine"] {
		t.Errorf("volumes: %v, want the owner's", w.volumes)
	}
	if _, err := f.Get(t.Context(), "other", spare.ID); errors.KindOf(err) != errors.NotFound {
		t.Errorf("another account finds it: %v", err)
	}
	time.Sleep(2 * time.Minute) // beyond the idle limit, which does not count yet
	stored := func(context.Context, record.Sandbox) error { return nil }
	_, err := f.Adopt(t.Context(), account, spare.ID, stored)
	wantError(t, err, errors.Exhausted, "2 sandboxes at once")
	if err := f.Destroy(t.Context(), account, newest(t, f).ID); err != nil {
		t.Fatal(err)
	}
	_, err = f.Adopt(t.Context(), "other", spare.ID, stored)
	wantError(t, err, errors.NotFound)
	broken := errors.Newf(errors.Unavailable, "the disk is gone")
	_, err = f.Adopt(t.Context(), account, spare.ID, func(context.Context, record.Sandbox) error { return broken })
	wantError(t, err, errors.Unavailable)
	if list, err := f.List(t.Context(), account, record.Filter{}); err != nil || len(list) != 1 {
		t.Errorf("after a failure, listed: %d sandboxes, %v", len(list), err)
	}
	taken, err := f.Adopt(t.Context(), account, spare.ID, w.store.Put)
	if err != nil || taken.Account != account || taken.Owner != "" || taken.Cost != 0 ||
		taken.Expires.Sub(taken.Started) != time.Hour {
		t.Errorf("taken: %+v, %v", taken, err)
	}
	if list, err := f.List(t.Context(), account, record.Filter{}); err != nil || len(list) != 2 {
		t.Errorf("then listed: %d sandboxes, %v", len(list), err)
	}
	_, err = f.Adopt(t.Context(), account, spare.ID, stored)
	wantError(t, err, errors.Conflict, "not made ahead")
}

func newest(t *testing.T, f *fleet.Fleet) record.Sandbox {
	t.Helper()
	list, err := f.List(t.Context(), account, record.Filter{Limit: 1})
	if err != nil || len(list) != 1 {
		t.Fatalf("%d sandboxes, %v", len(list), err)
	}
	return list[0]
}

// A restarted server ends the sandboxes made ahead that nobody took.
func TestSparesEndWithTheServer(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	f := w.open(t)
	kept := create(t, f, spec.Request{})
	taken := spareOf(t, f, account, spec.Request{})
	spareOf(t, f, account, spec.Request{})
	if _, err := f.Adopt(t.Context(), account, taken.ID, w.store.Put); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	f = w.open(t)
	if list, err := f.List(t.Context(), record.SpareAccount, record.Filter{}); err != nil || len(list) != 0 {
		t.Errorf("made ahead: %v, %v", list, err)
	}
	list, err := f.List(t.Context(), account, record.Filter{})
	if err != nil || len(list) != 2 ||
		!slices.ContainsFunc(list, func(sb record.Sandbox) bool { return sb.ID == kept.ID }) {
		t.Errorf("of the account: %v, %v", list, err)
	}
}
