// Package workspace works with the repositories in the sandbox of a session: it clones them, begins the agent's work on
// a branch of its own, follows and reports that work, and hands it back. Everything happens in the sandbox: git never
// runs on the host in files that an agent wrote.
package workspace

import (
	"context"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

const (
	root      = "/workspace"           // parent of the repositories' directories
	eventsDir = "/var/lib/harvest-git" // of files that harvest-git writes
	givenDir  = "/tmp/harvest-given"   // where a clone reads the user's uncommitted changes
	program   = "/usr/local/bin/" + git.ProgramName
	protocols = "https:http:ssh:git:file" // by which git may fetch
)

// Tree is the work of a session in its sandbox.
type Tree struct {
	shell.Sandbox
	Session string // ID
	Title   string // of the session
	Author  Author // of commits
}

// Branch is the branch on which the agent of a session works.
func Branch(session string) string { return "harvest/" + strings.TrimPrefix(session, "ses_") }

// dirsScript creates directories that the agent's user cannot create, and changes their owner to that user: OWNER
// PROGRAM DIRECTORY… The files of the memory belong to the agent, too.
const dirsScript = `
owner=$1 program=$2
mkdir -p "${program%/*}"
cat >"$program"
chmod 755 "$program"
shift 2
for d; do [ -d "$d" ] || { mkdir -p "$d"; chown "$owner" "$d"; }; done
if [ -d "$d" ] && [ "${d%/.mcp-memory}" != "$d" ]; then chown -R "$owner" "$d"; fi`

// MakeDirs creates directories for the agent's user, and installs harvest-git where agents find it. The last directory
// may be the memory.
func (t Tree) MakeDirs(ctx context.Context, dirs ...string) error {
	ids, err := t.Output(ctx, `id -u; id -g`)
	if err != nil {
		return err
	}
	owner := strings.Join(strings.Fields(ids), ":")
	user := ""
	if t.Fleet.Capabilities().Users {
		user = "0:0"
	}
	_, result, err := t.Run(ctx, shell.Script{User: user, Text: dirsScript, Stdin: git.Program,
		Params: append([]string{owner, program, eventsDir}, dirs...)})
	if err == nil && result.ReturnCode != 0 {
		err = errors.Newf(errors.Unavailable, "%s", shell.LastLines(result.Stderr, result.Why()))
	}
	return err
}
