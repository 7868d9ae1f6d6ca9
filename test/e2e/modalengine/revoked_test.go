package modalengine

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	modalengine "github.com/RelevanceAI/harvest/internal/engine/modal"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
)

// TestModalEngineRevoked checks that a remedy is reported if Modal no longer accepts Harvest's credentials. Sandboxes
// are not lost by that, and continue with other credentials.
//
// mission: 9.2, F3
func TestModalEngineRevoked(t *testing.T) {
	testenv.Long(t)
	h := modalhost.WithBase(t)
	vars := map[string]string{}
	for _, pair := range append(slices.Clone(h.Modal), "MODAL_CONFIG_PATH=/nowhere/none.toml") {
		name, value, _ := strings.Cut(pair, "=")
		vars[name] = value
		t.Setenv(name, value)
	}
	out, err := h.Run("modal", "env", "--name", "revoked")
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	another := map[string]string{}
	for line := range strings.Lines(out) {
		name, value, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "export "), "=")
		another[name] = value
	}
	dir, store := testenv.DataDir(t), testdb.Open(t).Sandboxes()
	var mu sync.Mutex
	var lost []string
	open := func(token map[string]string) (*fleet.Fleet, *modalengine.Engine, func()) {
		t.Helper()
		eng, err := modalengine.Open(t.Context(), modalengine.Options{
			Dir: dir, Executable: h.Program, Image: "base", OutputBytes: 1 << 20, TokenID: token["MODAL_TOKEN_ID"],
			TokenSecret: token["MODAL_TOKEN_SECRET"],
		})
		if err != nil {
			t.Fatal(err)
		}
		fleet, err := fleet.Open(t.Context(), fleet.Options{Engine: eng, Store: store,
			Event: func(e record.Event) {
				mu.Lock()
				defer mu.Unlock()
				if e.Type == record.EventLost {
					lost = append(lost, e.Sandbox.Reason)
				}
			}})
		if err != nil {
			t.Fatal(err)
		}
		return fleet, eng, sync.OnceFunc(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
			defer cancel()
			if err := errors.Join(fleet.Close(ctx), eng.Close()); err != nil {
				t.Error(err)
			}
		})
	}
	run := func(f *fleet.Fleet, id string) error {
		x, err := f.Exec(t.Context(), "personal", id, fleet.ExecRequest{Args: []string{"true"}})
		if err == nil {
			_, err = x.Wait(t.Context())
		}
		return err
	}

	fleet, eng, closeIt := open(another)
	defer closeIt()
	sb, err := fleet.Create(t.Context(), "personal", spec.Request{Image: "base"})
	if err != nil {
		t.Fatal(err)
	}
	box, err := eng.Open(t.Context(), sb.Handle)
	if err != nil {
		t.Fatal(err)
	}
	if err := run(fleet, sb.ID); err != nil {
		t.Fatal(err)
	}
	if out, err := h.Run("key", "rm", another["MODAL_TOKEN_ID"]); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	told := func(what string, err error) error {
		if errors.KindOf(err) != errors.Unavailable ||
			!strings.Contains(errors.Message(err), "Modal no longer accepts Harvest's credentials") {
			return errors.Errorf("%s: %v: %s", what, err, errors.Message(err))
		}
		if remedy := errors.RemedyOf(err); !strings.Contains(remedy, "MODAL_TOKEN_ID") ||
			!strings.Contains(remedy, "start it again") {
			return errors.Errorf("%s: what to do is %q", what, remedy)
		}
		return nil
	}
	testenv.Try(t, func() error { return told("a command", run(fleet, sb.ID)) }) // the link ends within seconds
	_, err = fleet.Create(t.Context(), "personal", spec.Request{Image: "base"})
	if err := told("another sandbox", err); err != nil {
		t.Error(err)
	}
	_, err = eng.List(t.Context())
	if err := told("the list", err); err != nil {
		t.Error(err)
	}
	long, cancel := context.WithTimeout(t.Context(), 15*time.Second) // the SDK polls for the end every ten
	defer cancel()
	if end, err := box.Wait(long); errors.KindOf(err) != errors.Timeout {
		t.Errorf("the wait for the end ended with %+v, %v", end, err)
	}
	if now, err := fleet.Get(t.Context(), "personal", sb.ID); err != nil || now.Status != record.Running {
		t.Errorf("the sandbox is %s (%s), %v", now.Status, now.Reason, err)
	}
	mu.Lock()
	if len(lost) > 0 {
		t.Errorf("it was lost: %q", lost)
	}
	mu.Unlock()
	closeIt()

	fleet, _, closeIt = open(vars)
	defer closeIt()
	testenv.Try(t, func() error { return run(fleet, sb.ID) })
	if err := fleet.Destroy(t.Context(), "personal", sb.ID); err != nil {
		t.Error(err)
	}
}
