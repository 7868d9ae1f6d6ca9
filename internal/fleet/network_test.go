package fleet_test

import (
	"context"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// boxNet is the network of a box.
type boxNet struct {
	mu     sync.Mutex
	set    []engine.Network // guarded by mu
	denied []engine.Denial  // guarded by mu
	asked  []uint64         // guarded by mu: seq of each call of Denials
	more   chan struct{}
}

func (n *boxNet) deny(d engine.Denial) {
	n.mu.Lock()
	defer n.mu.Unlock()
	d.Seq = uint64(len(n.denied) + 1)
	n.denied = append(n.denied, d)
	n.more <- struct{}{}
}

func (n *boxNet) sets() []engine.Network {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.set)
}

func (b *box) SetNetwork(ctx context.Context, network engine.Network) error {
	if err := b.s.called(ctx, "network"); err != nil {
		return err
	}
	b.net.mu.Lock()
	defer b.net.mu.Unlock()
	b.net.set = append(b.net.set, network)
	return nil
}

func (b *box) Denials(ctx context.Context, seq uint64) ([]engine.Denial, error) {
	b.net.mu.Lock()
	b.net.asked = append(b.net.asked, seq)
	b.net.mu.Unlock()
	for {
		b.net.mu.Lock()
		found := slices.Clone(b.net.denied[min(int(seq), len(b.net.denied)):])
		b.net.mu.Unlock()
		if len(found) > 0 {
			return found, nil
		}
		select {
		case <-b.net.more:
		case <-b.ended:
			return nil, errors.Newf(errors.Conflict, "it has ended")
		case <-b.broken:
			return nil, errors.Newf(errors.Unavailable, "the connection broke")
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

func (b *box) Dial(ctx context.Context, port int) (net.Conn, error) {
	if err := b.s.called(ctx, "dial"); err != nil {
		return nil, err
	}
	here, there := net.Pipe()
	go func() {
		defer there.Close()
		_, _ = io.WriteString(there, "hello")
	}()
	return here, nil
}

// networked is a world whose engine has a network.
func networked(t testing.TB) *world {
	w := newWorld(t)
	w.caps.Network = true
	return w
}

func allow(rules ...string) spec.Network { return spec.Network{Mode: "allow", Allow: rules} }

// mission: A6
func TestNetworkByDefaultIsTheInternet(t *testing.T) {
	t.Parallel()
	w := networked(t)
	f := w.open(t)
	for mode, want := range map[string]engine.NetworkMode{"": engine.NetworkDefault, "default": engine.NetworkDefault,
		"none": engine.NetworkNone} {
		sb := create(t, f, spec.Request{Network: spec.Network{Mode: mode, Deny: []string{"evil.example"}},
			Ports: []int{8080, 3000}})
		got := w.specs[len(w.specs)-1].Network
		if diff := cmp.Diff(engine.Network{Mode: want, Deny: []string{"evil.example"}}, got); diff != "" {
			t.Errorf("mode %q (-want +got):\n%s", mode, diff)
		}
		if sb.Network.Mode != string(want) || !slices.Equal(sb.Ports, []int{8080, 3000}) {
			t.Errorf("mode %q: the record says %+v, ports %v", mode, sb.Network, sb.Ports)
		}
	}
	if sb := create(t, newWorld(t).open(t), spec.Request{}); sb.Network.Mode != "none" {
		t.Errorf("an engine without a network gives %+v", sb.Network)
	}
}

// mission: A6
func TestSetNetwork(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := networked(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{Network: spec.Network{Mode: "none"}})
		box := w.box(t, sb.ID)
		want := allow("example.org:443", "10.0.0.0/8")
		rules := want.Allow
		changed, err := f.SetNetwork(t.Context(), account, sb.ID, want)
		if err != nil {
			t.Fatal(err)
		}
		rules[0] = "changed by the caller"
		want = allow("example.org:443", "10.0.0.0/8")
		stored, err := w.store.Get(t.Context(), sb.ID)
		if err != nil || !cmp.Equal(stored.Network, want) || !cmp.Equal(changed.Network, want) {
			t.Errorf("record %+v, answer %+v, %v", stored.Network, changed.Network, err)
		}
		if diff := cmp.Diff([]engine.Network{{Mode: "allow", Allow: want.Allow}}, box.net.sets()); diff != "" {
			t.Errorf("the engine was told (-want +got):\n%s", diff)
		}
		// A failed change leaves everything as it was.
		w.fail("network", errors.Newf(errors.Unavailable, "no"))
		_, err = f.SetNetwork(t.Context(), account, sb.ID, spec.Network{Mode: "default"})
		wantError(t, err, errors.Unavailable, "no", "| network")
		if again, err := f.Get(t.Context(), account, sb.ID); err != nil || !cmp.Equal(again.Network, want) {
			t.Errorf("after a failure: %+v, %v", again.Network, err)
		}
		for _, bad := range []spec.Network{{}, {Mode: "odd"}, {Allow: []string{"x.org"}}, {Mode: "allow"},
			{Mode: "default", Deny: []string{"a b"}}} {
			_, err := f.SetNetwork(t.Context(), account, sb.ID, bad)
			wantError(t, err, errors.Invalid, "| validate")
		}
		_, err = f.SetNetwork(t.Context(), "other", sb.ID, want)
		wantError(t, err, errors.NotFound)
		if err := f.Destroy(t.Context(), account, sb.ID); err != nil {
			t.Fatal(err)
		}
		_, err = f.SetNetwork(t.Context(), account, sb.ID, want)
		wantError(t, err, errors.Gone, "terminated")
		_, err = f.Dial(t.Context(), account, sb.ID, 80)
		wantError(t, err, errors.Gone, "terminated")
	})
}

// TestDenialsAreEvents checks that a denied connection causes one event, also across a restart of the server, which
// applies the recorded policy again.
// mission: A6
func TestDenialsAreEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := networked(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{Network: allow("x.org")})
		quiet := create(t, f, spec.Request{Network: spec.Network{Mode: "none"}})
		box := w.box(t, sb.ID)
		box.net.deny(engine.Denial{Protocol: "dns", Domain: "evil.example", Reason: "no rule allows it"})
		box.net.deny(engine.Denial{Protocol: "tcp", Domain: "evil.example", Address: "1.2.3.4", Port: 443,
			Reason: "no rule allows it", Count: 7})
		synctest.Wait()
		if got := w.denials(sb.ID); len(got) == 0 || got[0].Domain != "evil.example" {
			t.Fatalf("events %+v", got)
		}
		if err := f.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		box.net.deny(engine.Denial{Protocol: "tcp", Domain: "later.example", Reason: "no rule allows it"})
		f = w.open(t)
		synctest.Wait()
		box.net.deny(engine.Denial{Protocol: "tcp", Domain: "last.example", Reason: "no rule allows it"})
		if _, err := f.SetNetwork(t.Context(), account, sb.ID, spec.Network{Mode: "none"}); err != nil {
			t.Fatal(err)
		}
		pauseOver()
		var domains []string
		for _, d := range w.denials(sb.ID) {
			domains = append(domains, d.Protocol+" "+d.Domain)
		}
		if diff := cmp.Diff([]string{"dns evil.example", "tcp evil.example", "tcp later.example", "tcp last.example"},
			domains); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		// The record has the latest denials, with equal ones merged.
		for range 12 {
			box.net.deny(engine.Denial{Protocol: "dns", Domain: "again.example", Reason: "no rule allows it"})
		}
		for port := range 9 {
			box.net.deny(engine.Denial{Protocol: "tcp", Address: "1.2.3.4", Port: port + 1,
				Reason: "no rule allows it", Count: 2})
		}
		pauseOver()
		record, err := w.store.Get(t.Context(), sb.ID)
		if n := len(record.Denials); err != nil || n != 10 || record.Denials[0].Domain != "again.example" ||
			record.Denials[0].Count != 12 ||
			record.Denials[9].Port != 9 || record.Denials[9].Count != 2 {
			t.Errorf("the record has %d: %+v, %v", n, record.Denials, err)
		}
		for ref, hosts := range map[string]map[string]string{quiet.ID: {"x.org": "the sandbox has no network"},
			"nosuch": {"x.org": ""}} {
			for host, want := range hosts {
				if got := f.Refusal(t.Context(), account, ref, host); got != want {
					t.Errorf("%s of %s: %q, want %q", host, ref, got, want)
				}
			}
		}
		open := create(t, f, spec.Request{Network: allow("x.org")})
		w.box(t, open.ID).net.deny(engine.Denial{Protocol: "dns", Domain: "Evil.example.", Reason: "no rule allows it"})
		w.box(t, open.ID).net.deny(engine.Denial{Protocol: "tcp", Address: "1.2.3.4", Reason: "it is private"})
		for host, want := range map[string]string{"evil.example": "no rule allows it", "1.2.3.4": "it is private",
			"x.org": ""} {
			if got := f.Refusal(t.Context(), account, open.ID, host); got != want {
				t.Errorf("%s: %q, want %q", host, got, want)
			}
		}
		if sets := box.net.sets(); len(sets) == 0 || sets[0].Mode != "allow" {
			t.Errorf("after the restart the engine was told %+v", sets)
		}
		if n := len(w.box(t, quiet.ID).net.asked); n != 0 {
			t.Errorf("a sandbox without a network was asked %d times what it was denied", n)
		}
	})
}

// mission: A6
func TestDial(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := networked(t)
		f := w.open(t)
		sb := create(t, f, spec.Request{IdleTimeoutSeconds: 10})
		c, err := f.Dial(t.Context(), account, sb.ID, 8080)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(c); string(got) != "hello" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		if err := c.(interface{ CloseWrite() error }).CloseWrite(); err == nil {
			t.Error("a pipe has no directions")
		}
		pauseOver()
		if got, err := f.Get(t.Context(), account, sb.ID); err != nil || got.Status != record.Running {
			t.Errorf("while a connection is open the sandbox is %s, %v", got.Status, err)
		}
		for range 2 {
			_ = c.Close()
		}
		pauseOver()
		if got, err := f.Get(t.Context(), account, sb.ID); err != nil || got.Status != record.Terminated {
			t.Errorf("when it is closed the sandbox is %s, %v", got.Status, err)
		}
		other := create(t, f, spec.Request{})
		for _, port := range []int{0, -1, 65536} {
			_, err := f.Dial(t.Context(), account, other.ID, port)
			wantError(t, err, errors.Invalid, "invalid port", "| validate")
		}
		w.fail("dial", errors.Newf(errors.Unavailable, "nothing listens"))
		_, err = f.Dial(t.Context(), account, other.ID, 80)
		wantError(t, err, errors.Unavailable, "nothing listens", "| connect")
	})
}

// denials returns the events of a sandbox's denied connections.
func (w *world) denials(id string) []engine.Denial {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []engine.Denial
	for _, e := range w.events {
		if e.Type == record.EventDenied && e.Sandbox.ID == id {
			all = append(all, e.Denial)
		}
	}
	return all
}

// pauseOver lets a synthetic minute pass.
func pauseOver() {
	time.Sleep(time.Minute)
	synctest.Wait()
}
