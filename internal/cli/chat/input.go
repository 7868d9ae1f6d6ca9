package chat

import (
	"fmt"
	"slices"
	"strings"
)

// Key processes a key.
func (m *Model) Key(k key) {
	switch k.name {
	case "ctrl+c":
		if m.editor.text != "" {
			m.editor.remember(m.editor.take())
			return
		}
		m.Leave()
	case "ctrl+d":
		if m.editor.text == "" {
			m.Leave()
			return
		}
		m.editor.press(k)
	case "esc":
		m.stop()
	case "suspend":
		m.act(Action{Act: Suspend})
	case "redraw":
		m.act(Action{Act: Redraw})
	case "enter":
		if text, ok := strings.CutSuffix(m.editor.text, `\`); ok && m.editor.at == len(m.editor.text) {
			m.editor.set(text + "\n")
			return
		}
		m.Submit(m.editor.take())
	default:
		m.editor.press(k)
	}
}

// stop interrupts the running turn.
func (m *Model) stop() {
	if m.busy() && !m.stopping {
		m.stopping = true
		m.act(Action{Act: Stop})
	}
}

// hold interrupts the running turn and holds the queued prompts.
func (m *Model) hold() {
	if !m.busy() && len(m.queued) == 0 {
		m.block("No turn and no queued prompt.")
		return
	}
	m.stopping = m.busy()
	m.act(Action{Act: Hold})
}

func (m *Model) release() {
	if len(m.onHold) == 0 {
		m.block("No prompt is held.")
		return
	}
	m.act(Action{Act: Release})
}

// Submit processes a complete text: a command of the conversation, an answer, or a prompt.
func (m *Model) Submit(text string) {
	text = trimPrompt(text)
	if text == "" {
		return
	}
	m.editor.remember(text)
	switch {
	case m.command(text):
	case m.current() != nil:
		m.answer(strings.TrimSpace(text))
	default:
		if strings.HasPrefix(text, "//") { // an agent's command with the name of a chat command
			text = text[1:]
		}
		m.sending = append(m.sending, text)
		m.act(Action{Act: Send, Text: text})
	}
}

const help = `Enter sends. While the agent works, prompts are queued.
Alt-Enter, Ctrl-J or a \ at the end begins a new line. Up and Down show
earlier prompts. Esc stops the turn.
Ctrl-C clears the line. On an empty line it leaves the session; the agent
continues. Ctrl-Z suspends this program, and Ctrl-L redraws the screen.

  /diff            show the agent's changes
  /checkout [NAME] fetch the agent's branch into the local repository, as
                   harvest/ID or NAME
  /apply           apply the agent's changes to the work tree
  /output          show the whole output of the last tool
  /mcp             list the agent's MCP servers
  /mcp restart NAME
                   start an MCP server again
  /model NAME      change the model from the next prompt on; "default" is
                   the agent's own
  /effort NAME     change how much the model thinks, such as to high
  /approval NAME   change what needs your approval: none, edits, ask, plan
  /stop            stop the turn, as Esc does
  /hold            stop the turn, and hold the queued prompts
  /release         queue the held prompts again
  /cancel          cancel the last queued or held prompt
  /end [discard]   end the session; with discard, even if changes are lost
  /quit            leave; the session stays
  /help            show this text

The agent receives all other commands that begin with a slash. //help
sends it /help.`

// command runs a command of the conversation and reports whether the text is one.
func (m *Model) command(text string) bool {
	words := strings.Fields(text)
	name, rest := words[0], words[1:]
	switch {
	case name == "/checkout" && len(rest) <= 1:
		m.wait("fetching the agent's branch")
		m.act(Action{Act: Checkout, Text: strings.Join(rest, "")})
		return true
	case name == "/end" && (len(rest) == 0 || slices.Equal(rest, []string{"discard"})):
		m.wait("ending the session")
		m.act(Action{Act: End, Discard: len(rest) > 0})
		return true
	case name == "/mcp" && len(rest) == 2 && rest[0] == "restart":
		m.act(Action{Act: Restart, ID: rest[1]})
		return true
	case len(rest) == 1 && slices.Contains([]string{"/model", "/effort", "/approval"}, name):
		m.act(Action{Act: Change, Change: Option(name[1:], rest[0])})
		return true
	case len(rest) > 0:
		return false
	}
	switch name {
	case "/help":
		var all []string
		for line := range strings.SplitSeq(help+agentHelp(m), "\n") {
			all = append(all, wrap(line, m.room(), strings.Repeat(" ", indentOf(line)))...)
		}
		m.block(all...)
	case "/diff":
		m.wait("reading the changes")
		m.act(Action{Act: Diff})
	case "/mcp":
		m.act(Action{Act: Servers})
	case "/apply":
		m.wait("applying the changes")
		m.act(Action{Act: Apply})
	case "/output":
		m.showOutput()
	case "/stop":
		m.stop()
	case "/hold":
		m.hold()
	case "/release":
		m.release()
	case "/cancel":
		m.cancel()
	case "/quit", "/exit":
		m.Leave()
	default:
		return false
	}
	return true
}

// agentHelp returns the help about the agent's own commands; "" if it has not reported any. A command with the name of
// one of the conversation has a second slash.
func agentHelp(m *Model) string {
	if len(m.offered) == 0 {
		return ""
	}
	text := "\n\nThe agent offers these:\n"
	for _, c := range m.offered {
		name := FirstLine("/" + c.Name)
		if strings.Contains(help+" ", "\n  "+name+" ") {
			name = "/" + name
		}
		name = strings.TrimSpace(name + " " + FirstLine(c.Hint))
		text += "\n" + strings.TrimRight(fmt.Sprintf("  %-16s %s", name, FirstLine(c.Description)), " ")
	}
	return text
}

// indentOf returns where the explanation of a line of help begins.
func indentOf(line string) int {
	if strings.HasPrefix(line, "  /") {
		return 19
	}
	return 0
}

func (m *Model) showOutput() {
	if m.last == nil {
		m.block("No tool has run yet.")
		return
	}
	m.block(m.title(m.last))
	lines, _ := tail(m.last.output, 1<<30)
	if len(lines) == 0 {
		lines = []string{"no output"}
	}
	m.print(lines...)
}

// cancel takes the last queued or held prompt back into the editor.
func (m *Model) cancel() {
	all := slices.Concat(m.onHold, m.queued)
	if len(all) == 0 {
		m.block("No prompt is queued.")
		return
	}
	last := all[len(all)-1]
	m.act(Action{Act: Cancel, ID: last.ID, Text: last.Prompt})
	m.editor.set(last.Prompt)
}
