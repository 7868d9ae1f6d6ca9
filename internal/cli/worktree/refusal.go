package worktree

import (
	"os/exec"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/cli/chat"
)

// newerGit is the remedy for repositories in a format that the installed git does not know.
const newerGit = "update git on this machine, or use the older format: "

// refusals map git's refusals of a repository of this machine to remedies, in which DIR is the directory. The first
// match
// counts.
var refusals = []struct{ said, remedy string }{
	{"dubious ownership", "if you trust its files, run: git config --global --add safe.directory DIR"},
	{"refstorage", newerGit + "git refs migrate --ref-format=files, with the newer git"},
	{"relativeworktrees", newerGit + "git worktree repair --no-relative-paths and git config --unset " +
		"extensions.relativeWorktrees, with the newer git"},
	{"repository extension", "update git on this machine, or remove the extension from the repository's configuration"},
	{"git repo version", "update git on this machine"},
	{"cannot use bare repository", "run the command in a work tree of the repository"},
	{"bad config", "correct the configuration that git names"},
	{"bad numeric config", "correct the configuration that git names"},
	{"ermission denied", "make the repository readable for you"},
}

// refused returns the error for a directory in which git could not read a commit, or could not find a repository. err
// is
// the error of git. The result hides nothing that git says, except that there is no repository or no commit.
func refused(err error, said, dir, what, remedy string) error {
	if errors.Is(err, exec.ErrNotFound) {
		return errors.Remedy(errors.Explainf(err, errors.Unsupported, "git: not found on this machine"), "install git")
	}
	if said == "" || strings.Contains(said, "fatal: not a git repository (or any") {
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "%s", what), "%s", remedy)
	}
	for _, r := range refusals {
		if strings.Contains(strings.ToLower(said), r.said) {
			remedy = strings.ReplaceAll(r.remedy, "DIR", quotedDir(said, dir))
			break
		}
	}
	return errors.Remedy(errors.Explainf(err, errors.Invalid, "%s: git refuses the repository: %s", dir,
		strings.Join(strings.Fields(chat.Plain(strings.Replace(said, "fatal: ", "", 1))), " ")), "%s", remedy)
}

// quotedDir returns the directory that git names in its refusal, quoted for the shell.
func quotedDir(said, dir string) string {
	if _, rest, ok := strings.Cut(said, "dubious ownership in repository at '"); ok {
		if name, _, ok := strings.Cut(rest, "'\n"); ok {
			dir = name
		}
	}
	return "'" + strings.ReplaceAll(dir, "'", `'\''`) + "'"
}
