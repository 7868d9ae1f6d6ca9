package once

import (
	"bytes"
	"cmp"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/pipe"
)

// terminalCodes matches terminal control sequences. Text in JSON has these characters escaped.
var terminalCodes = pattern.New(`\x1b(\[[0-9;?<>=]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[@-Z\\^_=>78])`)

// output converts an agent's terminal output to events.
type output struct {
	conv agent.Conversation
	fit  func(agent.Event) agent.Event
	tell func(agent.Event)
	line []byte
	cut  bool
	done *agent.Event // reported at the end
}

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	n := len(b)
	for len(b) > 0 {
		text, after, whole := bytes.Cut(b, []byte{'\n'})
		if room := pipe.MaxLine - len(o.line); len(text) > room {
			text, o.cut = text[:room], true
		}
		o.line = append(o.line, text...)
		if whole {
			o.take()
		}
		b = after
	}
	return n, nil
}

// take reports a line.
func (o *output) take() {
	text := bytes.TrimSpace(terminalCodes().ReplaceAll(bytes.TrimRight(o.line, "\r"), nil))
	if o.cut {
		text = []byte("a line that is too long")
	}
	o.line, o.cut = o.line[:0], false
	if len(text) == 0 {
		return
	}
	for _, e := range o.conv.Decode(text) {
		if e.Type == agent.Done {
			o.done = &e
			continue
		}
		o.tell(o.fit(e))
	}
}

// end reports the rest of the output.
func (o *output) end() {
	o.take()
	if o.done != nil {
		done := o.fit(*o.done)
		done.Text = cmp.Or(done.Text, done.Reason)
		o.tell(done)
	}
}
