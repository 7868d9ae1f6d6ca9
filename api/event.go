package api

import "encoding/json"

// Event is one of GET /v1/events.
type Event struct {
	ID   int64           // within its stream; 0 of those about the stream itself: stream.lagged and stream.pruned
	Type string          // such as "sandbox.ready"
	Data json.RawMessage // an object
}

// EventLagged ends a stream whose reader was too slow: it comes back with the last id that it has.
const EventLagged = "stream.lagged"
