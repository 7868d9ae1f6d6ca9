// Package chat is a conversation with the agent of a session, on a terminal.
//
// Model is the whole conversation without a server and a terminal. Run connects the two. Finished output is
// printed once and scrolls away like any output. Only the running output, the prompt and the status line are
// redrawn.
package chat

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// Options of a conversation.
type Options struct {
	Server  *client.Client
	Session api.Session
	In      io.Reader
	Out     io.Writer
	// Terminal is the file descriptor of the terminal of In and Out. Plain conversations do not use it.
	Terminal int
	Resized  <-chan struct{} // the terminal's size may have changed
	Plain    bool            // read and write plain lines
	Color    bool
	// Explain returns the error of a failed turn, with its remedy.
	Explain func(api.SessionEvent) error
	// Checkout and Apply bring the agent's work into the local repository, and return a text for the user.
	Checkout func(ctx context.Context, branch string) (string, error)
	Apply    func(ctx context.Context) (string, error)
}

// maxLine is the longest input line of a plain conversation, in bytes.
const maxLine = 16 << 20

// refresh is the interval between two drawings.
const refresh = 100 * time.Millisecond

// escapeWait is how long to wait for the rest of an escape sequence. After that, a lone ESC is the Escape key.
const escapeWait = 50 * time.Millisecond

// outcome is the result of an action.
type outcome struct {
	action Action
	text   string
	err    error
}

// talk is a running conversation.
type talk struct {
	Options
	model    *Model
	events   chan api.Event
	broken   chan error
	outcomes chan outcome
	bytes    chan []byte     // read from In; closed at its end
	state    *term.State     // state of the terminal before
	changing []Act           // running actions that change something
	over     context.Context // ends with the conversation
}

// Run runs a conversation until the user leaves, the session ends, or ctx ends, which counts as leaving.
func Run(ctx context.Context, o Options) error {
	t, cancel, err := open(ctx, o)
	if err != nil {
		return err
	}
	defer cancel()
	if o.Plain {
		return t.lines(ctx)
	}
	return t.screen(ctx)
}

func open(ctx context.Context, o Options) (*talk, func(), error) {
	last, err := LastEvent(ctx, o.Server, o.Session.ID)
	if err != nil {
		return nil, nil, err
	}
	t := &talk{
		Options: o, events: make(chan api.Event, 256), broken: make(chan error, 1),
		outcomes: make(chan outcome, 16), bytes: make(chan []byte),
	}
	t.model = NewModel(o.Session, last, o.Color, o.Plain, o.Explain)
	over, cancel := context.WithCancel(context.WithoutCancel(ctx))
	t.over = over
	go t.follow(over)
	return t, cancel, nil
}

// LastEvent returns the ID of a session's newest event; 0 if there is none.
func LastEvent(ctx context.Context, server *client.Client, id string) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	for e, err := range server.Events(ctx, client.Follow{Stream: id, Tail: 1}) {
		return e.ID, err
	}
	return 0, nil
}

// follow sends the session's events to the conversation.
func (t *talk) follow(ctx context.Context) {
	for e, err := range t.Server.Events(ctx, client.Follow{Stream: t.Session.ID, Attended: true}) {
		if err != nil {
			if ctx.Err() == nil {
				t.broken <- err
			}
			return
		}
		select {
		case t.events <- e:
		case <-ctx.Done():
			return
		}
	}
}

// do runs an action in the background.
func (t *talk) do(ctx context.Context, a Action) {
	switch a.Act {
	case Send, Stop, Hold, Release, Answer, Cancel, End:
		ctx = context.WithoutCancel(ctx)
		t.changing = append(t.changing, a.Act)
	}
	go func() {
		text, err := t.perform(ctx, a)
		select {
		case t.outcomes <- outcome{a, text, err}:
		case <-t.over.Done():
		}
	}()
}

// servers describes the agent's MCP servers, one a line.
func (t *talk) servers(ctx context.Context) (string, error) {
	all, err := t.Server.SessionMCP(ctx, t.Session.ID)
	width := 0
	for _, s := range all {
		width = max(width, len(s.Name))
	}
	var text strings.Builder
	for _, s := range all {
		state := Plain(s.Status)
		if s.Status == "connected" {
			state = "ready"
		}
		if s.Error != "" {
			state += ": " + FirstLine(s.Error)
		}
		fmt.Fprintf(&text, "%-*s  %s\n", width, Plain(s.Name), state)
	}
	return text.String(), err
}

func (t *talk) perform(ctx context.Context, a Action) (text string, err error) {
	id := t.Session.ID
	switch a.Act {
	case Send:
		_, err = t.Server.Send(ctx, id, a.Text)
	case Stop:
		err = t.Server.StopSession(ctx, id)
	case Hold:
		err = t.Server.StopSessionHolding(ctx, id)
	case Release:
		err = t.Server.ReleaseMessages(ctx, id, "")
	case Cancel:
		err = t.Server.CancelMessage(ctx, id, a.ID)
	case Answer:
		err = t.Server.Answer(ctx, id, a.ID, a.Answer)
	case Servers:
		return t.servers(ctx)
	case Restart:
		err = t.Server.RestartSessionMCP(ctx, id, a.ID)
	case Change:
		_, err = t.Server.ChangeSession(ctx, id, a.Change)
	case Checkout:
		text, err = t.Checkout(ctx, a.Text)
	case Apply:
		text, err = t.Apply(ctx)
	case End:
		if a.Discard {
			return "", t.Server.EndSession(ctx, id)
		}
		return "", t.Server.EndSessionKeeping(ctx, id)
	case Diff:
		patch, err := t.Server.SessionDiff(ctx, id, "")
		if err != nil {
			return "", err
		}
		defer patch.Close()
		all, err := io.ReadAll(patch)
		return string(all), err
	}
	return text, err
}

// leaveTime is how long leaving waits for the server.
const leaveTime = 10 * time.Second

// settle runs the last actions and waits for those that change something, such as the end of a session without
// a prompt.
func (t *talk) settle(ctx context.Context, actions []Action) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaveTime)
	defer cancel()
	for _, a := range actions {
		t.do(ctx, a)
	}
	for len(t.changing) > 0 {
		select {
		case o := <-t.outcomes:
			t.outcome(o)
		case <-ctx.Done():
			return
		}
	}
}

// outcome processes the result of an action.
func (t *talk) outcome(o outcome) {
	if i := slices.Index(t.changing, o.action.Act); i >= 0 {
		t.changing = slices.Delete(t.changing, i, i+1)
	}
	t.model.Result(o.action, o.text, o.err)
}

// read reads In until it ends.
func (t *talk) read(ctx context.Context, lines bool) {
	defer close(t.bytes)
	send := func(data []byte) bool {
		select {
		case t.bytes <- data:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if lines {
		scanner := bufio.NewScanner(t.In)
		scanner.Buffer(nil, maxLine)
		for scanner.Scan() {
			if !send([]byte(scanner.Text())) {
				return
			}
		}
		return
	}
	for {
		buf := make([]byte, 4096) // the receiver keeps the buffer
		n, err := t.In.Read(buf)
		if n > 0 && !send(buf[:n]) || err != nil {
			return
		}
	}
}

// screen runs the conversation on a terminal.
func (t *talk) screen(ctx context.Context) (err error) {
	s := &screen{out: t.Out}
	if err := t.raw(s); err != nil {
		return err
	}
	defer func() {
		_, actions := t.model.Take()
		t.settle(ctx, actions)
		printed, _ := t.model.Take()
		err = errors.Join(err, t.cooked(s, printed))
	}()
	go t.read(t.over, false)
	return t.loop(ctx, s)
}

// raw puts the terminal into raw mode.
func (t *talk) raw(s *screen) (err error) {
	if t.state, err = term.MakeRaw(t.Terminal); err != nil {
		return errors.Wrapf(err, "prepare the terminal")
	}
	t.resize(s)
	if _, err := io.WriteString(t.Out, begin); err != nil {
		return errors.Join(errors.Wrapf(err, "write to the terminal"), term.Restore(t.Terminal, t.state))
	}
	return nil
}

// cooked removes the frame, prints lines, and restores the terminal.
func (t *talk) cooked(s *screen, printed []string) error {
	return errors.Join(s.close(printed), term.Restore(t.Terminal, t.state))
}

// loop draws the screen and processes the next input, until the conversation is over.
func (t *talk) loop(ctx context.Context, s *screen) error {
	tick := time.NewTicker(refresh)
	defer tick.Stop()
	var keys decoder
	escape := time.NewTimer(time.Hour)
	defer escape.Stop()
	for {
		t.model.Tick(time.Now())
		printed, actions := t.model.Take()
		if err := s.draw(printed, t.model.View()); err != nil {
			return errors.Wrapf(err, "write to the terminal")
		}
		for _, a := range actions {
			switch a.Act {
			case Redraw:
				_, _ = io.WriteString(t.Out, "\x1b[H\x1b[2J")
				s.last = frame{}
			case Suspend:
				if err := t.suspend(s); err != nil {
					return err
				}
			default:
				t.do(ctx, a)
			}
		}
		if t.model.Done() {
			return nil
		}
		select {
		case <-ctx.Done():
			t.model.Leave()
		case e := <-t.events:
			if err := t.take(e); err != nil {
				return err
			}
		case err := <-t.broken:
			return err
		case o := <-t.outcomes:
			t.outcome(o)
		case data, ok := <-t.bytes:
			if !ok {
				t.model.Leave()
				continue
			}
			for _, k := range keys.decode(data) {
				t.model.Key(k)
			}
			if keys.waits() {
				escape.Reset(escapeWait)
			}
		case <-escape.C:
			for _, k := range keys.flush() {
				t.model.Key(k)
			}
		case <-t.Resized:
			t.resize(s)
		case <-tick.C:
		}
	}
}

// take processes an event and those already queued, so that one drawing shows them all.
func (t *talk) take(e api.Event) error {
	t.model.Tick(time.Now())
	for n := 0; ; n++ {
		if err := t.model.Event(e); err != nil {
			return err
		}
		if n == cap(t.events) {
			return nil
		}
		select {
		case e = <-t.events:
		default:
			return nil
		}
	}
}

func (t *talk) resize(s *screen) {
	if width, height, err := term.GetSize(t.Terminal); err == nil && width > 0 && height > 0 {
		t.model.Resize(width, height)
		s.width = width
	}
}
