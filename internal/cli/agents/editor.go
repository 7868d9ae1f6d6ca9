package agents

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/release"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/editor"
	"github.com/RelevanceAI/harvest/internal/cli/worktree"
)

// editorDir is the subdirectory of the data directory with the records of editors.
const editorDir = "editor"

// editorRun is a command line of harvest acp.
type editorRun struct {
	commands
	sessionFlags
	offers editor.Offers
}

// Editor returns the command that serves an editor.
func Editor(base *cli.CLI) *cobra.Command {
	r := &editorRun{commands: commands{base}}
	cmd := &cobra.Command{
		Use:   "acp [flags]",
		Short: "Serve an editor: sessions as an agent of the Agent Client Protocol",
		Long: `Speak the Agent Client Protocol (ACP, version 1) on standard input and output. An editor such as Zed
starts the command. Each of its threads is a session: a sandbox with the repository of the editor's directory
and its uncommitted changes. The flags are those of the sessions, as of harvest agent.

Sessions continue when the editor closes, and the editor can load them again. In a prompt, /apply brings the agent's
changes into the files of the editor, /diff shows them, /checkout fetches the branch, and /end ends the session.

Outside of a repository, start the command with --repo none or with an address.

In the settings of Zed:
  "agent_servers": { "Harvest": { "type": "custom", "command": "harvest", "args": ["acp"] } }
On the command line, with acpx:
  acpx --agent "harvest acp" "fix the failing test"
docs/editors.md has more editors.`,
		Example: `  harvest acp
  harvest acp --agent codex --approval ask`,
		Args: cli.Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(r.Runs(cmd), cmd) },
	}
	r.add(cmd)
	flags := cmd.Flags()
	flags.StringSliceVar(&r.offers.Agents, "agents", []string{"claude", "opencode"},
		"agents that the editor offers for a new session, beside that of --agent")
	flags.StringSliceVar(&r.offers.Models, "models", nil, "models that the editor offers, beside that of --model")
	flags.StringSliceVar(&r.offers.Efforts, "efforts", []string{"low", "medium", "high"},
		"efforts that the editor offers, beside that of --effort")
	return cmd
}

func (r *editorRun) run(ctx context.Context, cmd *cobra.Command) error {
	if err := r.complete(r.commands, cmd); err != nil {
		return err
	}
	cfg, err := r.Config()
	if err != nil {
		return err
	}
	if _, terminal := cli.Terminal(r.In); terminal {
		r.Hint("harvest acp speaks the Agent Client Protocol on standard input; an editor starts it")
	}
	return editor.Run(ctx, editor.Options{
		In: r.In, Out: r.Out, Version: release.Version(), Records: filepath.Join(cfg.Data, editorDir),
		Settings: editor.Settings{Agent: r.req.Agent, Model: r.req.Model, Effort: r.req.Effort,
			Approval: r.req.Approval},
		Offers: r.offers, MCP: r.req.MCP,
		Connect: r.Connect, Create: r.create, Work: r.work, Begins: r.rememberSession,
		Root: func(ctx context.Context, dir string) string {
			top, err := worktree.TopLevel(ctx, dir)
			if err != nil || r.place(dir) != dir {
				return ""
			}
			return seenFrom(dir, top)
		},
		Explain: func(_ string, end api.SessionEvent) error { return turnFailure(end) },
		Apply: func(ctx context.Context, server *client.Client, dir, session string, check,
			merge bool) (string, error) {
			return r.takeChanges(ctx, server, dir, session, "", check, merge)
		},
		Checkout: r.checkout,
	})
}

// place returns the repository for a session that begins in a directory.
func (r *editorRun) place(dir string) string {
	if r.from.repo == "." {
		return dir
	}
	return r.from.repo
}

// carry describes the repository of a new session in a request. The caller closes the Cargo.
func (r *editorRun) carry(ctx context.Context, dir string, hint func(format string, args ...any)) (*worktree.Cargo,
	api.SessionRequest, error) {
	req, from := r.req, r.from
	req.More, from.repo = slices.Clone(req.More), r.place(dir)
	cargo, err := r.repository(ctx, from, &req, hint)
	if err != nil && errors.KindOf(err) == errors.Invalid && from.repo == dir {
		err = errors.Remedy(errors.Newf(errors.Invalid, "%s", errors.Message(err)),
			"commit first, or let the editor start harvest acp --repo none, or --repo ADDRESS")
	}
	return cargo, req, err
}

// create creates a session without a prompt.
func (r *editorRun) create(ctx context.Context, server *client.Client, w editor.Wish) (b editor.Begun, err error) {
	cargo, req, err := r.carry(ctx, w.Dir, w.Hint)
	if err != nil {
		return b, err
	}
	defer cargo.Close()
	if b.Work, err = cargo.Digest(ctx); err != nil {
		return b, err
	}
	if top := cargo.Top(); top != "" {
		b.Root = seenFrom(w.Dir, top)
	}
	if w.Agent != req.Agent { // the version is that of --agent
		req.AgentVersion = ""
	}
	req.Agent, req.Model, req.Effort, req.Approval, req.MCP = w.Agent, w.Model, w.Effort, w.Approval, w.MCP
	if err := r.send(ctx, server, cargo, &req); err != nil {
		return b, err
	}
	b.Session, err = server.CreateSession(ctx, req)
	cargo.Remove(ctx, server)
	return b, err
}

// work identifies the state of the work in a directory.
func (r *editorRun) work(ctx context.Context, dir string) (string, error) {
	cargo, _, err := r.carry(ctx, dir, func(string, ...any) {})
	if err != nil {
		return "", err
	}
	defer cargo.Close()
	return cargo.Digest(ctx)
}

// checkout fetches the branch of a session into the repository of a directory.
func (r *editorRun) checkout(ctx context.Context, server *client.Client, dir, session, branch string) (string, error) {
	made, stashes, err := r.takeBranch(ctx, server, dir, session, "", branch)
	if err != nil {
		return "", err
	}
	return branchText(made, stashes), nil
}

// seenFrom returns the top directory of a repository as a directory in it names it: git resolves symbolic links.
func seenFrom(dir, top string) string {
	real, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return top
	}
	below, err := filepath.Rel(top, real)
	if err != nil || !filepath.IsLocal(below) {
		return top
	}
	if below == "." {
		return dir
	}
	if seen, ok := strings.CutSuffix(dir, string(filepath.Separator)+below); ok {
		return seen
	}
	return top
}
