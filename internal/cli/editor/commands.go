package editor

import (
	"context"
	"io"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// command is a command that the editor offers in a prompt.
type command struct {
	Name  string `json:"name"`
	About string `json:"description"`
	Input *input `json:"input,omitempty"`

	run func(t *thread, ctx context.Context, args string) (string, error)
}

type input struct {
	Hint string `json:"hint"`
}

// commands are Harvest's commands. They precede those of the agent, which are part of a prompt.
var commands = []command{
	{"apply", "Apply the agent's changes to the files of the editor",
		&input{"check, or 3way to write conflict markers"},
		(*thread).apply},
	{"checkout", "Fetch the agent's branch into the local repository", &input{"name of the branch"},
		(*thread).checkout},
	{"diff", "Show the agent's changes", nil, (*thread).diff},
	{"end", "End the session and its sandbox", &input{"discard to lose changes that were not taken"}, (*thread).end},
}

// offers returns the update with the commands of Harvest and of the agent. t.mu is held.
func offers(t *thread) update {
	all := slices.Clone(commands)
	for _, c := range t.offered {
		offer := command{Name: c.Name, About: chat.Plain(c.Description)}
		if c.Hint != "" {
			offer.Input = &input{chat.Plain(c.Hint)}
		}
		if !slices.ContainsFunc(commands, func(own command) bool { return own.Name == c.Name }) {
			all = append(all, offer)
		}
	}
	return update{Kind: "available_commands_update", Commands: all}
}

// command returns the work of a command of Harvest; nil for other prompts.
func (t *thread) command(text string) work {
	name, args, _ := strings.Cut(strings.TrimSpace(text), " ")
	at := slices.IndexFunc(commands, func(c command) bool { return "/"+c.Name == name })
	if at < 0 {
		return nil
	}
	return func(ctx context.Context) (any, func(), error) {
		said, err := commands[at].run(t, ctx, strings.TrimSpace(args))
		if err != nil {
			return nil, nil, turnFailed{err}
		}
		t.say(said)
		return map[string]string{"stopReason": "end_turn"}, nil, nil
	}
}

// now returns the current session and the directory of the editor.
func (t *thread) now() (session, dir string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.record.current(), t.record.Dir
}

func (t *thread) apply(ctx context.Context, args string) (string, error) {
	if args != "" && args != "check" && args != "3way" {
		return "", errors.Newf(errors.Invalid, "/apply takes nothing, check or 3way, not %.40q", args)
	}
	session, dir := t.now()
	return t.face.Apply(ctx, t.server, dir, session, args == "check", args == "3way")
}

func (t *thread) checkout(ctx context.Context, args string) (string, error) {
	session, dir := t.now()
	return t.face.Checkout(ctx, t.server, dir, session, args)
}

// maxDiff is the size of a patch that the editor shows, in bytes.
const maxDiff = 256 << 10

func (t *thread) diff(ctx context.Context, _ string) (string, error) {
	session, _ := t.now()
	patch, err := t.server.SessionDiff(ctx, session, "")
	if err != nil {
		return "", err
	}
	defer patch.Close()
	text, err := io.ReadAll(io.LimitReader(patch, maxDiff+1))
	switch {
	case err != nil:
		return "", err
	case len(text) == 0:
		return "The agent has changed nothing.", nil
	case len(text) > maxDiff:
		return fenced("diff", string(text[:maxDiff])) + "\nThe rest is left out: harvest diff " + session, nil
	}
	return fenced("diff", string(text)), nil
}

func (t *thread) end(ctx context.Context, args string) (string, error) {
	session, _ := t.now()
	end := t.server.EndSessionKeeping
	switch args {
	case "":
	case "discard":
		end = t.server.EndSession
	default:
		return "", errors.Newf(errors.Invalid, "/end takes nothing or discard, not %.40q", args)
	}
	if err := end(ctx, session); err != nil {
		if errors.KindOf(err) == errors.Conflict {
			return "", errors.Remedy(errors.Newf(errors.Conflict, "%s", errors.Message(err)),
				"take the changes with /apply or /checkout, or lose them with /end discard")
		}
		return "", err
	}
	return "The session has ended.", nil
}
