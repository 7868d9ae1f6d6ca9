package repo

import (
	"bytes"
	"context"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// The events of a repository's stream, named by the repository's ID. EventEnded is also in the account's stream.
const (
	EventStarted = "repo.build_started" // Event: Build
	EventStage   = "repo.stage"         // Event: Stage, Command
	EventLog     = "repo.log"           // Event: Stage, Text
	EventEnded   = "repo.build_ended"   // Event: Build
)

// Event is the data of a repository's events. The event type determines which fields are set.
type Event struct {
	RepoID  string `json:"repo_id"`
	Name    string `json:"name"`
	BuildID string `json:"build_id"`
	Build   *Build `json:"build,omitempty"`
	Stage   string `json:"stage,omitempty"`
	Command string `json:"command,omitempty"`
	Text    string `json:"text,omitempty"` // whole lines
}

const (
	flushAfter = 150 * time.Millisecond // delay before lines are sent, to combine them into one event
	flushBytes = 32 << 10
	logBytes   = 4 << 20 // of one build
	tailBytes  = 4 << 10 // of a step, for the record of a failure
	lineBytes  = 16 << 10
)

// journal is the log of one build. Its methods may be called concurrently.
type journal struct {
	ctx    context.Context
	events *event.Journal
	about  Event

	mu     sync.Mutex
	stage  string      // guarded by mu
	part   []byte      // guarded by mu; incomplete line
	lines  []byte      // guarded by mu; not sent yet
	sent   int         // guarded by mu
	tail   []byte      // guarded by mu; the last lines of the stage
	timer  *time.Timer // guarded by mu; nil if no lines are pending
	closed bool        // guarded by mu
}

func (j *journal) post(kind string, change func(*Event)) {
	e := j.about
	change(&e)
	drafts := []event.Draft{{Stream: e.RepoID, Type: kind, Data: e}}
	j.events.Post(j.ctx, drafts...)
}

// begin logs the start of a stage with its command.
func (j *journal) begin(stage, command string) {
	j.flush()
	j.mu.Lock()
	j.stage, j.tail = stage, nil
	j.mu.Unlock()
	j.post(EventStage, func(e *Event) { e.Stage, e.Command = stage, command })
}

// Write appends output of the stage. It never fails.
func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.part = append(j.part, p...)
	for {
		i := bytes.IndexByte(j.part, '\n')
		if i < 0 && len(j.part) < lineBytes {
			break
		}
		if i < 0 {
			i = len(j.part) - 1
		}
		j.line(j.part[:i+1])
		j.part = j.part[i+1:]
	}
	return len(p), nil
}

// line appends a line. mu is held.
func (j *journal) line(text []byte) {
	line := append(clean(text), '\n')
	j.tail = append(j.tail, line...)
	if len(j.tail) > 2*tailBytes {
		j.tail = append([]byte(nil), j.tail[len(j.tail)-tailBytes:]...)
	}
	if j.closed || j.sent > logBytes {
		return
	}
	if j.sent += len(line); j.sent > logBytes {
		line = []byte("[the rest is left out]\n")
	}
	j.lines = append(j.lines, line...)
	if len(j.lines) >= flushBytes {
		j.send()
	} else if j.timer == nil {
		j.timer = time.AfterFunc(flushAfter, func() {
			j.mu.Lock()
			defer j.mu.Unlock()
			j.send()
		})
	}
}

// clean returns a line in readable form: without terminal control sequences, and only with the last text of
// overwritten parts.
func clean(line []byte) []byte {
	text := strings.TrimRight(strings.ToValidUTF8(string(line), "�"), "\r\n")
	if i := strings.LastIndexByte(text, '\r'); i >= 0 {
		text = text[i+1:]
	}
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == 0x1b && i+1 < len(text) && text[i+1] == '[':
			for i += 2; i < len(text) && (text[i] < 0x40 || text[i] > 0x7e); i++ {
			}
		case c == '\t' || c >= ' ' && c != 0x7f:
			out.WriteByte(c)
		}
	}
	return []byte(out.String())
}

// send publishes the pending lines. mu is held.
func (j *journal) send() {
	if j.timer != nil {
		j.timer.Stop()
		j.timer = nil
	}
	if len(j.lines) == 0 {
		return
	}
	text, stage := string(j.lines), j.stage
	j.lines = j.lines[:0]
	j.post(EventLog, func(e *Event) { e.Stage, e.Text = stage, text })
}

// flush publishes all output, including an incomplete line.
func (j *journal) flush() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if len(j.part) > 0 {
		j.line(j.part)
		j.part = nil
	}
	j.send()
}

// close closes the log: later output is not published.
func (j *journal) close() {
	j.flush()
	j.mu.Lock()
	defer j.mu.Unlock()
	j.closed = true
}

// last returns the last lines of the stage, with secrets redacted.
func (j *journal) last() string {
	j.flush()
	j.mu.Lock()
	defer j.mu.Unlock()
	tail := j.tail
	if len(tail) > tailBytes {
		tail = tail[len(tail)-tailBytes:]
		if i := bytes.IndexByte(tail, '\n'); i >= 0 {
			tail = tail[i+1:]
		}
	}
	return logf.Redacted(strings.ToValidUTF8(strings.TrimRight(string(tail), "\n"), ""))
}
