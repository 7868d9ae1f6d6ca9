package server

import (
	"encoding/base64"
	"net/http"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/api"
)

func wantsEvents(r *http.Request) bool {
	return strings.Contains(r.Header.Get("Accept"), api.TypeEvents)
}

// events is a response of server-sent events. Its methods may be called concurrently.
type events struct {
	mu   sync.Mutex
	w    http.ResponseWriter // guarded by mu; nil when the response has ended
	done chan struct{}
	beat sync.WaitGroup
}

// newEvents starts the response. The caller must close it before its handler returns.
func (s *Server) newEvents(w http.ResponseWriter) *events {
	h := w.Header()
	h.Set("Content-Type", api.TypeEvents)
	h.Set("Cache-Control", "no-cache, no-transform")
	h.Set("X-Accel-Buffering", "no")
	w.WriteHeader(http.StatusOK)
	ev := &events{w: w, done: make(chan struct{})}
	ev.write(": \n\n")
	ev.beat.Go(func() {
		tick := time.NewTicker(s.opts.Heartbeat)
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

// send sends an event, if the client is still connected: its context ends when it is not.
func (ev *events) send(name string, v any) {
	ev.write("event: " + name + "\ndata: " + string(marshal(v)) + "\n\n")
}

func (ev *events) write(text string) {
	ev.mu.Lock()
	defer ev.mu.Unlock()
	if ev.w == nil {
		return
	}
	if _, err := ev.w.Write([]byte(text)); err == nil {
		_ = http.NewResponseController(ev.w).Flush()
	}
}

func (ev *events) close() {
	close(ev.done)
	ev.beat.Wait()
	ev.mu.Lock()
	defer ev.mu.Unlock()
	ev.w = nil
}

// outputWriter sends its input as events of one name. Incomplete UTF-8 characters wait for the rest.
type outputWriter struct {
	ev   *events
	name string
	rest []byte
}

func (o *outputWriter) Write(p []byte) (int, error) {
	all := append(o.rest, p...)
	cut := len(all) - partial(all)
	o.sendBytes(all[:cut])
	o.rest = append([]byte(nil), all[cut:]...)
	return len(p), nil
}

// flush sends the waiting bytes.
func (o *outputWriter) flush() { o.sendBytes(o.rest) }

func (o *outputWriter) sendBytes(data []byte) {
	switch {
	case len(data) == 0:
	case utf8.Valid(data):
		o.ev.send(o.name, api.Output{Data: string(data), Encoding: "utf-8"})
	default:
		o.ev.send(o.name, api.Output{Data: base64.StdEncoding.EncodeToString(data), Encoding: "base64"})
	}
}

// partial returns the number of bytes at the end of data that begin an incomplete character.
func partial(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if tail := data[len(data)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
