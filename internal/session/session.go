// Package session runs coding agents. A session consists of a sandbox with a repository in it, an agent, and the
// prompts that people send to it. Manager is the entry point.
//
// The actions of an agent become events of the session's stream (package event), which are persisted before clients
// see them. Agents outlive the server: their process belongs to the sandbox, and the next server that attaches reads
// the output of the meantime.
package session

import (
	"slices"

	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/inputs"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// Request describes a new session.
type Request struct {
	Repo            string                        // URL; "" for none
	Branch          string                        // "" means the repository's default
	Depth           int                           // of history; 0 means all
	LFS, Submodules bool                          // as in workspace.RepositoryRequest
	More            []workspace.RepositoryRequest // further repositories, beside the first one
	Name            string                        // of the first repository's directory; "" means that of its address
	Identity        string                        // of the first repository if it has no address; "" if unknown
	// GitSecret is the name of the secret with git's credentials; "" means the first that has some for the repository's
	// host, credentials.None means no credentials.
	GitSecret string
	PerTurn   bool             // lend credentials only while a turn or an operation on the repository is under way
	Agent     string           // "" means the Manager's default
	Model     string           // "" means the agent's default
	Release   string           // version of the agent; "" means that of Options.Releases, its image or its lock
	Effort    string           // of the model, in the agent's words; "" means the agent's default
	Prompt    string           // the first one; "" for none yet
	Approval  agent.Approval   //
	Author    workspace.Author // zero means the Manager's default
	Limits    records.Limits
	// MCP describes the user's own servers, in the format of mcp.Parse. ${NAME} stands for a variable of the agent.
	MCP     []byte
	Sandbox spec.Request // its Env is also the agent's; a replacement for it has Secrets only
	// Bundle, if set, is the output of `git bundle create - HEAD`: the repository is cloned from it instead of Repo,
	// which remains its origin. BundleID names an upload with a bundle instead.
	Bundle   []byte
	BundleID string
	// Shallow accompanies a Bundle from a shallow repository: the content of its file .git/shallow.
	Shallow []byte
	Subdir  string // of the first repository, where the agent starts; "" means its top
	// Continues is a session of the account that has ended. The new session starts with its files, its repositories
	// and the end of its conversation. Other zero fields take the values of that session.
	Continues    string
	conversation string // conversation of the continued session, if the agent is the same
	title        string // title of the continued session
	// Uncommitted accompanies Bundle. PatchID names an upload with its Patch instead.
	Uncommitted workspace.Uncommitted
	PatchID     string
}

// maxQueue is how many prompts of a session may be queued.
const maxQueue = 100

// sendsCommits reports whether the client sends the commits of the first repository.
func (req Request) sendsCommits() bool { return len(req.Bundle) > 0 || req.BundleID != "" }

// inputs are the files of the request.
func (req Request) inputs() inputs.Request {
	return inputs.Request{Bundle: req.Bundle, BundleID: req.BundleID, Patch: req.Uncommitted.Patch,
		PatchID: req.PatchID, Shallow: req.Shallow, Author: req.Uncommitted.Author}
}

// sent describes the user's own state of the first repository.
func (req Request) sent() workspace.Sent {
	return workspace.Sent{Commits: req.sendsCommits(), Shallow: req.Shallow,
		Changes: len(req.Uncommitted.Patch) > 0 || req.PatchID != "", Author: req.Uncommitted.Author}
}

// repositories describes the repositories of req.
func (req Request) repositories() workspace.Request {
	first := workspace.RepositoryRequest{URL: req.Repo, Branch: req.Branch, Depth: req.Depth, LFS: req.LFS,
		Submodules: req.Submodules}
	return workspace.Request{Repositories: slices.Concat([]workspace.RepositoryRequest{first}, req.More),
		Name: req.Name, Identity: req.Identity, Subdir: req.Subdir, Sent: req.sent()}
}
