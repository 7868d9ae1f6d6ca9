package host

import (
	"context"
	"encoding/json"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
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

// eventTime limits the wait for an event of a session. Real agents take longer than testenv.Limit on a busy machine.
const eventTime = 5 * time.Minute

// Event waits for a session's next event of a type, after the event with the number after.
func (h *Host) Event(id string, after int64, typ string) TurnEvent {
	h.T.Helper()
	found, err := h.NextEvent(id, after, typ)
	if err != nil {
		h.T.Fatalf("%v\n%s", err, h.Log())
	}
	return found
}

// NextEvent is Event for goroutines other than the test's own. It follows the session as a person who can answer.
func (h *Host) NextEvent(id string, after int64, typ string) (TurnEvent, error) {
	f := client.Follow{Stream: id, After: after, Attended: true}
	return h.NextWanted(f, "an event "+typ, func(e TurnEvent) bool { return e.Type == typ })
}

// NextWanted waits for the next event that is wanted. Its error names the awaited event and the events that came.
func (h *Host) NextWanted(f client.Follow, awaited string, wanted func(TurnEvent) bool) (TurnEvent, error) {
	ctx, cancel := context.WithTimeout(h.T.Context(), eventTime)
	defer cancel()
	var came []string
	failed := func(err error) (TurnEvent, error) {
		return TurnEvent{}, errors.Errorf("awaited %s of session %s for at most %s: %v. These events came: %s", awaited,
			f.Stream, eventTime, err, strings.Join(came, ", "))
	}
	c, err := client.Connect(ctx, h.Data)
	if err != nil {
		return failed(err)
	}
	defer c.Close()
	for e, err := range c.Events(ctx, f) {
		if err != nil {
			return failed(err)
		}
		found := TurnEvent{ID: e.ID, Type: e.Type}
		if err := json.Unmarshal(e.Data, &found.Data); err != nil {
			return failed(err)
		}
		if wanted(found) {
			return found, nil
		}
		came = append(came, e.Type)
	}
	return failed(errors.Errorf("the stream has ended"))
}
