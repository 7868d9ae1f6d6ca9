// Package event persists and distributes events. An event is stored before any reader sees it, numbered within
// its stream, and sent to any number of readers, each from its own position.
//
// Journal is the entry point. A stream is the id of a session or sandbox, or covers an account: see
// AccountStream. The ids of a stream are 1, 2, 3 and so on, also across restarts. A reader that resubscribes
// with the last id it received misses no event and receives none twice.
package event

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Limits of events.
const (
	MaxData   = 1 << 20 // bytes of its JSON
	MaxDrafts = 1024    // in one Publish
)

// Event is something that happened. Readers share events, so events must not be changed.
type Event struct {
	Stream string
	ID     int64  // within Stream; 0 for Lagged and Pruned, which concern the reader itself
	Type   string // such as "sandbox.ready": facts in the past tense
	Time   time.Time
	Data   json.RawMessage // on one line, without secret values

	frame []byte // as Frame returns it; set before the first reader sees the event
}

// The events about a reader's own stream, which only that reader gets.
const (
	// Lagged is the last event of a reader that was too slow. The reader must subscribe again after the last id
	// it received.
	Lagged = "stream.lagged"
	// Pruned reports that the events before the following ones were removed. The field "first" of its data is
	// the first id kept.
	Pruned = "stream.pruned"
)

// Draft is an event that has yet to be published.
type Draft struct {
	Stream string
	Type   string
	Data   any // a value for encoding/json; nil is an empty object
}

// Frame returns e encoded as a server-sent event. All readers share the bytes.
func (e *Event) Frame() []byte {
	if e.frame != nil {
		return e.frame
	}
	return e.encode()
}

func (e *Event) encode() []byte {
	return e.appendFrame(make([]byte, 0, len(e.Data)+len(e.Type)+48))
}

func (e *Event) appendFrame(b []byte) []byte {
	if e.ID > 0 {
		b = strconv.AppendInt(append(b, "id: "...), e.ID, 10)
		b = append(b, '\n')
	}
	b = append(append(b, "event: "...), e.Type...)
	b = append(append(b, "\ndata: "...), e.Data...)
	return append(b, "\n\n"...)
}

// AccountStream is the stream of all events of an account.
func AccountStream(account string) string { return "account/" + account }

// Store keeps events. Package store has one on SQLite and one in memory; package storetest proves them.
type Store interface {
	// Append adds events, all or none. The ids of one stream must continue from Last without gaps; otherwise
	// Append fails.
	Append(ctx context.Context, events []*Event) error
	// Read returns the events of the stream with ids above after, the lowest first, at most limit.
	Read(ctx context.Context, stream string, after int64, limit int) ([]*Event, error)
	// Last returns the highest id that the stream ever had, 0 if it never had an event.
	Last(ctx context.Context, stream string) (int64, error)
	// Prune removes events older than before and returns their number. stream "" means all streams. Ids are not
	// reused.
	Prune(ctx context.Context, stream string, before time.Time) (int, error)
}

var (
	streamPattern = pattern.New(`^[a-zA-Z0-9][a-zA-Z0-9_./@:+-]{0,199}$`)
	typePattern   = pattern.New(`^[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*$`)
)

// event checks d and converts it to an event without an id.
func (d Draft) event() (*Event, error) {
	if !streamPattern().MatchString(d.Stream) {
		return nil, errors.Errorf("invalid stream of events %.100q", d.Stream)
	}
	if !typePattern().MatchString(d.Type) || len(d.Type) > 64 {
		return nil, errors.Errorf("invalid type of events %.100q", d.Type)
	}
	data, err := Encode(d.Data)
	if err != nil {
		return nil, errors.Wrapf(err, "the data of an event %s", d.Type)
	}
	return &Event{Stream: d.Stream, Type: d.Type, Time: time.Now().UTC().Truncate(time.Microsecond), Data: data}, nil
}

// Encode returns data as JSON on one line, with secret values removed from all text. Field names and numbers
// stay as they are, because readers rely on them.
func Encode(data any) (json.RawMessage, error) {
	if data == nil {
		return json.RawMessage("{}"), nil
	}
	text, err := json.Marshal(data)
	if err != nil {
		return nil, err
	}
	if len(text) > MaxData {
		return nil, errors.Newf(errors.Invalid, "it takes %d bytes, %d are allowed", len(text), MaxData)
	}
	_, raw := data.(json.RawMessage)
	if logf.Redacted(string(text)) == string(text) && !(raw && hasEscapes(text)) {
		return text, nil
	}
	dec := json.NewDecoder(bytes.NewReader(text))
	dec.UseNumber()
	var value any
	if err := dec.Decode(&value); err != nil {
		return nil, err
	}
	return json.Marshal(redact(value))
}

// hasEscapes reports whether foreign JSON may spell a character in more than one way.
func hasEscapes(text []byte) bool {
	return bytes.Contains(text, []byte(`\u`)) || bytes.Contains(text, []byte(`\/`))
}

func redact(value any) any {
	switch v := value.(type) {
	case string:
		return logf.Redacted(v)
	case []any:
		for i := range v {
			v[i] = redact(v[i])
		}
	case map[string]any:
		for key := range v {
			v[key] = redact(v[key])
		}
	}
	return value
}

// notice is an event for one reader about its own stream.
func notice(stream, kind string, after, first int64) *Event {
	data := strings.NewReplacer("A", strconv.FormatInt(after, 10), "F",
		strconv.FormatInt(first, 10)).Replace(`{"after":A,"first":F}`)
	return &Event{Stream: stream, Type: kind, Time: time.Now().UTC(), Data: json.RawMessage(data)}
}
