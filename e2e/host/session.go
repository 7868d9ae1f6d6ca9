package host

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
)

// TurnEvent is an event of a session, decoded.
type TurnEvent struct {
	ID   int64
	Type string
	Data api.SessionEvent
}

// Session returns the only session's id.
func (h *Host) Session() string {
	h.T.Helper()
	return strings.TrimSpace(h.Must("sessions", "-o", "name"))
}

// Box returns the sandbox of the only session.
func (h *Host) Box() string {
	h.T.Helper()
	var list []api.Session
	if err := json.Unmarshal([]byte(h.Must("sessions", "-o", "json")), &list); err != nil || len(list) != 1 {
		h.T.Fatalf("%d sessions, %v", len(list), err)
	}
	return list[0].SandboxID
}

// Event waits for a session's next event of a type, after the event with the number after.
func (h *Host) Event(id string, after int64, typ string) TurnEvent {
	h.T.Helper()
	found, err := h.NextEvent(id, after, typ)
	if err != nil {
		h.T.Fatalf("no event %s: %v\n%s", typ, err, h.Log())
	}
	return found
}

// NextEvent is Event for goroutines other than the test's own. It follows the session as a person who can answer.
func (h *Host) NextEvent(id string, after int64, typ string) (found TurnEvent, err error) {
	ctx, cancel := context.WithTimeout(h.T.Context(), 3*time.Minute)
	defer cancel()
	c, err := client.Connect(ctx, h.Data)
	if err != nil {
		return found, err
	}
	defer c.Close()
	for e, err := range c.Events(ctx, client.Follow{Stream: id, After: after, Attended: true}) {
		if err != nil {
			return found, err
		}
		if e.Type == typ {
			found.ID, found.Type = e.ID, e.Type
			return found, json.Unmarshal(e.Data, &found.Data)
		}
	}
	return found, errors.Errorf("the stream has ended")
}
