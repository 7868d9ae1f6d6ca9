// Package program is the program that the scripted agent runs in a sandbox. Lines of a prompt that begin with a slash
// are orders. The program answers the remaining lines and writes them into a file, so that there are changes to hand
// back.
package program

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
)

// File is the file in the repository's directory to which the agent writes its prompts.
const File = "SCRIPTED-AGENT.md"

// Orders lists the orders that a line of a prompt may contain.
const Orders = `/say TEXT, /think TEXT, /run COMMAND, /write PATH TEXT, /ask QUESTION | ANSWER | ANSWER (more ` +
	`questions after ||), /approve COMMAND, /agent NAME ORDER, /sleep SECONDS, /fail TEXT, /exit CODE`

// maxLine is the length limit for a line of input, in bytes.
const maxLine = 64 << 20

// Main runs the program until its input or ctx ends, and returns its exit code. args are the arguments after the
// program's name.
func Main(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet(scripted.Program, flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("dir", ".", "directory of the repository")
	conversation := flags.String("conversation", "scripted-1", "name of the conversation")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	p := &program{dir: *dir, conversation: *conversation, out: stdout, answers: make(chan scripted.Request)}
	err := p.run(ctx, stdin)
	var code exitCode
	switch {
	case errors.As(err, &code):
		return int(code)
	case err != nil:
		fmt.Fprintln(stderr, err)
		return 1
	}
	return 0
}

// exitCode makes the program exit in the middle of a turn.
type exitCode int

func (c exitCode) Error() string { return "exit " + strconv.Itoa(int(c)) }

type program struct {
	dir          string
	conversation string
	out          io.Writer
	answers      chan scripted.Request
	made         int    // number of generated IDs
	parent       string // tool call of the sub-agent at work; "" for the agent itself
}

// run serves prompts in sequence, while interrupts and answers reach the current turn.
func (p *program) run(ctx context.Context, stdin io.Reader) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	prompts := make(chan scripted.Request)
	interrupts := make(chan struct{}, 1)
	read := make(chan error, 1)
	go func() {
		defer close(prompts)
		read <- p.read(ctx, stdin, prompts, interrupts)
	}()
	for prompt := range prompts {
		select {
		case <-interrupts: // it came when no turn was under way
		default:
		}
		turn, cancel := context.WithCancel(ctx)
		go func() {
			select {
			case <-interrupts:
				cancel()
			case <-turn.Done():
			}
		}()
		err := p.turn(turn, prompt.Text)
		cancel()
		if err != nil {
			return err
		}
	}
	return <-read
}

// read dispatches the input.
func (p *program) read(ctx context.Context, stdin io.Reader, prompts chan<- scripted.Request,
	interrupts chan<- struct{}) error {
	lines := bufio.NewScanner(stdin)
	lines.Buffer(nil, maxLine)
	var queue []scripted.Request // queued prompts, so that the lines after them are read at once
	in := make(chan scripted.Request)
	failed := make(chan error, 1)
	go func() {
		defer close(in)
		for lines.Scan() {
			var r scripted.Request
			if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
				failed <- errors.Errorf("invalid request in the input: %v", err)
				return
			}
			select {
			case in <- r:
			case <-ctx.Done():
				return
			}
		}
		failed <- lines.Err()
	}()
	for in != nil || len(queue) > 0 {
		var next scripted.Request
		var out chan<- scripted.Request
		if len(queue) > 0 {
			next, out = queue[0], prompts
		}
		select {
		case r, ok := <-in:
			switch {
			case !ok:
				in = nil
			case r.Op == "prompt":
				queue = append(queue, r)
			case r.Op == "interrupt":
				select {
				case interrupts <- struct{}{}:
				default:
				}
			case r.Op == "answer" && r.Answer != nil:
				select {
				case p.answers <- r:
				case <-ctx.Done():
				}
			}
		case out <- next:
			queue = queue[1:]
		case <-ctx.Done():
			return nil
		}
	}
	return <-failed
}

func (p *program) emit(e agent.Event) {
	e.Parent = p.parent
	if data, err := json.Marshal(e); err == nil {
		_, _ = p.out.Write(append(data, '\n')) // if the reader is gone, the input ends, too
	}
}

func (p *program) id(prefix string) string {
	p.made++
	return fmt.Sprintf("%s_%d", prefix, p.made)
}

// turn executes a prompt. It returns an error only if the program must exit.
func (p *program) turn(ctx context.Context, prompt string) error {
	p.emit(agent.Event{Type: agent.Ready, Conversation: p.conversation, Model: scripted.Model})
	var plain []string
	var last string
	for text := range strings.Lines(prompt) {
		order, isOrder := strings.CutPrefix(strings.TrimRight(text, "\r\n"), "/")
		if !isOrder {
			plain = append(plain, text)
			continue
		}
		said, err := p.order(ctx, order)
		if said != "" {
			last = said
		}
		var code exitCode
		switch {
		case errors.As(err, &code):
			return err
		case ctx.Err() != nil:
			p.emit(agent.Event{Type: agent.Done, Failed: true, Interrupted: true, Reason: "interrupted",
				Usage: &agent.Usage{}})
			return nil
		case err != nil:
			p.emit(agent.Event{Type: agent.Done, Failed: true, Text: errors.Message(err), Reason: "failed",
				Usage: &agent.Usage{}})
			return nil
		}
	}
	if heard := strings.TrimSpace(strings.Join(plain, "")); heard != "" {
		last = "I am the scripted agent: no model is at work. You said: " + heard
		p.say(last, false)
		old, err := os.ReadFile(filepath.Join(p.dir, File))
		if err != nil && !errors.IsNotExist(err) {
			return errors.Wrapf(err, "read %s", File)
		}
		p.write(File, string(old)+"- "+strings.ReplaceAll(heard, "\n", "\n  ")+"\n")
	}
	p.emit(agent.Event{Type: agent.Done, Text: last, Reason: "completed", Usage: &agent.Usage{}})
	return nil
}

// order executes one order and returns the text that was said.
func (p *program) order(ctx context.Context, order string) (string, error) {
	word, rest, _ := strings.Cut(order, " ")
	switch word {
	case "say", "think":
		p.say(rest, word == "think")
		return rest, nil
	case "run":
		p.run1(ctx, rest)
		return "", nil
	case "write":
		path, text, _ := strings.Cut(rest, " ")
		p.write(path, text+"\n")
		return "", nil
	case "ask":
		return "", p.ask(ctx, rest)
	case "approve":
		return "", p.approve(ctx, rest)
	case "agent":
		name, order, _ := strings.Cut(rest, " ")
		return "", p.delegate(ctx, name, strings.TrimPrefix(order, "/"))
	case "sleep":
		seconds, err := strconv.ParseFloat(rest, 64)
		if err != nil {
			return "", errors.Newf(errors.Invalid, "/sleep needs a number of seconds, not %.40q", rest)
		}
		select {
		case <-time.After(time.Duration(seconds * float64(time.Second))):
		case <-ctx.Done():
		}
		return "", nil
	case "fail":
		return "", errors.Newf(errors.Unavailable, "%s", rest)
	case "exit":
		code, err := strconv.Atoi(rest)
		if err != nil {
			return "", errors.Newf(errors.Invalid, "/exit needs a number, not %.40q", rest)
		}
		return "", exitCode(code)
	}
	return "", errors.Newf(errors.Invalid, "the scripted agent does not know /%.40s; it knows %s", word, Orders)
}

// maxPieces is the approximate maximum number of pieces of a text.
const maxPieces = 1000

// say prints a text in pieces of a word, as models do; long texts in larger pieces.
func (p *program) say(text string, thinking bool) {
	id := p.id("msg")
	p.emit(agent.Event{Type: agent.MessageStarted, ID: id, Thinking: thinking})
	piece, most := "", len(text)/maxPieces
	for _, word := range strings.SplitAfter(text, " ") {
		if piece += word; len(piece) >= most {
			p.emit(agent.Event{Type: agent.MessageDelta, ID: id, Text: piece})
			piece = ""
		}
	}
	if piece != "" {
		p.emit(agent.Event{Type: agent.MessageDelta, ID: id, Text: piece})
	}
	p.emit(agent.Event{Type: agent.MessageCompleted, ID: id, Text: text, Thinking: thinking})
}

func input(v any) json.RawMessage {
	data, err := json.Marshal(v)
	if err != nil {
		return nil
	}
	return data
}

// run1 runs a shell command. Its descendants are killed with it.
func (p *program) run1(ctx context.Context, command string) {
	id := p.id("call")
	p.emit(agent.Event{Type: agent.ToolStarted, ID: id, Tool: "Bash",
		Input: input(map[string]string{"command": command})})
	cmd := exec.CommandContext(ctx, "/bin/sh", "-c", command)
	cmd.Dir = p.dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	var all bytes.Buffer
	out := &pieces{func(text string) {
		all.WriteString(text)
		p.emit(agent.Event{Type: agent.ToolOutput, ID: id, Text: text})
	}}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	done := agent.Event{Type: agent.ToolCompleted, ID: id, Tool: "Bash", Text: all.String(), Failed: err != nil}
	if err != nil {
		done.Text += err.Error()
	}
	p.emit(done)
}

// pieces is a writer that passes each piece to tell.
type pieces struct{ tell func(text string) }

func (w *pieces) Write(b []byte) (int, error) {
	w.tell(string(b))
	return len(b), nil
}

// write writes a file of the repository.
func (p *program) write(path, text string) {
	id := p.id("call")
	p.emit(agent.Event{Type: agent.ToolStarted, ID: id, Tool: "Write",
		Input: input(map[string]string{"file_path": path, "content": text})})
	done := agent.Event{Type: agent.ToolCompleted, ID: id, Tool: "Write", Text: "written"}
	full := path
	if !filepath.IsAbs(path) {
		full = filepath.Join(p.dir, path)
	}
	_, before := os.Stat(full)
	err := os.MkdirAll(filepath.Dir(full), 0o755)
	if err == nil {
		err = os.WriteFile(full, []byte(text), 0o644)
	}
	if err != nil {
		done.Failed, done.Text = true, err.Error()
	}
	p.emit(done)
	if err == nil {
		p.emit(agent.Event{Type: agent.FileChanged, ID: id, Path: full, Created: before != nil})
	}
}

// ask asks a person and prints the answers.
func (p *program) ask(ctx context.Context, text string) error {
	var questions []agent.Question
	for one := range strings.SplitSeq(text, "||") {
		parts := strings.Split(one, "|")
		q := agent.Question{Text: strings.TrimSpace(parts[0])}
		for _, option := range parts[1:] {
			q.Options = append(q.Options, agent.Option{Label: strings.TrimSpace(option)})
		}
		questions = append(questions, q)
	}
	id := p.id("ask")
	p.emit(agent.Event{Type: agent.Asked, ID: id, Tool: "AskUserQuestion", Questions: questions})
	a, err := p.answer(ctx, id)
	if err != nil {
		return err
	}
	if !a.Allow {
		p.say("No answer: "+a.Message, false)
		return nil
	}
	var answers []string
	for _, q := range questions {
		answers = append(answers, a.Answers[q.Text])
	}
	p.say("The answer is "+strings.Join(answers, ", then ")+".", false)
	return nil
}

// answer waits for the answer to a question.
func (p *program) answer(ctx context.Context, id string) (*agent.Answer, error) {
	for {
		select {
		case r := <-p.answers:
			if r.ID == id {
				return r.Answer, nil
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// approve runs a shell command if a person allows it.
func (p *program) approve(ctx context.Context, command string) error {
	id := p.id("ask")
	p.emit(agent.Event{Type: agent.Asked, ID: id, Tool: "Bash", Input: input(map[string]string{"command": command})})
	a, err := p.answer(ctx, id)
	switch {
	case err != nil:
		return err
	case a.Allow:
		p.run1(ctx, command)
	default:
		p.say("Denied: "+a.Message, false)
	}
	return nil
}

// delegate executes an order as a sub-agent.
func (p *program) delegate(ctx context.Context, name, order string) error {
	id := p.id("call")
	p.emit(agent.Event{Type: agent.ToolStarted, ID: id, Tool: "Task",
		Input: input(map[string]string{"subagent_type": name, "description": order})})
	above := p.parent
	p.parent = id
	text, err := p.order(ctx, order)
	p.parent = above
	var code exitCode
	if !errors.As(err, &code) {
		p.emit(agent.Event{Type: agent.ToolCompleted, ID: id, Tool: "Task", Text: text, Failed: err != nil})
	}
	return err
}
