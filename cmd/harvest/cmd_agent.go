package main

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/session"
)

// prompt returns what a user has given as one: "-" is standard input.
func (c *cli) prompt(cmd *cobra.Command, given string) (string, error) {
	if given == "-" {
		text, err := io.ReadAll(io.LimitReader(c.in, session.MaxPrompt+1))
		if err != nil {
			return "", errors.Explainf(err, errors.Invalid, "the prompt cannot be read from standard input")
		}
		given = string(text)
	}
	if strings.TrimSpace(given) == "" {
		return "", usage(cmd, "the prompt is empty")
	}
	return given, nil
}

func (c *cli) agentCommand() *cobra.Command {
	var req api.SessionRequest
	var box sandboxFlags
	var where processFlags
	var from source
	var follow, servers string
	var keep bool
	var idle timeFlag
	cmd := &cobra.Command{
		Use:   "agent [flags] PROMPT",
		Short: "Have an agent work on a repository in a sandbox of its own",
		Long: `Makes a session: a sandbox with the repository in it, and an agent that is sent the prompt. What the agent does is shown as it happens;
Ctrl-C leaves, and the agent goes on. Its changes are on a branch of their own, harvest/ID, which "harvest checkout" brings into the local
repository, and "harvest diff" shows.

The repository is the current directory's, as it is committed, or --repo; --repo none begins with an empty one. The agent "scripted" has no
model and needs no key: it is there to try things out. --continue goes on with a session that has ended: with its files, and with the end of its
conversation. The prompt "-" is read from standard input.`,
		Example: `  harvest agent "fix the failing test"
  harvest agent --repo https://github.com/owner/name --agent opencode "describe the code"
  harvest agent --agent scripted "say hello"
  harvest agent --continue ses_01ab "now write a test"`,
		Args: count(1, 1, "one prompt; quote it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			var err error
			if req.Sandbox, err = c.agentSandbox(cmd, box, where, idle); err != nil {
				return err
			}
			if servers != "" {
				if req.MCP, err = os.ReadFile(servers); err != nil || !json.Valid(req.MCP) {
					return usage(cmd, "--mcp-config: %s cannot be read, or is no JSON", servers)
				}
			}
			if req.Prompt, err = c.prompt(cmd, args[0]); err != nil {
				return err
			}
			if req.Continues == "" {
				err = c.repository(ctx, from, &req)
			} else if cmd.Flags().Changed("repo") {
				err = usage(cmd, "--continue goes on with the repository of that session; leave out --repo")
			}
			if err != nil {
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
	from.add(cmd, &req)
	flags.StringVar(&req.Agent, "agent", "", "claude, opencode or scripted (default: claude)")
	flags.StringVar(&req.Continues, "continue", "", "session that has ended, to go on with its files and conversation")
	flags.StringVar(&req.Model, "model", "", "model of the agent (default: the agent's own)")
	flags.StringVar(&req.Approval, "approval", "", "what the agent asks before it does it: edits, ask or plan (default: nothing, the sandbox is the boundary)")
	flags.IntVar(&req.Limits.Turns, "max-turns", 0, "turns of the session; 0 means no limit")
	flags.Float64Var(&req.Limits.Seconds, "max-seconds", 0, "seconds of a turn; 0 means no limit")
	flags.Float64Var(&req.Limits.USD, "max-usd", 0, "cost of the session; 0 means no limit")
	flags.StringVar(&servers, "mcp-config", "", "file of MCP servers for the agent, as a project's .mcp.json")
	flags.Var(&idle, "idle-timeout", "ends the sandbox when no turn and nothing else ran in it for so long; the next prompt goes on in a new one (default: idle_timeout of the configuration)")
	flags.BoolVarP(&keep, "detach", "d", false, "print the session and return")
	flags.StringVarP(&follow, "output", "o", "text", "text, or json for events")
	box.add(cmd)
	where.addEnv(cmd)
	return cmd
}

// agentSandbox is the sandbox of a new session.
func (c *cli) agentSandbox(cmd *cobra.Command, box sandboxFlags, where processFlags, idle timeFlag) (api.SandboxRequest, error) {
	req, err := box.request(cmd)
	if err != nil {
		return req, err
	}
	req.IdleTimeoutSeconds = idle.seconds()
	req.Env, err = c.environment(where.envFile, where.env)
	return req, err
}

// source is where the repositories of a session come from.
type source struct {
	repo      string   // an address, a directory, or "none"
	committed bool     // what is not committed stays here
	also      []string // further ones
}

func (s *source) add(cmd *cobra.Command, req *api.SessionRequest) {
	flags := cmd.Flags()
	flags.StringVar(&s.repo, "repo", ".", "address or directory of the repository, or none")
	flags.StringVar(&req.Branch, "branch", "", "branch to begin on (default: the repository's)")
	flags.IntVar(&req.Depth, "depth", 0, "commits of history; 0 means all")
	flags.BoolVar(&s.committed, "committed", false, "leave what is not committed here; otherwise the agent gets it as a commit of its own")
	flags.BoolVar(&req.LFS, "lfs", false, "fetch large files (git-lfs), which are pointers otherwise")
	flags.BoolVar(&req.Submodules, "submodules", false, "clone submodules, too")
	flags.StringArrayVar(&s.also, "also", nil, "ADDRESS or ADDRESS#BRANCH of a further repository, repeatable")
	flags.StringVar(&req.GitSecret, "git-secret", "", "secret with git's credentials (default: the first that has some for the repository's host), or none")
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
