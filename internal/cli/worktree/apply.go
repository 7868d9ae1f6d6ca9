package worktree

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/atomicfile"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// Apply applies a patch of a session to the files of the repository at top, or only checks whether it could.
// repository is the session's name of the repository. The patch replaces the one that was applied before. It returns a
// text for the user.
func Apply(ctx context.Context, top, session, repository string, patch []byte, check bool) (string, error) {
	record, err := gitLine(ctx, top, "rev-parse", "--path-format=absolute", "--git-path",
		"harvest/applied/"+session+strings.ReplaceAll(repository, "/", "%2F"))
	if err != nil {
		return "", err
	}
	return applying{top: top, session: session, record: record}.run(ctx, patch, check)
}

// applying is the transfer of a session's changes to the files of a local repository.
type applying struct {
	top     string // of the repository
	session string
	record  string // file with the patch that was applied last; "" for none
}

// step is a patch to apply, or to revert.
type step struct {
	patch
	reverse bool
}

// run applies a patch completely or not at all. If an earlier patch of the session is still in the files, the patch
// replaces that one.
func (a applying) run(ctx context.Context, text []byte, check bool) (string, error) {
	next, err := readPatch(ctx, a.top, text)
	if err != nil {
		return "", err
	}
	steps := []step{{patch: next}}
	if earlier, ok := a.earlier(ctx); ok {
		if bytes.Equal(earlier.text, text) {
			return "the files have these changes already", nil
		}
		steps = append([]step{{earlier, true}}, steps...)
	} else if len(text) == 0 {
		return "", errors.Remedy(errors.Newf(errors.Conflict, "the agent has changed nothing"),
			"see its events: harvest attach %s", a.session)
	} else if err := a.git(ctx, nil, steps[0], "--check"); err != nil {
		if a.git(ctx, nil, step{next, true}, "--check") == nil {
			return "the files have these changes already", nil
		}
		return "", a.explain(ctx, err)
	}
	if err := a.rehearse(ctx, steps); err != nil {
		return "", a.explain(ctx, err)
	}
	if check {
		return next.summary() + ": can be applied", nil
	}
	if err := a.write(ctx, steps); err != nil {
		return "", a.explain(ctx, err)
	}
	if a.record != "" {
		// Best effort: without the record, the patch of a later turn must fit to the files as they are.
		_ = errors.Join(os.MkdirAll(filepath.Dir(a.record), 0o755), atomicfile.Write(a.record, text, 0o600))
	}
	return next.summary() + ": applied to the files", nil
}

// earlier returns the patch that was applied last, if the files still have its changes.
func (a applying) earlier(ctx context.Context) (patch, bool) {
	if a.record == "" {
		return patch{}, false
	}
	text, err := os.ReadFile(a.record)
	if err != nil || len(text) == 0 {
		return patch{}, false
	}
	p, err := readPatch(ctx, a.top, text)
	return p, err == nil && a.git(ctx, nil, step{p, true}, "--check") == nil
}

// git runs git apply for a step, without the changes of submodules.
func (a applying) git(ctx context.Context, env []string, s step, flags ...string) error {
	if len(s.text) == 0 || s.files == len(s.modules) {
		return nil
	}
	args := append([]string{"apply", "--whitespace=nowarn"}, flags...)
	if s.reverse {
		args = append(args, "--reverse")
	}
	for _, name := range s.modules {
		args = append(args, "--exclude="+globs.Replace(name))
	}
	_, err := gitWith(ctx, a.top, env, bytes.NewReader(s.text), append(args, "-")...)
	return err
}

// globs escapes a path for a pattern of git.
var globs = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`)

// rehearse applies the steps to a copy of the files in a temporary index, and checks the symbolic links of the result.
// git apply itself refuses paths outside the repository: those with "..", below .git, or through a symbolic link. But
// it writes symbolic links that lead outside, and a program that follows one leaves the repository.
func (a applying) rehearse(ctx context.Context, steps []step) error {
	env, remove, err := a.copyOf(ctx, steps)
	if err != nil {
		return err
	}
	defer remove()
	for _, s := range steps {
		if err := a.git(ctx, env, s, "--cached"); err != nil {
			return err
		}
	}
	return a.checkLinks(ctx, env)
}

// checkLinks refuses an index with a new symbolic link that leads out of the repository.
func (a applying) checkLinks(ctx context.Context, env []string) error {
	list, err := gitWith(ctx, a.top, env, nil, "ls-files", "--stage", "-z")
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(a.top)
	if err != nil {
		return errors.Explainf(err, errors.Denied, "cannot open the repository: %v", err)
	}
	defer root.Close()
	for entry := range strings.SplitSeq(string(list), "\x00") {
		facts, name, _ := strings.Cut(entry, "\t")
		fields := strings.Fields(facts) // mode, object, stage
		if len(fields) != 3 || fields[0] != "120000" {
			continue
		}
		target, err := gitWith(ctx, a.top, env, nil, "cat-file", "blob", fields[1])
		if err != nil {
			return err
		}
		if now, err := root.Readlink(name); (err != nil || now != string(target)) &&
			!staysIn(root, name, string(target)) {
			return leadsOut(name)
		}
	}
	return nil
}

// staysIn reports whether a symbolic link would lead to a file within root, or to nothing. It checks the text of the
// link and its resolved target.
func staysIn(root *os.Root, name, target string) bool {
	to := path.Join(path.Dir(name), target)
	if path.IsAbs(target) || to == ".." || strings.HasPrefix(to, "../") {
		return false
	}
	_, err := root.Stat(path.Dir(name) + "/" + target)
	return err == nil || errors.IsNotExist(err)
}

func leadsOut(name string) error {
	return errors.Remedy(errors.Newf(errors.Denied,
		"the agent has made a symbolic link, %.200s, that leads out of the repository", chat.Plain(name)),
		"look at it with harvest diff, or fetch the work as a branch with harvest checkout")
}

// write applies the steps. If one fails, such as on a full disk, the files are as before.
func (a applying) write(ctx context.Context, steps []step) error {
	kept, err := saveFiles(a.top, touched(steps))
	if err != nil {
		return err
	}
	defer kept.close()
	for _, s := range steps {
		if err := a.git(ctx, nil, s); err != nil {
			return errors.Join(err, kept.restore())
		}
	}
	return nil
}

// touched returns the paths that the steps may change, without submodules.
func touched(steps []step) (all []string) {
	seen := map[string]bool{}
	for _, s := range steps {
		for _, name := range s.modules {
			seen[name] = true
		}
		for _, name := range s.names {
			if !seen[name] {
				seen[name] = true
				all = append(all, name)
			}
		}
	}
	return all
}

// inTheWay matches git's complaints about single files.
var inTheWay = pattern.New(`(?m)error: (?:patch failed: )?(.+?)(?::\d+$|: patch does not apply|: already exists in ` +
	`working directory|: No such file or directory)`)

// explain names the user's own changes that a patch conflicts with.
func (a applying) explain(ctx context.Context, err error) error {
	if errors.KindOf(err) != errors.Conflict {
		return err
	}
	var own []string
	for _, m := range inTheWay().FindAllStringSubmatch(errors.Message(err), -1) {
		if out, e := gitIn(ctx, a.top, nil, "status", "--porcelain", "--ignored", "--", m[1]); e == nil &&
			len(out) > 0 && !strings.Contains(strings.Join(own, "\n"), m[1]) {
			own = append(own, m[1])
		}
	}
	if len(own) == 0 {
		return err
	}
	text := strings.Join(own[:min(len(own), 5)], ", ")
	return errors.Remedy(errors.Newf(errors.Conflict, "%s", errors.Message(err)),
		"nothing was changed; commit, stash or move your own changes of %s first, or fetch the work as a branch: "+
			"harvest checkout %s", text, a.session)
}

// patch is a patch for git apply.
type patch struct {
	text           []byte
	files          int
	added, removed int
	names          []string // paths before and after, of submodules too
	modules        []string // paths of submodules
}

var (
	header   = pattern.New(`(?m)^diff --git `)
	linkMode = pattern.New(`(?m)^(?:new file mode|deleted file mode|new mode|old mode|index [0-9a-f]+\.\.[0-9a-f]+) ` +
		`160000$`)
)

// readPatch lists the paths of a patch as git reads them.
func readPatch(ctx context.Context, top string, text []byte) (patch, error) {
	p := patch{text: text}
	if len(text) == 0 {
		return p, nil
	}
	starts := header().FindAllIndex(text, -1)
	for _, flags := range [][]string{nil, {"--reverse"}} {
		list, err := gitIn(ctx, top, bytes.NewReader(text),
			append(append([]string{"apply", "--numstat", "-z"}, flags...), "-")...)
		if err != nil {
			return p, err
		}
		entries := strings.Split(strings.TrimSuffix(string(list), "\x00"), "\x00")
		for i, entry := range entries {
			fields := strings.SplitN(entry, "\t", 3)
			if len(fields) != 3 {
				continue
			}
			p.names = append(p.names, fields[2])
			if flags != nil {
				continue
			}
			added, _ := strconv.Atoi(fields[0]) // "-" for a binary file
			removed, _ := strconv.Atoi(fields[1])
			p.files, p.added, p.removed = p.files+1, p.added+added, p.removed+removed
			if len(starts) != len(entries) {
				continue
			}
			part := text[starts[i][0]:]
			if i+1 < len(starts) {
				part = text[starts[i][0]:starts[i+1][0]]
			}
			head, _, _ := bytes.Cut(part, []byte("\n@@ "))
			if linkMode().Match(head) {
				p.modules = append(p.modules, fields[2])
			}
		}
	}
	return p, nil
}

// summary describes a patch in one line, or two with submodules.
func (p patch) summary() string {
	text := ""
	if len(p.modules) > 0 {
		text = "changes of submodules are not applied: " + chat.Plain(strings.Join(p.modules, ", ")) + "\n"
	}
	return text + fmt.Sprintf("%s, +%d -%d", chat.Count(p.files-len(p.modules), "file"), p.added, p.removed)
}
