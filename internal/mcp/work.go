package mcp

import (
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

type diffIn struct {
	Environment string   `json:"environment,omitempty"`
	Session     string   `json:"session,omitempty"`
	Summary     bool     `json:"summary,omitempty"`
	Paths       []string `json:"paths,omitempty"`
	Offset      int      `json:"offset,omitempty"`
}

func (diffIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"session":     "instead of an environment: ID of a session of agent_start",
		"summary":     "only the commits and the changed files",
		"paths":       "only these files and directories",
		"offset":      "position in the output, in bytes, to continue from",
	}
}

type handIn struct {
	Environment string `json:"environment,omitempty"`
	Session     string `json:"session,omitempty"`
	Branch      string `json:"branch,omitempty"`
	Directory   string `json:"directory,omitempty"`
}

func (handIn) arguments() arguments {
	return arguments{
		"environment": "name of the environment",
		"session":     "instead of an environment: ID of a session of agent_start",
		"branch":      "name of the branch for the user (default: harvest/NAME of the environment)",
		"directory": "repository of the user that gets the branch (default: the one that the environment was " +
			"created from, or the current one)",
	}
}

// workTools are the tools that show work and hand it back.
type workTools struct{ *server }

func (s workTools) add(to tools) {
	add(to, "diff", "Show the changes",
		`Show what has changed in an environment since it began, without the user's own uncommitted work: the `+
			`commits, the changed files and the patch. Long patches come in parts.`,
		reads, s.diff)
	add(to, "hand_back", "Hand the work back",
		`Give the work of an environment to the user as a branch: it is fetched into the user's repository, where `+
			`nothing else changes and no branch with other commits is moved. If the environment was created from an `+
			`address, the branch is pushed there. Call it when the work is done, and tell the user the branch.`,
		changes, s.handBack)
}

func (s workTools) diff(ctx context.Context, _ progress, in diffIn) (answer, error) {
	if in.Session != "" {
		return s.sessionDiff(ctx, in)
	}
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	if err := s.save(ctx, at); err != nil {
		return answer{}, err
	}
	summary := ""
	if in.Summary {
		summary = "yes"
	}
	out, err := s.run(ctx, at.box.ID, script{name: "diff", args: in.Paths, env: map[string]string{"DIR": at.dir,
		"SUMMARY": summary, "OFFSET": strconv.Itoa(max(in.Offset, 0)), "SIZE": strconv.Itoa(pageBytes)}})
	if err != nil {
		return answer{}, err
	}
	size, text, _ := strings.Cut(out, "\n")
	total, _ := strconv.Atoi(strings.TrimSpace(size)) // written by the script
	return part(answer{at: at, text: text}, in.Offset, total), nil
}

// part adds to an answer how to read the rest of a patch.
func part(a answer, offset, total int) answer {
	switch end := offset + len(a.text); {
	case strings.TrimSpace(a.text) == "":
		a.text = "Nothing has changed."
	case end < total:
		a.notes = append(a.notes, fmt.Sprintf("bytes %d to %d of %d; the rest: offset %d", offset, end, total, end))
	}
	return a
}

func (s workTools) sessionDiff(ctx context.Context, in diffIn) (answer, error) {
	work, err := s.Client.SessionDiff(ctx, in.Session, "")
	if err != nil {
		return answer{}, err
	}
	defer work.Close()
	patch, err := io.ReadAll(io.LimitReader(work, api.MaxPatch))
	if err != nil {
		return answer{}, err
	}
	offset := min(max(in.Offset, 0), len(patch))
	a := answer{text: string(patch[offset:min(len(patch), offset+pageBytes)])}
	return part(a, offset, len(patch)), nil
}

func (s workTools) handBack(ctx context.Context, tell progress, in handIn) (answer, error) {
	if err := git.CheckBranch(in.Branch); err != nil {
		return answer{}, err
	}
	if in.Session != "" {
		return s.sessionBack(ctx, in)
	}
	at, err := s.enter(ctx, in.Environment)
	if err != nil {
		return answer{}, err
	}
	if err := s.save(ctx, at); err != nil {
		return answer{}, err
	}
	top := in.Directory
	if from := at.box.Tags[tagFrom]; top == "" && !strings.Contains(from, ":") {
		top = from
	}
	if s.Local == nil || top == "" {
		return s.push(ctx, at, in)
	}
	tell("fetching the branch")
	return s.fetch(ctx, at, top, in.Branch)
}

// fetch brings the branch of an environment into a local repository.
func (s workTools) fetch(ctx context.Context, at *place, top, as string) (answer, error) {
	const file = "/tmp/.harvest-bundle"
	out, err := s.run(ctx, at.box.ID, script{name: "bundle", env: map[string]string{"DIR": at.dir, "BUNDLE": file,
		"WHOLE": ""}})
	if err != nil {
		return answer{}, err
	}
	if strings.TrimSpace(out) == "unchanged" {
		return answer{at: at, text: "Nothing has changed, so there is no branch to hand back."}, nil
	}
	bundle, err := s.download(ctx, at, file)
	if err != nil {
		return answer{}, err
	}
	defer os.Remove(bundle)
	first, note, _ := strings.Cut(strings.TrimSpace(out), "\n")
	commit, id, _ := strings.Cut(first, " ")
	branch, err := s.Local.Checkout(ctx, top, Work{ID: id, Branch: branchOf(at), As: as}, bundle)
	if err != nil {
		return answer{}, err
	}
	a := answer{at: at, text: fmt.Sprintf("The branch %s of %s has the work.", branch, top), notes: []string{
		"to look at it: git log " + branch + "; to take it over: git merge " + branch}}
	if note != "" {
		a.notes = append(a.notes, note)
	}
	return a, s.handed(ctx, at, commit)
}

// branchOf returns the branch of an environment.
func branchOf(at *place) string { return "harvest/" + at.name }

// handed notes that the user has the work up to a commit.
func (s workTools) handed(ctx context.Context, at *place, commit string) error {
	_, err := s.run(ctx, at.box.ID, script{name: "handed", env: map[string]string{"DIR": at.dir, "COMMIT": commit}})
	return err
}

// download copies a file of an environment into a temporary one, and removes it there.
func (s *server) download(ctx context.Context, at *place, name string) (string, error) {
	file, err := s.Client.ReadFile(ctx, at.box.ID, name, 0, -1)
	if err != nil {
		return "", err
	}
	defer file.Close()
	defer func() { _ = s.Client.RemoveFile(context.WithoutCancel(ctx), at.box.ID, name, false) }()
	temp, err := os.CreateTemp("", "harvest-mcp-*.bundle")
	if err != nil {
		return "", errors.Explainf(err, errors.Unavailable, "cannot create a temporary file: %v", err)
	}
	_, err = io.Copy(temp, file)
	if err = errors.Join(err, temp.Close()); err != nil {
		_ = os.Remove(temp.Name())
		return "", err
	}
	return temp.Name(), nil
}

// push pushes the branch of an environment to its origin.
func (s workTools) push(ctx context.Context, at *place, in handIn) (answer, error) {
	branch := in.Branch
	if branch == "" {
		branch = branchOf(at)
	}
	out, err := s.run(ctx, at.box.ID, script{name: "push", env: map[string]string{"DIR": at.dir, "BRANCH": branch}})
	if err != nil {
		if errors.KindOf(err) == errors.Invalid {
			err = git.Explain("cannot push "+branch, errors.Message(err))
		}
		return answer{}, err
	}
	switch commit := strings.TrimSpace(out); commit {
	case "unchanged":
		return answer{at: at, text: "Nothing has changed, so there is no branch to hand back."}, nil
	case "no origin":
		return answer{}, errors.Remedy(errors.Newf(errors.Unsupported, "the environment has no origin to push to"),
			"let the user run: harvest sandbox cp %s:%s ./%s, or give the directory of a repository of the user",
			at.name, at.dir, at.name)
	default:
		return answer{at: at, text: fmt.Sprintf("Pushed the work to the branch %s of the origin.", branch)},
			s.handed(ctx, at, commit)
	}
}

// sessionBack hands back the work of a session.
func (s workTools) sessionBack(ctx context.Context, in handIn) (answer, error) {
	session, err := s.Client.Session(ctx, in.Session)
	if err != nil {
		return answer{}, err
	}
	if s.Local == nil {
		done, err := s.Client.PushSession(ctx, session.ID, api.PushRequest{})
		return answer{text: fmt.Sprintf("Pushed the work to the branch %s of the origin.", done.Branch)}, err
	}
	work, err := s.Client.SessionBundle(ctx, session.ID, "")
	if err != nil {
		return answer{}, err
	}
	defer work.Close()
	temp, err := os.CreateTemp("", "harvest-mcp-*.bundle")
	if err != nil {
		return answer{}, errors.Explainf(err, errors.Unavailable, "cannot create a temporary file: %v", err)
	}
	defer os.Remove(temp.Name())
	_, err = io.Copy(temp, work)
	if err = errors.Join(err, temp.Close()); err != nil {
		return answer{}, err
	}
	branch, err := s.Local.Checkout(ctx, in.Directory, Work{ID: session.ID, Branch: session.WorkBranch, As: in.Branch},
		temp.Name())
	if err != nil {
		return answer{}, err
	}
	if err := s.Client.TakenChanges(ctx, session.ID, "", work.Changes); err != nil {
		return answer{}, err
	}
	return answer{text: fmt.Sprintf("The branch %s has the work of session %s.", branch, session.ID)}, nil
}
