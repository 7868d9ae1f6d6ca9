package agents

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
	"github.com/RelevanceAI/harvest/internal/cli/worktree"
)

// prompt returns the prompt: given, or standard input if given is "-".
func (c commands) prompt(cmd *cobra.Command, given string) (string, error) {
	if given == "-" {
		text, err := io.ReadAll(io.LimitReader(c.In, api.MaxPrompt+1))
		if err != nil {
			return "", errors.Explainf(err, errors.Invalid, "cannot read the prompt from standard input")
		}
		given = string(text)
	}
	if strings.TrimSpace(given) == "" {
		return "", cli.Usage(cmd, "the prompt is empty")
	}
	return given, nil
}

// sessionFlags are the flags that describe a session.
type sessionFlags struct {
	req     api.SessionRequest
	box     cli.SandboxFlags
	where   cli.ProcessFlags
	from    source
	servers string // file of MCP servers
	idle    cli.TimeFlag
	options options
}

func (f *sessionFlags) add(cmd *cobra.Command) {
	f.from.add(cmd, &f.req)
	flags := cmd.Flags()
	flags.StringVar(&f.req.Agent, "agent", "",
		"agent, such as claude, codex or opencode, or a command that speaks ACP (default: claude)")
	flags.StringVar(&f.req.AgentVersion, "agent-version", "",
		"exact version of a built-in agent, which is installed into the sandbox (default: agents.versions of the "+
			"configuration, else that of the image)")
	f.options.add(cmd)
	flags.StringVar(&f.servers, "mcp-config", "",
		"file of MCP servers for the agent, in the format of a project's .mcp.json")
	flags.Var(&f.idle, "idle-timeout",
		"idle time after which the sandbox ends; the next prompt continues in a new one (default: idle_timeout of "+
			"the configuration)")
	f.box.Add(cmd)
	f.where.AddEnv(cmd)
}

// complete sets the parts of the request that flags describe indirectly.
func (f *sessionFlags) complete(c commands, cmd *cobra.Command) (err error) {
	f.options.put(&f.req)
	if f.req.Sandbox, err = c.agentSandbox(cmd, f.box, f.where, f.idle); err != nil {
		return err
	}
	if f.servers != "" {
		if f.req.MCP, err = os.ReadFile(f.servers); err != nil || !json.Valid(f.req.MCP) {
			return cli.Usage(cmd, "--mcp-config: cannot read %s, or it is not JSON", f.servers)
		}
	}
	return nil
}

// agentRun is a command line of harvest agent.
type agentRun struct {
	commands
	sessionFlags
	cmd           *cobra.Command
	continues     string // session, or newestSession
	follow        string
	detach, plain bool
}

// Command returns the command that begins or continues a session.
func Command(base *cli.CLI) *cobra.Command {
	c := commands{base}
	r := &agentRun{commands: c}
	cmd := &cobra.Command{
		Use:   "agent [flags] [PROMPT]",
		Short: "Run a coding agent on a repository in a sandbox",
		Long: `Create a session: a sandbox with the repository in it, and an agent that receives the prompt.

On a terminal, the session is a conversation: type prompts, watch, and answer questions by number.
/help lists the commands. Esc stops the turn. Ctrl-C on an empty line leaves the session; the agent
continues. Elsewhere, and with -o, the command prints the events of the turn, and Ctrl-C leaves as well.

The agent's changes are on the branch harvest/ID. "harvest diff" shows them, and "harvest checkout"
fetches the branch into the local repository.

The repository is that of the current directory, with its uncommitted changes, or that of --repo.
"--repo none" starts with an empty one. The agent "scripted" has no model and needs no key; use it to
try things out.

--continue continues a session, by default the newest of this directory. If the session has ended,
a new one starts with its files and its conversation.

--plain never redraws lines, for screen readers and for terminals that cannot redraw. The prompt "-"
is read from standard input.`,
		Example: `  harvest agent
  harvest agent "fix the failing test"
  harvest agent --repo https://github.com/owner/name --agent opencode "describe the code"
  harvest agent --agent scripted -o text "say hello"
  harvest agent --continue
  harvest agent --continue ses_01ab "now write a test"`,
		Args: cli.Args(0, 2, "at most one prompt; quote it"),
		RunE: func(cmd *cobra.Command, args []string) error {
			r.cmd = cmd
			return r.run(c.Runs(cmd), args)
		},
	}
	flags := cmd.Flags()
	r.add(cmd)
	flags.StringVar(&r.continues, "continue", "", "session to continue (default: the newest of this directory)")
	flags.Lookup("continue").NoOptDefVal = newestSession
	flags.BoolVarP(&r.detach, "detach", "d", false, "print the session and return")
	flags.BoolVar(&r.plain, "plain", false,
		"a conversation in lines that are never redrawn (default: only if TERM is dumb)")
	flags.StringVarP(&r.follow, "output", "o", "text",
		"text, or json for events (default: a conversation, on a terminal)")
	return cmd
}

// run starts a session, or continues one, and follows it.
func (r *agentRun) run(ctx context.Context, args []string) (err error) {
	if args, err = r.splitContinue(args); err != nil {
		return err
	}
	talks := r.converses()
	switch {
	case len(args) > 0:
		if r.req.Prompt, err = r.prompt(r.cmd, args[0]); err != nil {
			return err
		}
	case !talks:
		return errors.Remedy(errors.Newf(errors.Invalid, "no prompt given, and no terminal to ask for one"),
			"give a prompt: %s \"fix the test\"", r.cmd.CommandPath())
	}
	if err = r.complete(r.commands, r.cmd); err != nil {
		return err
	}
	var cargo *worktree.Cargo
	if r.continues == "" {
		done := r.Waiting("reading the repository")
		cargo, err = r.repository(ctx, r.from, &r.req, r.Hint)
		done()
	} else if r.cmd.Flags().Changed("repo") {
		err = cli.Usage(r.cmd, "--continue uses the repository of that session; leave out --repo")
	}
	if err != nil {
		return err
	}
	defer cargo.Close()
	server, err := r.Connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	if r.continues != "" {
		switch s, err := r.goOn(ctx, server, talks); {
		case err != nil:
			return err
		case s.ID != "":
			return r.resume(ctx, server, s, talks)
		}
	}
	r.adoptMemory(ctx, server, r.req)
	if err := r.send(ctx, server, cargo, &r.req); err != nil {
		return err
	}
	done := r.Waiting("creating the session")
	made, err := server.CreateSession(ctx, r.req)
	done()
	cargo.Remove(ctx, server)
	if err != nil {
		return err
	}
	r.rememberSession(ctx, ".", made.ID)
	switch {
	case r.detach:
		return r.Show(oneSession(made))
	case talks:
		return r.converse(ctx, server, made, r.plain)
	}
	r.Hint("session %s; Ctrl-C leaves it, harvest stop %s stops it", made.ID, made.ID)
	return r.commands.follow(ctx, server, turns{session: made.ID}, r.follow)
}

// agentSandbox returns the request for the sandbox of a new session.
func (c commands) agentSandbox(cmd *cobra.Command, box cli.SandboxFlags, where cli.ProcessFlags,
	idle cli.TimeFlag) (api.SandboxRequest, error) {
	req, err := box.Request(cmd)
	if err != nil {
		return req, err
	}
	req.IdleTimeoutSeconds = idle.Seconds()
	req.Env, err = c.Environment(where.EnvFile, where.Env)
	return req, err
}

// source names the repositories of a session.
type source struct {
	repo      string   // an address, a directory, or "none"
	committed bool     // leave out uncommitted changes
	also      []string // further repositories
}

func (s *source) add(cmd *cobra.Command, req *api.SessionRequest) {
	flags := cmd.Flags()
	flags.StringVar(&s.repo, "repo", ".", "address or directory of the repository, or none")
	flags.StringVar(&req.Branch, "branch", "", "branch to start from (default: the default branch of the repository)")
	flags.IntVar(&req.Depth, "depth", 0, "commits of history; 0 means all")
	flags.BoolVar(&s.committed, "committed", false,
		"do not send uncommitted changes (default: send them as a separate commit)")
	flags.BoolVar(&req.LFS, "lfs", false, "fetch large files (git-lfs) instead of pointers")
	flags.BoolVar(&req.Submodules, "submodules", false, "clone submodules, too")
	flags.StringArrayVar(&s.also, "also", nil, "ADDRESS or ADDRESS#BRANCH of a further repository, repeatable")
	flags.StringVar(&req.GitSecret, "git-secret", "",
		"secret with git's credentials, or none (default: the first secret with credentials for the repository's host)")
	flags.StringVar(&req.Credentials, "credentials", "",
		"when the sandbox may use lent credentials: session, or turn, only while the agent works (default: session)")
}

// send sends the commits of a directory ahead of the session, and shows the progress.
func (c commands) send(ctx context.Context, server *client.Client, cargo *worktree.Cargo,
	req *api.SessionRequest) error {
	show := c.Sending("sending the repository")
	defer show.Done()
	return cargo.Send(ctx, server, req, show.Update)
}

// repository sets the repositories of the request: addresses, or the directory whose commits are returned. hint gets
// notes for the user.
func (c commands) repository(ctx context.Context, from source, req *api.SessionRequest,
	hint func(format string, args ...any)) (*worktree.Cargo, error) {
	for _, text := range from.also {
		address, branch, _ := strings.Cut(text, "#")
		req.More = append(req.More, api.RepositoryRequest{Repo: address, Branch: branch, Depth: req.Depth, LFS: req.LFS,
			Submodules: req.Submodules})
	}
	repo := from.repo
	if repo == "none" {
		return nil, nil
	}
	info, err := os.Stat(repo)
	if err != nil || !info.IsDir() {
		if !strings.Contains(repo, ":") {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "repository %q: not found", repo),
				"give a directory, an address such as https://github.com/owner/name, or none")
		}
		req.Repo = repo
		return nil, nil
	}
	return worktree.Carry(ctx, repo, from.committed, req, hint)
}

func oneSession(s api.Session) cli.View {
	return cli.View{JSON: s, Names: []string{s.ID}, Header: []string{"ID", "STATUS", "AGENT", "TITLE"},
		Rows: [][]string{{s.ID, s.Status, s.Agent, s.Title}}}
}

// turns selects the turns of a session that a command follows.
type turns struct {
	session string
	after   int64  // follow the events after this one
	last    int64  // without a prompt: follow at least to this event
	prompt  string // ID of a prompt: follow to the end of its turn; "": until no prompt is pending
}

// follow shows the events of turns.
func (c commands) follow(ctx context.Context, server *client.Client, t turns, format string) error {
	show := newTurnView(c, format, t.session, t.prompt)
	defer show.close()
	pending := map[string]bool{}
	var end *api.SessionEvent // of the last turn
	_, reads := cli.Terminal(c.Out)
	for e, err := range server.Events(ctx, client.Follow{Stream: t.session, After: t.after, Attended: reads &&
		format != cli.FormatJSON}) {
		if err != nil {
			if ctx.Err() != nil {
				return left(t.session)
			}
			return err
		}
		data, err := show.event(e)
		if err != nil {
			return err
		}
		wanted := t.prompt == "" || t.prompt == data.MessageID
		switch e.Type {
		case "message.queued":
			pending[data.MessageID] = true
		case "message.held":
			delete(pending, data.MessageID)
		case "message.cancelled":
			delete(pending, data.MessageID)
			if wanted && t.prompt != "" {
				return errors.Remedy(errors.Newf(errors.Canceled, "the prompt was not sent to the agent: %s",
					cli.OrElse(data.Reason, "it was withdrawn")), "send it again: harvest send %s \"…\"", t.session)
			}
		case "done":
			delete(pending, data.MessageID)
			if wanted {
				end = &data
			}
		case "agent.asked":
			c.Hint("answer with: harvest answer %s %s", t.session, data.ID)
		case "session.ended":
			if data.Status == "failed" {
				return errors.Newf(errors.Unavailable, "the session failed: %s", data.Reason)
			}
			return nil
		}
		if end != nil && (t.prompt != "" || len(pending) == 0 && e.ID >= t.last) {
			return c.turnResult(t.session, *end)
		}
	}
	return nil
}

// left is the error of a command that no longer follows a session.
func left(id string) error {
	return errors.Remedy(errors.Newf(errors.Canceled, "left session %s; its agent continues", id),
		"harvest attach %s to follow it again, harvest stop %s to interrupt it", id, id)
}

// permanent are the failures after which a retry would fail again, by the cause in the event.
var permanent = map[string]struct {
	kind   errors.Kind
	remedy string
}{
	"cost_limit": {errors.Denied, "begin another session with a higher --max-usd: harvest agent --continue SESSION"},
	"no_credit": {errors.Denied,
		"buy credit from the provider of the model, or use another key: harvest secret set"},
	"key_refused":   {errors.Denied, "use a valid key that may use the model: harvest secret set"},
	"unknown_model": {errors.Invalid, "name an existing model: harvest agent --model"},
	"unknown_price": {errors.Denied,
		"add the price to model.prices of the server, or begin a session without --max-usd"},
	"prompt_too_long": {errors.Invalid,
		"send a shorter prompt, or continue in a session with less history: harvest agent --continue SESSION"},
}

// turnResult is the error of a failed turn.
func (c commands) turnResult(id string, end api.SessionEvent) error {
	if err := turnError(id, end); err != nil {
		return err
	}
	c.Hint("changes: harvest diff %s, harvest checkout %s", id, id)
	return nil
}

// turnError is turnResult without a hint.
func turnError(id string, end api.SessionEvent) error {
	switch err := turnFailure(end); {
	case end.Interrupted:
		return errors.Remedy(errors.Newf(errors.Canceled, "the turn was interrupted: %s", end.Reason),
			"to continue: harvest send %s \"…\"", id)
	case end.Failed && errors.RemedyOf(err) == "":
		return errors.Remedy(err, "to try again in the same conversation: harvest send %s \"…\"", id)
	case end.Failed:
		return err
	}
	return nil
}

// turnFailure is the error of a failed turn. It has a remedy only if a retry would fail again.
func turnFailure(end api.SessionEvent) error {
	text := chat.Plain(cli.OrElse(end.Text, end.Reason))
	if p, ok := permanent[end.Cause]; ok {
		return errors.Remedy(errors.Newf(p.kind, "the turn failed: %s", text), "%s", p.remedy)
	}
	return errors.Newf(errors.Unavailable, "the turn failed: %s", text)
}
