package chat

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// spinner holds the frames of the spinner, one second in total.
var spinner = []string{"⠋", "⠙", "⠹", "⠸", "⠼", "⠴", "⠦", "⠧", "⠇", "⠏"}

// queuedShown is how many of the queued prompts are shown.
const queuedShown = 3

// View returns the redrawn part of the screen: the text in progress, the queue, the prompt and the status line.
func (m *Model) View() frame {
	mark := m.mark()
	if q := m.current(); q != nil {
		mark = "? "
	}
	rows, row, column := m.editor.view(mark, m.room(), max(1, m.height/3))
	if q := m.current(); q != nil && m.editor.text == "" {
		rows[0] += m.in(dim, q.hint())
	} else if m.editor.text == "" {
		rows[0] += m.in(dim, "a prompt, or /help")
	}
	waiting := m.waiting()
	waiting = waiting[:min(len(waiting), max(0, m.height-len(rows)-1))]
	free := m.height - len(rows) - 2 - len(waiting)
	live := m.live(max(0, free-1))
	if len(live) > 0 {
		live = append(live, "")
	}
	if !m.spaced {
		live = append([]string{""}, live...)
	}
	if over := len(live) - max(0, free); over > 0 {
		live = live[over:]
	}
	f := frame{lines: slices.Concat(live, waiting, rows, []string{cut(m.statusLine(), m.room())}), column: column}
	f.row = len(live) + len(waiting) + row
	for i, line := range f.lines {
		f.lines[i] = cut(line, m.room())
	}
	return f
}

// live returns at most most lines from the end of the agent's text or of the output of its tools.
func (m *Model) live(most int) (all []string) {
	for _, id := range m.order {
		t := m.texts[id]
		if t.thinking || strings.TrimSpace(t.rest) == "" {
			continue
		}
		all = append(all, m.markdown(t.rest, m.room())...)
	}
	for _, id := range m.running {
		t := m.tools[id]
		all = append(all, m.title(t)+m.in(dim, "  "+seconds(m.now.Sub(t.began))))
		lines, _ := tail(t.output, folded)
		for _, line := range lines {
			all = append(all, m.outputLine(line))
		}
	}
	return all[max(0, len(all)-most):]
}

// waiting returns the lines of the queued prompts.
func (m *Model) waiting() (all []string) {
	var texts []string
	for _, q := range m.onHold {
		texts = append(texts, "held: "+q.Prompt)
	}
	for _, q := range m.queued {
		texts = append(texts, "queued: "+q.Prompt)
	}
	for _, text := range m.sending {
		texts = append(texts, "being sent: "+text)
	}
	for i, text := range texts {
		if i == queuedShown {
			return append(all, m.in(dim, fmt.Sprintf("  … and %d more", len(texts)-i)))
		}
		all = append(all, m.in(dim, "  "+expand(FirstLine(text))))
	}
	return all
}

// Doing returns the current activity and its start; "" while it is the user's turn.
func (m *Model) Doing() (what string, since time.Time) {
	switch {
	case !m.seen:
		return "reading the events so far", time.Time{}
	case m.pending != "":
		return m.pending, m.pendedAt
	case m.ended:
		return "", time.Time{}
	case m.turn == "" && (m.status == "creating" || m.status == ""):
		if m.stage != "" {
			return "preparing the sandbox: " + Plain(m.stage) + " is ready", time.Time{}
		}
		return "preparing the sandbox", time.Time{}
	case m.turn == "" && len(m.sending) > 0:
		return "sending the prompt", time.Time{}
	case m.turn == "" && len(m.queued) > 0:
		return "starting the agent and its MCP servers", m.queued[0].Created
	case m.turn == "", m.current() != nil:
		return "", time.Time{}
	}
	return m.working()
}

// working returns the agent's activity in its turn.
func (m *Model) working() (what string, since time.Time) {
	switch {
	case m.stopping:
		return "stopping the turn", time.Time{}
	case m.retrying != "":
		return "waiting for the model's API: " + m.retrying, time.Time{}
	case m.status == "hung":
		return "no sign of the agent for minutes", time.Time{}
	case len(m.running) > 1:
		return fmt.Sprintf("running %d tools", len(m.running)), time.Time{}
	case len(m.running) == 1:
		t := m.tools[m.running[0]]
		return "running " + Plain(t.name), t.began
	}
	switch {
	case len(m.order) == 0:
		return "waiting for the model", m.heard
	case m.texts[m.order[0]].thinking:
		return "thinking", m.heard
	}
	return "answering", m.heard
}

// statusLine returns one line with the current activity and the state of the session.
func (m *Model) statusLine() string {
	what, since := m.Doing()
	var parts []string
	switch {
	case what != "":
		mark := spinner[m.now.UnixMilli()/100%int64(len(spinner))]
		line := mark + " " + what
		if !since.IsZero() {
			line += ", " + seconds(m.now.Sub(since))
		}
		parts = append(parts, m.in(cyan, line))
	case m.current() != nil:
		parts = append(parts, m.in(yellow, m.current().waits(m.now)))
	case m.status == "failed":
		parts = append(parts, "the last turn failed")
	default:
		parts = append(parts, "ready")
	}
	if m.busy() {
		parts = append(parts, "turn "+seconds(m.now.Sub(m.since)))
	}
	if all := len(m.servers); all > 0 {
		ready := 0
		for _, ok := range m.servers {
			if ok {
				ready++
			}
		}
		mcp := fmt.Sprintf("MCP %d/%d", ready, all)
		if ready < all {
			mcp = m.in(red, mcp)
		}
		parts = append(parts, mcp)
	}
	parts = append(parts, fmt.Sprintf("$%.2f", m.cost))
	if m.busy() {
		parts = append(parts, "Esc stops")
	} else {
		parts = append(parts, "/help")
	}
	return strings.Join(parts, m.in(dim, " · "))
}
