package agents

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
	"github.com/spf13/cobra"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
	"github.com/RelevanceAI/harvest/internal/base/release"
	"github.com/RelevanceAI/harvest/internal/cli"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
	"github.com/RelevanceAI/harvest/internal/cli/worktree"
	"github.com/RelevanceAI/harvest/internal/mcp"
)

// toolsRun is a command line of harvest mcp.
type toolsRun struct {
	commands
	box  cli.SandboxFlags
	idle cli.TimeFlag
	repo string
}

// Tools returns the command that serves tools to an agent elsewhere.
func Tools(base *cli.CLI) *cobra.Command {
	r := &toolsRun{commands: commands{base}}
	cmd := &cobra.Command{
		Use:   "mcp [flags]",
		Short: "Serve an agent elsewhere: sandboxes as tools of the Model Context Protocol",
		Long: `Speak the Model Context Protocol (MCP) on standard input and output. An agent such as Claude Code,
Cursor, Codex or OpenCode starts the command, and gets tools to work in environments: sandboxes with the
repository of its directory and its uncommitted changes. The work comes back as a branch.

The flags are the defaults of the environments that the agent creates. Environments outlive this command, and
the agent comes back to them by name. Clients that speak HTTP use the address /mcp of a server instead, with
a key of "harvest key create" as bearer token.

docs/mcp.md has the configuration for more clients.`,
		Example: `  claude mcp add harvest -- harvest mcp
  codex mcp add harvest -- harvest mcp --network none
  harvest mcp --repo ~/src/project --image node:22`,
		Args: cli.Args(0, 0, "no arguments"),
		RunE: func(cmd *cobra.Command, _ []string) error { return r.run(r.Runs(cmd), cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&r.repo, "repo", ".", "directory or address of the repository of environments, or none")
	flags.Var(&r.idle, "idle-timeout",
		"idle time after which an environment ends; its files are kept, and the next call continues it (default: 1h)")
	r.box.Add(cmd)
	_ = flags.MarkHidden("name") // the agent names its environments
	return cmd
}

func (r *toolsRun) run(ctx context.Context, cmd *cobra.Command) error {
	req, err := r.box.Request(cmd)
	if err != nil {
		return err
	}
	req.IdleTimeoutSeconds = r.idle.Seconds()
	if _, terminal := cli.Terminal(r.In); terminal {
		r.Hint("harvest mcp speaks the Model Context Protocol on standard input; an agent starts it")
	}
	server, err := r.Connect(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	in := &ending{Reader: r.In, ended: make(chan struct{})}
	here := &workstation{commands: r.commands, repo: r.repo, server: server, ctx: ctx, forwards: map[string]string{}}
	tools := mcp.New(mcp.Options{Client: server, Version: release.Version(), Local: here, Sandbox: req, Gone: in.ended,
		Ready: here.ready})
	return errors.Explainf(tools.Run(ctx, &sdk.IOTransport{Reader: io.NopCloser(in), Writer: unclosed{r.Out},
		MaxLineLength: api.MaxExec}), errors.Unavailable, "the connection to the agent broke")
}

// unclosed is a Writer that is not closed.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }

// ending closes ended at the end of a Reader.
type ending struct {
	io.Reader
	once  sync.Once
	ended chan struct{}
}

func (e *ending) Read(p []byte) (int, error) {
	n, err := e.Reader.Read(p)
	if err != nil {
		e.once.Do(func() { close(e.ended) })
	}
	return n, err
}

// workstation implements mcp.Local: the machine on which harvest mcp runs.
type workstation struct {
	commands
	repo   string // as in --repo
	server *client.Client
	ctx    context.Context // of the command; forwards end with it

	mu       sync.Mutex
	forwards map[string]string // guarded by mu: addresses by sandbox and port
}

// ready starts the server again if it has ended, as a server in the background does when it is idle.
func (w *workstation) ready(ctx context.Context) error {
	if _, err := w.server.Server(ctx); errors.KindOf(err) != errors.Unavailable {
		return err
	}
	again, err := w.Connect(ctx)
	if err == nil {
		again.Close()
	}
	return err
}

// Carry implements mcp.Local.
func (w *workstation) Carry(ctx context.Context, repository string, committed bool,
	req *api.SessionRequest) (*mcp.Cargo, error) {
	dir, given := repository, repository != ""
	if !given {
		dir = w.repo
	}
	switch {
	case dir == "none":
		return nil, nil
	case strings.Contains(dir, ":"):
		req.Repo = dir
		return nil, nil
	case strings.HasPrefix(dir, "~/"):
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, errors.Explainf(err, errors.Invalid, "the home directory is not known")
		}
		dir = filepath.Join(home, dir[2:])
	}
	if !given && w.repo == "." {
		if _, err := worktree.TopLevel(ctx, dir); err != nil {
			return nil, nil // an agent may be started anywhere
		}
	}
	out := &mcp.Cargo{}
	cargo, err := worktree.Carry(ctx, dir, committed, req, func(format string, args ...any) {
		note, _, _ := strings.Cut(fmt.Sprintf(format, args...), "; --committed") // a flag that agents do not have
		out.Notes = append(out.Notes, chat.Plain(note))
	})
	if err != nil {
		return nil, errors.Remedy(errors.Newf(errors.KindOf(err), "%s", errors.Message(err)),
			"commit once, or pass the repository none, a directory of a git repository, or an address")
	}
	out.Top, out.Close = cargo.Top(), cargo.Close
	out.Author = worktree.Author(ctx, cargo.Top())
	out.Send = func(ctx context.Context, to mcp.Uploads, req *api.SessionRequest) error {
		return cargo.Send(ctx, to, req, func(int64, int64) {})
	}
	return out, nil
}

// Checkout implements mcp.Local.
func (w *workstation) Checkout(ctx context.Context, top string, work mcp.Work, bundle string) (string, error) {
	if top == "" {
		top = w.repo
	}
	top, err := worktree.TopLevel(ctx, top)
	if err != nil {
		return "", errors.Remedy(err, "give the directory of a repository that has the commits of the environment")
	}
	made, _, err := worktree.Checkout(ctx, top, api.Session{ID: work.ID, WorkBranch: work.Branch}, work.As, bundle)
	return made, err
}

// Forward implements mcp.Local.
func (w *workstation) Forward(_ context.Context, sandbox string, port int) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := sandbox + ":" + strconv.Itoa(port)
	if address := w.forwards[key]; address != "" {
		return address, nil
	}
	listener, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return "", errors.Explainf(err, errors.Unavailable, "cannot listen on the loopback interface: %v", err)
	}
	w.forwards[key] = "http://" + listener.Addr().String()
	context.AfterFunc(w.ctx, func() { _ = listener.Close() })
	go w.pass(listener, sandbox, port)
	return w.forwards[key], nil
}

// pass forwards connections until the command ends.
func (w *workstation) pass(listener net.Listener, sandbox string, port int) {
	for {
		local, err := listener.Accept()
		if err != nil {
			return
		}
		go func() {
			inside, err := w.server.Dial(w.ctx, sandbox, port)
			if err != nil {
				_ = local.Close()
				return
			}
			defer context.AfterFunc(w.ctx, func() {
				_ = local.Close()
				_ = inside.Close()
			})()
			bytestream.Join(local, inside)
		}()
	}
}
