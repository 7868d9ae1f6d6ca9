package agents

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/pflag"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
	"github.com/RelevanceAI/harvest/internal/cli/worktree"
)

// newestSession is the value of --continue without a session.
const newestSession = "newest"

// recentDir is the subdirectory of the data directory with the newest sessions. It has one file for each
// directory in which a session began, with the id of the newest one.
const recentDir = "recent"

// isSession reports whether an argument is a session id, not a prompt.
func isSession(arg string) bool {
	return strings.HasPrefix(arg, "ses_") && !strings.ContainsAny(arg, " \t\n")
}

// splitContinue removes the session after --continue from the arguments. The flag's value is optional, so pflag
// leaves it there.
func (r *agentRun) splitContinue(args []string) ([]string, error) {
	if r.continues == newestSession {
		for i, arg := range args {
			if isSession(arg) {
				r.continues = arg
				args = append(append([]string{}, args[:i]...), args[i+1:]...)
				break
			}
		}
	}
	if len(args) > 1 {
		return nil, cli.Usage(r.cmd, "%s takes one prompt; quote it", r.cmd.CommandPath())
	}
	return args, nil
}

// converses reports whether the command is a conversation. It is not one with output into a pipe, with -o or
// with -d.
func (r *agentRun) converses() bool {
	if r.detach || r.cmd.Flags().Changed("output") {
		return false
	}
	_, in := cli.Terminal(r.In)
	_, out := cli.Terminal(r.Out)
	return r.plain || in && out
}

// recentFile returns the file with the newest session of a directory, or of the repository that contains it.
func (c commands) recentFile(ctx context.Context, dir string) (string, error) {
	cfg, err := c.Config()
	if err != nil {
		return "", err
	}
	top, err := worktree.TopLevel(ctx, dir)
	if err != nil {
		if top, err = filepath.Abs(dir); err != nil {
			return "", errors.Explainf(err, errors.Unavailable, "cannot determine the current directory: %v", err)
		}
	}
	sum := sha256.Sum256([]byte(c.Env(cli.EnvURL) + "\x00" + top))
	return filepath.Join(cfg.Data, recentDir, hex.EncodeToString(sum[:16])), nil
}

// rememberSession records a session as the newest of a directory. A failure is only logged, because the session
// exists.
func (c commands) rememberSession(ctx context.Context, dir, id string) {
	path, err := c.recentFile(ctx, dir)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		next := fmt.Sprintf("%s.%d", path, os.Getpid())
		if err = os.WriteFile(next, []byte(id+"\n"), 0o600); err == nil {
			err = os.Rename(next, path)
		}
	}
	if err != nil {
		c.Notef("harvest agent --continue cannot find session %s by directory: %v", id, err)
	}
}

// newest returns the newest session of the current directory, or NotFound.
func (c commands) newest(ctx context.Context) (string, error) {
	path, err := c.recentFile(ctx, ".")
	if err != nil {
		return "", err
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", errors.Remedy(errors.Newf(errors.NotFound, "no session began in this directory"),
			"name a session that harvest sessions lists")
	}
	return strings.TrimSpace(string(text)), nil
}

// goOn returns the session of --continue if it has not ended, so that its conversation continues. Otherwise it
// returns an empty session, and a new session continues with the files of the old one.
func (r *agentRun) goOn(ctx context.Context, server *client.Client, talks bool) (api.Session, error) {
	named := r.continues != newestSession
	r.req.Continues = r.continues
	if named && !talks {
		return api.Session{}, nil // the server decides which sessions can be continued
	}
	var err error
	if !named {
		if r.req.Continues, err = r.newest(ctx); err != nil {
			return api.Session{}, err
		}
	}
	s, err := server.Session(ctx, r.req.Continues)
	if err != nil || !s.Ended.IsZero() {
		return api.Session{}, err
	}
	var given error
	r.cmd.Flags().Visit(func(f *pflag.Flag) {
		switch f.Name {
		case "continue", "plain", "detach", "output":
			return
		}
		if slices.Contains(changeable, f.Name) { // resume changes them
			return
		}
		if r.cmd.LocalNonPersistentFlags().Lookup(f.Name) != nil {
			given = cli.Usage(r.cmd, "session %s has not ended, and keeps its settings; omit --%s", s.ID, f.Name)
		}
	})
	return s, given
}

// resume continues a session that has not ended.
func (r *agentRun) resume(ctx context.Context, server *client.Client, s api.Session, talks bool) error {
	r.rememberSession(ctx, ".", s.ID)
	if change := r.options.change(r.cmd, s); change != (api.SessionChange{}) {
		var err error
		if s, err = server.ChangeSession(ctx, s.ID, change); err != nil {
			return err
		}
	}
	t := turns{session: s.ID}
	if r.req.Prompt != "" {
		var err error
		if t.after, err = chat.LastEvent(ctx, server, s.ID); err != nil {
			return err
		}
		queued, err := server.Send(ctx, s.ID, r.req.Prompt)
		if err != nil {
			return err
		}
		t.prompt = queued.MessageID
	}
	switch {
	case r.detach:
		return r.Show(oneSession(s))
	case talks:
		return r.converse(ctx, server, s, r.plain)
	}
	return r.commands.follow(ctx, server, t, r.follow)
}

// converse runs a conversation with a session on the terminal, or in plain lines.
func (c commands) converse(ctx context.Context, server *client.Client, s api.Session, plain bool) error {
	in, inTerminal := cli.Terminal(c.In)
	_, outTerminal := cli.Terminal(c.Out)
	plain = plain || c.Env("TERM") == "dumb" || !inTerminal || !outTerminal
	o := chat.Options{
		Server: server, Session: s, In: c.In, Out: c.Out, Plain: plain, Color: !plain && c.Env("NO_COLOR") == "",
		Explain: func(end api.SessionEvent) error { return turnError(s.ID, end) },
		Checkout: func(ctx context.Context, branch string) (string, error) {
			made, stashes, err := c.takeBranch(ctx, server, ".", s.ID, "", branch)
			if err != nil {
				return "", err
			}
			return branchText(made, stashes), nil
		},
		Apply: func(ctx context.Context) (string, error) {
			return c.takeChanges(ctx, server, ".", s.ID, "", false, false)
		},
	}
	if !plain {
		o.Terminal = int(in.Fd())
		resized, stop := notifyResize()
		defer stop()
		o.Resized = resized
	}
	return chat.Run(ctx, o)
}

// branchText describes branches that were fetched.
func branchText(made string, stashes []string) string {
	text := "The agent's work is on the branch " + made + ": git merge or git switch it."
	for _, name := range stashes {
		text += "\nThe agent stashed changes: git stash apply " + name
	}
	return text
}

// notifyResize reports possible changes of the terminal's size.
func notifyResize() (resized <-chan struct{}, stop func()) {
	signals, changed := make(chan os.Signal, 1), make(chan struct{})
	over := make(chan struct{})
	cli.OnResize(signals)
	go func() {
		for {
			select {
			case <-signals:
			case <-over:
				return
			}
			select {
			case changed <- struct{}{}:
			case <-over:
				return
			}
		}
	}()
	return changed, func() { signal.Stop(signals); close(over) }
}
