// Package mcp is Harvest's server of the Model Context Protocol: tools with which agents elsewhere work in sandboxes.
// It is a client of the API. The configuration of MCP servers that agents inside sandboxes use is package base/mcp.
package mcp

import (
	"context"
	"io"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
)

// Options of a server. Client is required.
type Options struct {
	Client  *client.Client
	Version string
	// Ready, if set, is called before each call: it starts the server again if it has ended.
	Ready func(ctx context.Context) error
	// Local connects to the machine of the user; nil on a server of many users.
	Local Local
	// Sandbox has the defaults of new environments.
	Sandbox api.SandboxRequest
	// Gone is closed when the client has ended: its commands then continue. nil: the end of a call's context means
	// that the call was cancelled.
	Gone <-chan struct{}
	// Locks, if set, is shared by servers that work in the same sandboxes.
	Locks *Locks
}

// Local is the machine of the user: repositories and the loopback interface.
type Local interface {
	// Carry describes a repository in a request. repository is a directory; "" means the default one. Carry returns nil
	// if there is no default, or if it is an address, which the request then has.
	Carry(ctx context.Context, repository string, committed bool, req *api.SessionRequest) (*Cargo, error)
	// Checkout fetches a branch from a bundle into the repository at top, and returns its local name.
	Checkout(ctx context.Context, top string, work Work, bundle string) (string, error)
	// Forward listens on the loopback interface, forwards connections to a port of a sandbox, and returns the address.
	Forward(ctx context.Context, sandbox string, port int) (string, error)
}

// Cargo is a local repository that has to be sent.
type Cargo struct {
	Top    string // directory of the repository
	Author api.Author
	Notes  []string // for the user
	Send   func(ctx context.Context, to Uploads, req *api.SessionRequest) error
	Close  func()
}

// Uploads receives large parts of a repository.
type Uploads interface {
	Upload(ctx context.Context, r io.Reader) (api.FileUpload, error)
	RemoveUpload(ctx context.Context, id string) error
}

// Work is a branch that is handed back.
type Work struct {
	ID     string // of the environment or the session; another one of the same name has another ID
	Branch string // in the bundle
	As     string // chosen name; "" means Branch
}

// server is one connection: what all its tools share. Each group of tools is a type of its own.
type server struct {
	Options
}

// ready prepares the server for a call.
func (s *server) ready(ctx context.Context) error {
	if s.Ready == nil {
		return nil
	}
	return s.Ready(ctx)
}

// instructions are for the model of the client.
const instructions = `Harvest gives you isolated computers ("environments") to run code in, without touching the ` +
	`user's machine. Create one with environment_create, from the user's current repository with its uncommitted ` +
	`work, a repository's address, or an image; then use run, read, write, edit, list and search in it. Every change ` +
	`of files becomes a commit on the environment's own branch, with your explanation as its message. diff shows the ` +
	`work, and hand_back gives it to the user as a branch. Environments stay when you disconnect: environment_list ` +
	`names them, and the same name continues one. agent_start delegates a task to another coding agent.`

// New returns a server with all tools, resources and prompts.
func New(opts Options) *sdk.Server {
	if opts.Locks == nil {
		opts.Locks = &Locks{}
	}
	s := &server{opts}
	out := sdk.NewServer(&sdk.Implementation{Name: "harvest", Title: "Harvest", Version: opts.Version},
		&sdk.ServerOptions{Instructions: instructions, Capabilities: &sdk.ServerCapabilities{}})
	to := tools{out, s.ready}
	environmentTools{s}.add(to)
	commandTools{s}.add(to)
	fileTools{s}.add(to)
	stateTools{s}.add(to)
	workTools{s}.add(to)
	agentTools{s}.add(to)
	resources{s}.add(out)
	s.addPrompts(out)
	return out
}
