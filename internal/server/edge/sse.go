package edge

import (
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
)

// WantsEvents reports whether the client asks for server-sent events.
func WantsEvents(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), api.TypeEvents)
}

// Events is a response of server-sent events. Its methods may be called concurrently.
type Events struct {
	mu   sync.Mutex
	w    http.ResponseWriter // guarded by mu; nil when the response has ended
	done chan struct{}
	beat sync.WaitGroup
}

// NewEvents starts the response. The caller must close it before its handler returns.
func (s Settings) NewEvents(w http.ResponseWriter) *Events {
	h := w.Header()
	h.Set("Content-Type", api.TypeEvents)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	ev := &Events{w: w, done: make(chan struct{})}
	ev.write(": \n\n")
	ev.beat.Go(func() {
		tick := time.NewTicker(s.Heartbeat)
		defer tick.Stop()
		for {
			select {
			case <-ev.done:
				return
			case <-tick.C:
				ev.write(": \n\n")
			}
		}
	})
	return ev
}

// Send sends an event, if the client is still connected: its context ends when it is not.
func (ev *Events) Send(name string, v any) {
	ev.write("event: " + name + "\ndata: " + string(Marshal(v)) + "\n\n")
}

func (ev *Events) write(text string) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	if ev.w == nil {
		return
	}
	if _, err := ev.w.Write([]byte(text)); err == nil {
		_ = http.NewResponseController(ev.w).Flush()
	}
}

// Close ends the response.
func (ev *Events) Close() {
	close(ev.done)
	ev.beat.Wait()
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.w = nil
}
