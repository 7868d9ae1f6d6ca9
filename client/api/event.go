package api

import "encoding/json"

// Event is an event of GET /v1/events.
type Event struct {
	// ID is unique within its stream. It is 0 for events about the stream itself: stream.lagged and stream.pruned.
	ID   int64
	Type string          // such as "sandbox.ready"
	Data json.RawMessage // an object
}

// EventLagged ends a stream whose reader was too slow. The reader reconnects with the last ID that it has.
const EventLagged = "stream.lagged"
