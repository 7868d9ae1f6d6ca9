package session

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/characters"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/records"
)

const (
	// outputPause is the least time between two events with output of a command.
	outputPause = time.Second
	// maxOutput limits the output of commands in a session's events, in bytes, and outputPart that of one event.
	maxOutput  = 256 << 10
	outputPart = 16 << 10
)

// runLater runs the commands of a dev container for which the session does not wait, in the background.
func runLater(r *runner, done preparation.Result) {
	later := done.Later
	if later == nil {
		if len(r.session().Later) > 0 { // of an earlier sandbox
			r.change(func(s *records.Session) { s.Later = nil })
		}
		return
	}
	r.change(func(s *records.Session) { s.Later = later.Hooks })
	r.m.work.Go(func() {
		ctx := logf.With(r.m.ctx, "session_id", r.id)
		out := newOutput(func(drafts ...draft) {
			// A session that has ended needs no events.
			err := r.call(ctx, func() error { r.publish(drafts...); return nil })
			if err != nil && errors.KindOf(err) != errors.Gone && ctx.Err() == nil {
				logf.Errorf(ctx, "publish the output of a command: %v", err)
			}
		})
		err := later.Run(ctx, out.of, func(stage records.Stage) {
			out.end()
			out.flush(draft{records.EventStage, records.Event{Stage: &stage}})
		})
		out.close()
		if ctx.Err() != nil {
			return // the next server reports it
		}
		_ = r.call(ctx, func() error { // it fails if the session has ended
			if r.session().SandboxID != done.Sandbox {
				return nil // a newer sandbox has commands of its own
			}
			r.change(func(s *records.Session) { s.Later = nil })
			if err != nil {
				r.publish(notice(records.NoticeCommand, "%s; the session goes on without later commands of the dev "+
					"container", logf.Redacted(errors.Message(err))))
			}
			return nil
		})
	})
}

// forgetLater reports that the commands of the dev container were under way when an earlier server ended.
func forgetLater(r *runner) {
	later := r.session().Later
	if len(later) == 0 {
		return
	}
	r.change(func(s *records.Session) { s.Later = nil })
	r.publish(notice(records.NoticeCommand, "the server was restarted while commands of the dev container ran in the "+
		"background (%s): they may not have ended; run them again if something is missing", strings.Join(later, ", ")))
}

// notice returns the event for something that the session's user may not expect.
func notice(reason, format string, args ...any) draft {
	return draft{records.EventNotice, records.Event{Event: agent.Event{Reason: reason,
		Text: fmt.Sprintf(format, args...)}}}
}

// output publishes the output of commands as events, at most one per outputPause.
type output struct {
	publish func(...draft)
	more    chan struct{} // there is output to publish
	ended   chan struct{}
	sent    chan struct{}

	sending sync.Mutex // held while events are published, so that their order is that of the output
	mu      sync.Mutex
	writers []*outputOf // guarded by mu
	parts   []draft     // guarded by mu
	left    int         // guarded by mu: bytes that may follow; -1 after the remark that no more do
}

func newOutput(publish func(...draft)) *output {
	o := &output{publish: publish, more: make(chan struct{}, 1), ended: make(chan struct{}), sent: make(chan struct{}),
		left: maxOutput}
	go o.send()
	return o
}

// of returns the writer for a command. It is safe for concurrent use.
func (o *output) of(name string) io.Writer {
	o.mu.Lock()
	defer o.mu.Unlock()
	w := &outputOf{output: o, name: name}
	o.writers = append(o.writers, w)
	return w
}

// outputOf is the output of one command.
type outputOf struct {
	*output
	name string
	line []byte // guarded by mu: the last line, which has not ended
}

// longestLine is how much of a line waits for the rest, in bytes. Lines are whole in events, because secrets in them
// are found in each event for itself.
const longestLine = 8 << 10

// Write implements io.Writer.
func (w *outputOf) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := append(w.line, p...)
	cut := bytes.LastIndexByte(all, '\n') + 1
	if len(all)-cut > longestLine {
		cut = len(all) - characters.Partial(all)
	}
	add(w.output, w.name, all[:cut])
	w.line = slices.Clone(all[cut:])
	return len(p), nil
}

// add adds output of a command. o.mu is held.
func add(o *output, name string, data []byte) {
	if o.left < 0 || len(data) == 0 {
		return
	}
	if len(data) > o.left {
		data, o.left = whole(data, o.left), -1
		data = append(slices.Clone(data), "\n[the rest is left out]\n"...)
	} else {
		o.left -= len(data)
	}
	for len(data) > 0 {
		n := len(o.parts) - 1
		if n < 0 || o.parts[n].Data.ID != name || len(o.parts[n].Data.Text)+longestLine >= outputPart {
			o.parts = append(o.parts, draft{records.EventOutput, records.Event{Event: agent.Event{ID: name}}})
			n++
		}
		part := whole(data, outputPart-len(o.parts[n].Data.Text))
		o.parts[n].Data.Text += string(part)
		data = data[len(part):]
	}
	select {
	case o.more <- struct{}{}:
	default:
	}
}

// whole returns the first lines of data, at most n bytes; of one longer line the first characters.
func whole(data []byte, n int) []byte {
	if len(data) <= n {
		return data
	}
	if i := bytes.LastIndexByte(data[:n], '\n'); i >= 0 {
		return data[:i+1]
	}
	return data[:n-characters.Partial(data[:n])]
}

// end adds the lines that have not ended.
func (o *output) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, w := range o.writers {
		add(o, w.name, w.line)
		w.line = nil
	}
}

// flush publishes the output so far, and then other events.
func (o *output) flush(then ...draft) {
	o.sending.Lock()
	defer o.sending.Unlock()
	o.mu.Lock()
	parts := o.parts
	o.parts = nil
	o.mu.Unlock()
	for i := range parts {
		parts[i].Data.Text = strings.ToValidUTF8(parts[i].Data.Text, "�")
	}
	if parts = append(parts, then...); len(parts) > 0 {
		o.publish(parts...)
	}
}

// send publishes the output until close.
func (o *output) send() {
	defer close(o.sent)
	for {
		select {
		case <-o.more:
			o.flush()
		case <-o.ended:
			return
		}
		select {
		case <-time.After(outputPause):
		case <-o.ended:
			return
		}
	}
}

// close publishes the last output.
func (o *output) close() {
	close(o.ended)
	<-o.sent
	o.end()
	o.flush()
}
