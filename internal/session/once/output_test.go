package once

import (
	"fmt"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/pipe"
)

// TestOutput checks that terminal sequences are removed from lines, lines that are not events are reported, and the end
// comes last.
//
// mission: 4.10
func TestOutput(t *testing.T) {
	t.Parallel()
	var got []string
	o := &output{conv: scripted.Agent{}.Open(agent.Setup{}), fit: func(e agent.Event) agent.Event { return e },
		tell: func(e agent.Event) { got = append(got, fmt.Sprintf("%s %s%.60s", e.Type, e.Text, e.Raw)) }}
	for _, piece := range []string{
		"\x1b[?25l{\"type\":\"message.delta\",\"te", "xt\":\"hi\"}\r\n\x1b]0;title\x07\r\n",
		"warning: \x1b[31mold\x1b[0m\r\n",
		`{"type":"done","reason":"completed"}` + "\r\n", strings.Repeat("x", pipe.MaxLine+10) + "\n",
		"the rest\x1b[?25h",
	} {
		if n, err := o.Write([]byte(piece)); n != len(piece) || err != nil {
			t.Errorf("%d, %v", n, err)
		}
	}
	o.end()
	want := "message.delta hi|agent.other \"warning: old\"|agent.other \"a line that is too long\"|agent.other \"the " +
		"rest\"|done completed"
	if text := strings.Join(got, "|"); text != want {
		t.Errorf("%s, want %s", text, want)
	}
}
