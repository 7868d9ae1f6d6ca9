// Package egress reports to a session the connections and names that the network policy of its sandbox denied.
package egress

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/base/tasks"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// Denial is an event egress.denied in the stream of a sandbox.
type Denial struct {
	engine.Denial
	Event int64 // ID in the stream of the sandbox
}

// Watch reads the denials in the streams of sandboxes, of one at a time. The zero value reads nothing. One goroutine
// calls its methods.
type Watch struct {
	sandbox string
	denials chan Denial
	stop    context.CancelFunc
}

// On starts to read the stream of a sandbox, "" for none, after event after, unless w reads that stream already. It
// reads in the background until ctx ends, or Close or On is called. work counts its goroutine.
func (w *Watch) On(ctx context.Context, work *tasks.Group, journal *event.Journal, sandbox string, after int64) {
	if w.sandbox == sandbox {
		return
	}
	w.Close()
	if w.sandbox = sandbox; sandbox == "" {
		return
	}
	ctx, w.stop = context.WithCancel(ctx)
	denials := make(chan Denial)
	w.denials = denials
	work.Go(func() {
		if err := read(ctx, journal, sandbox, after, denials); err != nil && ctx.Err() == nil {
			logf.Warnf(logf.With(ctx, "sandbox_id", sandbox), "read the denied connections: %v", err)
		}
	})
}

// Sandbox returns the sandbox whose stream w reads, or "".
func (w *Watch) Sandbox() string { return w.sandbox }

// Denials returns the channel of denials, oldest first.
func (w *Watch) Denials() <-chan Denial { return w.denials }

// Close stops reading.
func (w *Watch) Close() {
	if w.stop != nil {
		w.stop()
	}
	w.sandbox, w.denials, w.stop = "", nil, nil
}

// read sends the denials in a stream to to.
func read(ctx context.Context, journal *event.Journal, sandbox string, after int64, to chan<- Denial) error {
	reader, err := journal.Subscribe(ctx, sandbox, after)
	if err != nil {
		return err
	}
	defer reader.Close()
	for {
		events, err := reader.Next(ctx)
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Type != string(record.EventDenied) {
				continue
			}
			var data struct {
				Denial engine.Denial `json:"denial"`
			}
			if err := json.Unmarshal(e.Data, &data); err != nil {
				return err
			}
			select {
			case to <- Denial{data.Denial, e.ID}:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
}

// Most is the number of destinations of which one turn reports denials.
const Most = 20

// Turn collects the denials of a turn, each destination once. The zero value has none. One goroutine calls its methods.
type Turn struct {
	seen   map[string]bool
	listed []string
}

// Add adds a denial, and reports whether the destination is new and among the first Most of the turn.
func (t *Turn) Add(d engine.Denial) bool {
	destination := Describe(d)
	if t.seen[destination] || len(t.listed) == Most {
		return false
	}
	if t.seen == nil {
		t.seen = map[string]bool{}
	}
	t.seen[destination] = true
	t.listed = append(t.listed, destination)
	return true
}

// Next returns a note about the denials for the agent, which begins its next turn; "" if there were none.
func (t *Turn) Next() string {
	listed := t.listed
	t.seen, t.listed = nil, nil
	if len(listed) == 0 {
		return ""
	}
	more := ""
	if len(listed) == Most {
		more = " and possibly others"
	}
	return "Note from Harvest: the network policy of this sandbox refused connections during your last turn, to " +
		strings.Join(listed, ", ") + more + ". Programs see connections that fail and names that do not exist. Only " +
		"the user can allow a destination; tell the user if the work needs one."
}

// plain matches names and addresses. Programs in the sandbox choose the names, so that others are quoted.
var plain = pattern.New(`^[A-Za-z0-9_.:-]{1,253}$`)

// Describe returns the destination of a denial, such as "example.com port 443".
func Describe(d engine.Denial) string {
	text := cmp.Or(d.Domain, d.Address)
	if !plain().MatchString(text) {
		text = fmt.Sprintf("%.80q", text)
	}
	if d.Port != 0 && d.Protocol != "dns" {
		text += fmt.Sprintf(" port %d", d.Port)
	}
	return text
}
