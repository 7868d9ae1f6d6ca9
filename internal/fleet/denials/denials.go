// Package denials follows the connections and names that the network policy of a sandbox denies.
package denials

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gateway"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// Bounds of the polling interval for a sandbox's denials. The interval grows, so that a sandbox with many denials
// causes little load, and no denials of a short-lived sandbox are missed.
const (
	firstPause   = 20 * time.Millisecond
	longestPause = time.Second
)

// kept is the number of denials that a record keeps.
const kept = 10

// Sandbox is the sandbox of a Follower. Its functions may be called concurrently.
type Sandbox struct {
	ID      string
	Context context.Context                                         // ends with the following
	Tasks   *sync.WaitGroup                                         // counts its goroutines
	Publish func(engine.Denial)                                     // publishes one denial
	Save    func(ctx context.Context, change func(*record.Sandbox)) // changes the record and stores it; logs failures
	Pause   func(time.Duration) bool                                // waits, and reports whether to continue
}

// Follower follows the denials of a sandbox. All methods may be called concurrently.
type Follower struct {
	sandbox Sandbox

	mu       sync.Mutex
	followed engine.Networker // guarded by mu; that was followed last
}

// New returns a Follower that follows nothing yet.
func New(sandbox Sandbox) *Follower { return &Follower{sandbox: sandbox} }

// Follow publishes the denials of the sandbox until it ends or is lost, and adds them to its record, sb. It does
// nothing if it already follows box, or if the sandbox has no network and thus no denials.
func (f *Follower) Follow(box engine.Sandbox, sb record.Sandbox) {
	networker, ok := box.(engine.Networker)
	f.mu.Lock()
	defer f.mu.Unlock()
	if !ok || f.followed == networker || sb.Network.Mode == gateway.ModeNone {
		return
	}
	f.followed = networker
	f.sandbox.Tasks.Go(func() { f.follow(networker, sb.Denied) })
}

func (f *Follower) follow(networker engine.Networker, seq uint64) {
	ctx := logf.With(f.sandbox.Context, "sandbox_id", f.sandbox.ID)
	pause := firstPause
	for {
		begin := time.Now()
		denied, err := networker.Denials(ctx, seq)
		if err != nil || ctx.Err() != nil {
			return // the sandbox has ended, or is lost
		}
		for _, d := range denied {
			seq = d.Seq
			logf.Warnf(ctx, "denied %s, %d times: %s", describe(d), max(d.Count, 1), d.Reason)
			f.sandbox.Publish(d)
		}
		f.sandbox.Save(ctx, func(sb *record.Sandbox) { sb.Denied, sb.Denials = seq, add(sb.Denials, denied) })
		if time.Since(begin) > longestPause {
			pause = firstPause
		}
		if !f.sandbox.Pause(pause) {
			return
		}
		pause = min(2*pause, longestPause)
	}
}

// add adds denials to the most recent ones of a sandbox. It merges equal denials and keeps the time of the last.
func add(denials, more []engine.Denial) []engine.Denial {
	denials = slices.Clone(denials)
	for _, d := range more {
		d.Count = max(d.Count, 1)
		denials = slices.DeleteFunc(denials, func(k engine.Denial) bool {
			same := k.Protocol == d.Protocol && k.Domain == d.Domain && k.Address == d.Address && k.Port == d.Port &&
				k.Reason == d.Reason
			if same {
				d.Count += k.Count
			}
			return same
		})
		denials = append(denials, d)
	}
	return denials[max(0, len(denials)-kept):]
}

// describe formats the destination of d for the log.
func describe(d engine.Denial) string {
	what := d.Protocol
	if d.Domain != "" {
		what += " " + strconv.Quote(d.Domain)
	}
	if d.Address != "" {
		what += " " + d.Address
	}
	if d.Port != 0 {
		what += " port " + strconv.Itoa(d.Port)
	}
	return what
}

// Reason returns why the network policy of sb refused a host, a name or an address; "" if no denial says so.
func Reason(sb record.Sandbox, host string) string {
	if sb.Network.Mode == gateway.ModeNone {
		return "the sandbox has no network"
	}
	for _, d := range sb.Denials {
		if strings.EqualFold(strings.TrimSuffix(d.Domain, "."), host) || d.Address == host {
			return d.Reason
		}
	}
	return ""
}
