package mcp

import (
	"context"
	"embed"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

//go:embed scripts/*.sh
var scripts embed.FS

// script is a program of /bin/sh for an environment.
type script struct {
	name  string // of a file in scripts
	env   map[string]string
	args  []string
	stdin string
}

// run runs a script in a sandbox and returns its output. A failure of the script is an error of kind Invalid with its
// complaint.
func (s *server) run(ctx context.Context, sandbox string, p script) (string, error) {
	text, err := scripts.ReadFile("scripts/" + p.name + ".sh")
	if err != nil {
		return "", errors.Wrapf(err, "read a script")
	}
	program := git.Stage + "\n" + string(text)
	res, err := s.Client.Exec(ctx, sandbox, api.ExecRequest{Workdir: "/", Env: p.env, Stdin: p.stdin,
		Args: append([]string{"/bin/sh", "-euc", program, p.name}, p.args...)})
	switch {
	case err != nil:
		return "", err
	case res.ReturnCode != 0:
		return "", scriptError(res)
	}
	return res.Stdout, nil
}

// scriptError is the error of a script that failed.
func scriptError(res api.Result) error {
	said := strings.TrimSpace(res.Stderr)
	if why := res.Why(); why != "" {
		said = why
	}
	if lines := strings.Split(said, "\n"); len(lines) > 5 {
		said = strings.Join(lines[len(lines)-5:], "\n")
	}
	said = strings.TrimPrefix(said, "fatal: ")
	switch {
	case res.ReturnCode == 9:
		return errors.Remedy(errors.Newf(errors.Conflict, "%s", said), "read the file again")
	case strings.Contains(said, "not versioned"):
		return errors.Remedy(errors.Newf(errors.Unsupported, "this environment has no git repository"),
			"run git init in it, or create an environment from a repository")
	case said == "":
		said = "a command failed without a message"
	}
	return errors.Newf(errors.Invalid, "%s", said)
}

// commit commits all changes in an environment, and returns a note about the commit; "" if nothing has changed.
func (s *server) commit(ctx context.Context, at *place, message, tool, detail string) (string, error) {
	if strings.TrimSpace(message) == "" {
		message = tool
	}
	if detail != "" {
		message += "\n\n" + detail
	}
	ctx = context.WithoutCancel(ctx) // work is kept, also that of a call that was cancelled
	out, err := s.run(ctx, at.box.ID, script{name: "commit", env: map[string]string{"DIR": at.dir,
		"MESSAGE": message + "\n\nHarvest-Tool: " + tool}})
	return strings.TrimSpace(out), err
}

// save commits changes that no call has committed, such as those of background commands.
func (s *server) save(ctx context.Context, at *place) error {
	defer s.Locks.lock(at.box.ID)()
	_, err := s.commit(ctx, at, "Changes of background commands", "save", "")
	return err
}

// after commits the changes of a call, and adds the note to its answer. A commit that fails is no failure of the call:
// the changes are in the files, and the next call commits them.
func (s *server) after(ctx context.Context, a answer, message, tool, detail string) answer {
	note, err := s.commit(ctx, a.at, message, tool, detail)
	if err != nil {
		note = "the changes are not committed: " + errors.Message(err)
	}
	if note != "" {
		a.notes = append(a.notes, note)
	}
	return a
}
