package chat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// Act is an action that the conversation requests from the server or from its caller.
type Act string

// The acts, and the fields of Action that are set.
const (
	Send     Act = "send"     // Text: a prompt
	Stop     Act = "stop"     // the turn
	Hold     Act = "hold"     // the turn is stopped, and the queued prompts are held
	Release  Act = "release"  // the prompts that are held
	Cancel   Act = "cancel"   // ID: a prompt that is queued or held
	Answer   Act = "answer"   // ID, Answer
	Diff     Act = "diff"     // the agent's changes
	Checkout Act = "checkout" // Text: name of the branch, or ""
	Apply    Act = "apply"    // changes to the files of the work tree
	End      Act = "end"      // Discard
	Servers  Act = "servers"  // the agent's MCP servers
	Restart  Act = "restart"  // ID: name of an MCP server
	Change   Act = "change"   // Change: options of the session
	Redraw   Act = "redraw"   // the screen
	Suspend  Act = "suspend"  // the program
)

// Action is an Act with its arguments.
type Action struct {
	Act     Act
	ID      string
	Text    string
	Answer  api.AnswerRequest
	Change  api.SessionChange
	Discard bool
}

// Model is a conversation on a screen: events, keys and results go in, lines and actions come out. It knows no
// server and no terminal. It is not safe for concurrent use.
type Model struct {
	style
	plain         bool // no live part of the screen, and no marks that a screen reader would read
	width, height int
	now           time.Time
	explain       func(api.SessionEvent) error // explains a failed turn; may be nil

	id     string
	status string
	stage  string // last step of the session's start
	first  int64  // events up to this id are history
	seen   bool   // the history was replayed
	ended  bool
	asked  int // prompts sent in total

	out     []string // lines to print permanently
	actions []Action
	spaced  bool // the last line printed is blank
	quit    bool

	turn     string    // message of the running turn
	since    time.Time // start of the turn
	heard    time.Time // when the agent began its current activity
	stopping bool
	retrying string
	queued   []api.Message
	onHold   []api.Message // prompts that wait for a release
	sending  []string      // prompts on their way to the server
	pending  string        // current wait other than for the agent
	pendedAt time.Time

	texts     map[string]*message
	order     []string // ids of unfinished texts, in order
	tools     map[string]*tool
	running   []string // running calls, in order
	last      *tool    // the last call that ended
	files     map[string]bool
	questions []*question
	answered  map[string]bool // questions that this terminal has answered, until the server says so

	servers map[string]bool // whether each MCP server of the agent is ready; created when needed
	offered []api.AgentCommand
	cost    float64

	editor editor
}

// message is an agent's text in progress.
type message struct {
	rest     string // not printed yet
	thinking bool
	any      bool // something was printed
	deltas   bool
}

// NewModel returns a conversation with a session. Events up to first are history. color enables colours. With
// plain, the output is only ever appended to. explain may be nil.
func NewModel(s api.Session, first int64, color, plain bool, explain func(api.SessionEvent) error) *Model {
	return &Model{
		style: style{color}, plain: plain, width: 80, height: 24, id: s.ID, status: s.Status,
		first: first, seen: first == 0, spaced: true,
		texts: map[string]*message{}, tools: map[string]*tool{}, answered: map[string]bool{}, files: map[string]bool{},
		explain: explain,
	}
}

// Resize sets the size of the screen.
func (m *Model) Resize(width, height int) { m.width, m.height = max(width, 20), max(height, 4) }

// Tick sets the current time.
func (m *Model) Tick(now time.Time) { m.now = now }

// Take returns the lines to print permanently and the actions to run, each once.
func (m *Model) Take() ([]string, []Action) {
	if !m.seen {
		return nil, m.takeActions()
	}
	out := m.out
	m.out = nil
	return out, m.takeActions()
}

func (m *Model) takeActions() []Action {
	actions := m.actions
	m.actions = nil
	return actions
}

// Done reports whether the conversation is over, because the user left or the session ended.
func (m *Model) Done() bool { return m.quit }

// room is the maximum width of lines; 0 means no limit. The last column stays free, because terminals differ in
// its handling.
func (m *Model) room() int {
	if m.plain {
		return 0
	}
	return m.width - 1
}

// print prints lines permanently.
func (m *Model) print(lines ...string) {
	for _, line := range lines {
		m.out = append(m.out, line)
		m.spaced = line == ""
	}
}

// block prints lines after a blank one.
func (m *Model) block(lines ...string) {
	if len(lines) == 0 {
		return
	}
	if !m.spaced {
		m.print("")
	}
	m.print(lines...)
}

// notef prints a note of Harvest.
func (m *Model) notef(format string, args ...any) {
	m.print(wrap(m.in(dim, Plain(fmt.Sprintf(format, args...))), m.room(), "  ")...)
}

// fail prints an error and its remedy.
func (m *Model) fail(err error) {
	m.block(wrap(m.in(red, "error: "+Plain(errors.Message(err))), m.room(), "  ")...)
	if remedy := errors.RemedyOf(err); remedy != "" {
		m.print(wrap("  try: "+Plain(remedy), m.room(), "  ")...)
	}
}

func (m *Model) act(a Action) { m.actions = append(m.actions, a) }

// wait sets the reason for a wait other than for the agent; "" for none.
func (m *Model) wait(what string) { m.pending, m.pendedAt = what, m.now }

// busy reports whether a turn is running.
func (m *Model) busy() bool { return m.turn != "" }

// Result reports the outcome of an action. text is its result.
func (m *Model) Result(a Action, text string, err error) {
	switch a.Act {
	case Send:
		if i := slices.Index(m.sending, a.Text); i >= 0 {
			m.sending = slices.Delete(m.sending, i, i+1)
		}
		if err != nil && m.editor.text == "" {
			m.editor.set(a.Text)
		}
	case Stop, Hold:
		m.stopping = m.stopping && err == nil
	case Diff:
		m.wait("")
		if err == nil {
			m.showDiff(text)
		}
	case Checkout, Apply, End:
		m.wait("")
		if err == nil && text != "" {
			m.block(wrap(Plain(strings.TrimSpace(text)), m.room(), "  ")...)
		}
	}
	if a.Act == Servers && err == nil {
		text = cmp.Or(text, "The agent has no MCP servers, or does not run yet.")
		m.block(strings.Split(strings.TrimRight(text, "\n"), "\n")...)
	}
	if err != nil {
		m.fail(err)
	}
}

// showDiff prints a patch in colours.
func (m *Model) showDiff(patch string) {
	patch = strings.TrimRight(clean(patch), "\n")
	if patch == "" {
		m.block("The agent has made no changes.")
		return
	}
	var all []string
	for line := range strings.SplitSeq(patch, "\n") {
		all = append(all, m.diffLine(line))
	}
	m.block(all...)
}

// Leave ends the conversation. The session continues.
func (m *Model) Leave() {
	if m.quit {
		return
	}
	m.quit = true
	if m.ended {
		return
	}
	if m.asked == 0 && len(m.sending) == 0 {
		m.act(Action{Act: End, Discard: false})
		m.block("No prompt was sent; the session ends.")
		return
	}
	text := "Session " + m.id + " stays."
	if m.busy() || len(m.queued) > 0 {
		text = "The agent continues in session " + m.id + "."
	}
	m.block(text+" To return:", "  harvest agent --continue "+m.id)
}
