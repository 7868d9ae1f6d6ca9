package denials

import (
	"context"
	"fmt"
	"strings"
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

func TestEqualDenialsAreMerged(t *testing.T) {
	t.Parallel()
	at := time.Unix(1e9, 0)
	a := engine.Denial{Seq: 1, Time: at, Protocol: "tcp", Domain: "a.example", Port: 443, Reason: "no rule", Count: 1}
	later := a
	later.Seq, later.Time, later.Count = 3, at.Add(time.Second), 0
	b := engine.Denial{Seq: 2, Time: at, Protocol: "dns", Domain: "b.example", Reason: "no rule", Count: 2}
	merged := later
	merged.Count = 2 // no count means one
	kept := []engine.Denial{a}
	if diff := cmp.Diff([]engine.Denial{b, merged}, add(kept, []engine.Denial{b, later})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if kept[0] != a {
		t.Errorf("the list of the record was changed in place: %+v", kept)
	}
	for name, change := range map[string]func(*engine.Denial){
		"protocol": func(d *engine.Denial) { d.Protocol = "udp" }, "port": func(d *engine.Denial) { d.Port++ },
		"domain":  func(d *engine.Denial) { d.Domain = "c.example" },
		"address": func(d *engine.Denial) { d.Address = "192.0.2.1" },
		"reason":  func(d *engine.Denial) { d.Reason = "a rule" },
	} {
		other := a
		change(&other)
		if got := add(kept, []engine.Denial{other}); len(got) != 2 {
			t.Errorf("denials with another %s were merged: %+v", name, got)
		}
	}
	var many []engine.Denial
	for i := range 25 {
		many = append(many, engine.Denial{Protocol: "tcp", Port: i})
	}
	got := add(kept, many)
	if len(got) != 10 || got[0].Port != 15 || got[9].Port != 24 {
		t.Errorf("want the last ten, got %+v", got)
	}
}

func TestReason(t *testing.T) {
	t.Parallel()
	sb := record.Sandbox{Network: spec.Network{Mode: "allow"}, Denials: []engine.Denial{
		{Domain: "Git.Example.", Reason: "the name"}, {Address: "192.0.2.1", Reason: "the address"}}}
	for host, want := range map[string]string{
		"git.example": "the name", "GIT.example": "the name", "192.0.2.1": "the address",
		"example": "", "git.example.org": "", "192.0.2.10": "",
	} {
		if got := Reason(sb, host); got != want {
			t.Errorf("%s: %q, want %q", host, got, want)
		}
	}
	sb.Network.Mode = "none"
	if got := Reason(sb, "git.example"); got != "the sandbox has no network" {
		t.Errorf("without a network: %q", got)
	}
}

// box is a sandbox that only reports denials.
type box struct {
	engine.Sandbox
	denied chan engine.Denial // closed when the sandbox ends

	mu    sync.Mutex
	asked []uint64 // guarded by mu
}

func (b *box) SetNetwork(context.Context, engine.Network) error { return nil }

func (b *box) Denials(ctx context.Context, seq uint64) ([]engine.Denial, error) {
	b.mu.Lock()
	b.asked = append(b.asked, seq)
	b.mu.Unlock()
	select {
	case d, ok := <-b.denied:
		if !ok {
			return nil, errors.Newf(errors.Conflict, "it has ended")
		}
		return []engine.Denial{d}, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// world records the calls of a Follower.
type world struct {
	mu   sync.Mutex
	log  []string       // guarded by mu
	sb   record.Sandbox // guarded by mu
	wait sync.WaitGroup
}

func (w *world) follower(ctx context.Context) *Follower {
	return New(Sandbox{ID: "sbx_1", Context: ctx, Tasks: &w.wait,
		Publish: func(d engine.Denial) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.log = append(w.log, fmt.Sprint("publish ", d.Seq))
		},
		Save: func(_ context.Context, change func(*record.Sandbox)) {
			w.mu.Lock()
			defer w.mu.Unlock()
			change(&w.sb)
			w.log = append(w.log, fmt.Sprint("save ", w.sb.Denied))
		},
		Pause: func(d time.Duration) bool {
			w.mu.Lock()
			w.log = append(w.log, fmt.Sprint("pause ", d))
			w.mu.Unlock()
			time.Sleep(d)
			return ctx.Err() == nil
		}})
}

// TestFollow checks that denials are published before they are recorded, that pauses grow while denials come fast,
// and that a Follower continues after the last denial of the record.
// mission: A6
func TestFollow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := &box{denied: make(chan engine.Denial)}
		w := &world{sb: record.Sandbox{Network: spec.Network{Mode: "allow"}, Denied: 6}}
		f := w.follower(t.Context())
		for range 3 { // it is followed once
			f.Follow(b, w.sb)
		}
		for seq := uint64(7); seq < 10; seq++ {
			b.denied <- engine.Denial{Seq: seq, Port: int(seq)}
		}
		time.Sleep(2 * time.Second) // the next one comes after a quiet time
		b.denied <- engine.Denial{Seq: 10}
		close(b.denied)
		w.wait.Wait()
		const want = "publish 7,save 7,pause 20ms,publish 8,save 8,pause 40ms,publish 9,save 9,pause 80ms," +
			"publish 10,save 10,pause 20ms"
		if got := strings.Join(w.log, ","); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
		if diff := cmp.Diff([]uint64{6, 7, 8, 9, 10}, b.asked); diff != "" {
			t.Errorf("asked for denials after (-want +got):\n%s", diff)
		}
		if len(w.sb.Denials) != 4 {
			t.Errorf("the record: %+v", w.sb.Denials)
		}
	})
}

// TestFollowsTheNewSandbox checks that a Follower follows the sandbox that replaces another one, and that a sandbox
// without a network, or of an engine that reports no denials, is not followed.
func TestFollowsTheNewSandbox(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		first, second := &box{denied: make(chan engine.Denial)}, &box{denied: make(chan engine.Denial)}
		w := &world{}
		ctx, cancel := context.WithCancel(t.Context())
		f := w.follower(ctx)
		none := record.Sandbox{Network: spec.Network{Mode: "none"}}
		f.Follow(first, none)
		f.Follow(struct{ engine.Sandbox }{}, record.Sandbox{})
		synctest.Wait()
		if len(first.asked) > 0 {
			t.Errorf("a sandbox without a network was asked %d times", len(first.asked))
		}
		f.Follow(first, record.Sandbox{Network: spec.Network{Mode: "default"}})
		f.Follow(second, record.Sandbox{Network: spec.Network{Mode: "default"}, Denied: 3})
		synctest.Wait()
		if len(first.asked) != 1 || len(second.asked) != 1 || second.asked[0] != 3 {
			t.Errorf("asked %v and %v", first.asked, second.asked)
		}
		cancel()
		w.wait.Wait()
		if len(w.log) > 0 {
			t.Errorf("%v", w.log)
		}
	})
}
