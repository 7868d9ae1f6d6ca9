package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
)

func (c *cli) agentCommand() *cobra.Command {
	var req api.SessionRequest
	var box sandboxFlags
	var where processFlags
	var repo, follow string
	var keep bool
	cmd := &cobra.Command{
		Use:   "agent [flags] PROMPT",
		Short: "Have an agent work on a repository in a sandbox of its own",
		Long: `Makes a session: a sandbox with the repository in it, and an agent that is sent the prompt. What the agent does is shown as it happens;
Ctrl-C leaves, and the agent goes on. Its changes are on a branch of their own, harvest/ID, which "harvest checkout" brings into the local
repository, and "harvest diff" shows.

The repository is the current directory's, as it is committed, or --repo; --repo none begins with an empty one. The agent "scripted" has no
model and needs no key: it is there to try things out.`,
		Example: `  harvest agent "fix the failing test"
  harvest agent --repo https://github.com/owner/name --agent opencode "describe the code"
  harvest agent --agent scripted "say hello"`,
		Args: count(1, 1, "one prompt; quote it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			sandbox, err := box.request(cmd)
			if err != nil {
				return err
			}
			if sandbox.Env, err = c.environment(where.envFile, where.env); err != nil {
				return err
			}
			req.Sandbox, req.Prompt = sandbox, args[0]
			if args[0] == "-" {
				text, err := io.ReadAll(io.LimitReader(c.in, api.MaxBody))
				if err != nil {
					return errors.Explainf(err, errors.Invalid, "the prompt cannot be read from standard input")
				}
				req.Prompt = string(text)
			}
			if strings.TrimSpace(req.Prompt) == "" {
				return usage(cmd, "the prompt is empty")
			}
			if err := c.repository(ctx, repo, &req); err != nil {
				return err
			}
			server, err := c.connect(ctx)
			if err != nil {
				return err
			}
			defer server.Close()
			made, err := server.CreateSession(ctx, req)
			if err != nil {
				return err
			}
			if keep {
				return c.show(oneSession(made))
			}
			c.hint("session %s; Ctrl-C leaves it, harvest stop %s stops it", made.ID, made.ID)
			return c.followTurn(ctx, server, made.ID, 0, 0, follow)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&repo, "repo", ".", "address or directory of the repository, or none")
	flags.StringVar(&req.Branch, "branch", "", "branch to begin on (default: the repository's)")
	flags.IntVar(&req.Depth, "depth", 0, "commits of history; 0 means all")
	flags.StringVar(&req.Agent, "agent", "", "claude, opencode or scripted (default: claude)")
	flags.StringVar(&req.Model, "model", "", "model of the agent (default: the agent's own)")
	flags.StringVar(&req.Approval, "approval", "", "what the agent asks before it does it: edits, ask or plan (default: nothing, the sandbox is the boundary)")
	flags.IntVar(&req.Limits.Turns, "max-turns", 0, "turns of the session; 0 means no limit")
	flags.Float64Var(&req.Limits.Seconds, "max-seconds", 0, "seconds of a turn; 0 means no limit")
	flags.Float64Var(&req.Limits.USD, "max-usd", 0, "cost of the session; 0 means no limit")
	flags.BoolVarP(&keep, "detach", "d", false, "print the session and return")
	flags.StringVarP(&follow, "output", "o", "text", "text, or json for events")
	box.add(cmd)
	where.addEnv(cmd)
	return cmd
}

// repository fills in where the repository comes from: an address, or the commits of a directory.
func (c *cli) repository(ctx context.Context, repo string, req *api.SessionRequest) error {
	if repo == "none" {
		return nil
	}
	info, err := os.Stat(repo)
	if err != nil || !info.IsDir() {
		if !strings.Contains(repo, ":") {
			return errors.Remedy(errors.Newf(errors.Invalid, "there is no repository %q", repo), "give a directory, an address such as https://github.com/owner/name, or none")
		}
		req.Repo = repo
		return nil
	}
	if _, err := git(ctx, repo, "rev-parse", "--verify", "--quiet", "HEAD"); err != nil {
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "%s is no git repository with a commit", repo), "run it in one, or give --repo ADDRESS or --repo none")
	}
	if origin, err := git(ctx, repo, "remote", "get-url", "origin"); err == nil {
		if text := strings.TrimSpace(string(origin)); strings.Contains(text, "://") && !strings.Contains(text, "@") || strings.HasPrefix(text, "git@") {
			req.Repo = text
		}
	}
	refs := []string{"HEAD"}
	if req.Branch == "" {
		if name, err := git(ctx, repo, "symbolic-ref", "--quiet", "--short", "HEAD"); err == nil {
			req.Branch = strings.TrimSpace(string(name))
		}
	}
	if req.Branch != "" {
		refs = append(refs, "refs/heads/"+req.Branch)
	}
	if req.Bundle, err = git(ctx, repo, append([]string{"bundle", "create", "--quiet", "-"}, refs...)...); err != nil {
		return errors.Explainf(err, errors.Invalid, "the repository cannot be read")
	}
	if len(req.Bundle) > api.MaxBundle {
		return errors.Remedy(errors.Newf(errors.Invalid, "the repository takes %d MiB, %d are allowed", len(req.Bundle)>>20, api.MaxBundle>>20), "give its address with --repo")
	}
	if status, err := git(ctx, repo, "status", "--porcelain"); err == nil && len(status) > 0 {
		c.hint("what is not committed stays here; the agent sees the last commit")
	}
	return nil
}

// git runs git in one of the user's own repositories and returns what it printed.
func git(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", append([]string{"-C", dir}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, errors.Explainf(err, errors.Invalid, "git %s: %s", args[0], strings.TrimSpace(stderr.String()))
	}
	return out, nil
}

func oneSession(s api.Session) view {
	return view{json: s, names: []string{s.ID}, header: []string{"ID", "STATUS", "AGENT", "TITLE"}, rows: [][]string{{s.ID, s.Status, s.Agent, s.Title}}}
}

// followTurn shows what happens in a session behind an event, until those up to last were shown and no prompt among them is left.
func (c *cli) followTurn(ctx context.Context, server *client.Client, id string, after, last int64, format string) error {
	show := newTurnView(c, format)
	defer show.close()
	pending := map[string]bool{}
	var end *api.SessionEvent // of the last turn
	for e, err := range server.Events(ctx, client.Follow{Stream: id, After: after}) {
		if err != nil {
			if ctx.Err() != nil {
				c.hint("the agent goes on: harvest attach %s", id)
			}
			return err
		}
		data, err := show.event(e)
		if err != nil {
			return err
		}
		switch e.Type {
		case "message.queued":
			pending[data.MessageID] = true
		case "message.cancelled":
			delete(pending, data.MessageID)
		case "done":
			delete(pending, data.MessageID)
			end = &data
		case "agent.asked":
			c.hint("answer with: harvest answer %s %s", id, data.ID)
		case "session.ended":
			if data.Status == "failed" {
				return errors.Newf(errors.Unavailable, "the session failed: %s", data.Reason)
			}
			return nil
		}
		if end != nil && len(pending) == 0 && e.ID >= last {
			return c.turnResult(id, *end)
		}
	}
	return nil
}

// turnResult is the error of a turn that has not ended well.
func (c *cli) turnResult(id string, end api.SessionEvent) error {
	switch {
	case end.Interrupted:
		return errors.Newf(errors.Canceled, "the turn was interrupted: %s", end.Reason)
	case end.Failed:
		return errors.Newf(errors.Unavailable, "the turn failed: %s", orElse(end.Text, end.Reason))
	}
	c.hint("changes: harvest diff %s, harvest checkout %s", id, id)
	return nil
}

func orElse(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}
