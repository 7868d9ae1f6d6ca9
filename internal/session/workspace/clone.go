package workspace

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/internal/session/git"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// cloneScript clones a repository unless it exists. Its parameters are environment variables.
const cloneScript = receive + `
git config --global user.name "$NAME"
git config --global user.email "$EMAIL"
if [ ! -e "$DIR/.git" ]; then
	if [ -n "$SENT" ]; then
		header
		cloned
	elif [ -n "$FROM" ]; then
		set -- --quiet --no-recurse-submodules
		[ -z "$BRANCH" ] || set -- "$@" "--branch=$BRANCH"
		[ "$DEPTH" = 0 ] || set -- "$@" "--depth=$DEPTH"
		git clone "$@" -- "$FROM" "$DIR"
		if ! git -C "$DIR" rev-parse --quiet --verify HEAD >/dev/null; then # HEAD names a missing branch
			set -- $(git -C "$DIR" for-each-ref --format='%(refname:lstrip=3)' refs/remotes/origin)
			[ $# != 1 ] || git -C "$DIR" checkout --quiet "$1"
			if [ $# -gt 1 ]; then
				echo "fatal: HEAD names a branch that does not exist; there are: $*" >&2
				rm -rf "$DIR"
				exit 1
			fi
		fi
	else
		git init --quiet -b main "$DIR"
		git -C "$DIR" commit --quiet --allow-empty -m "Begin"
	fi
fi` + beginScript

// applyScript commits the user's uncommitted changes, and sets start to that commit.
const applyScript = `
	if [ -s "$PATCH" ]; then
		git apply --index --whitespace=nowarn "$PATCH"
		git -c core.hooksPath=/dev/null -c commit.gpgSign=false -c user.name="$BY" -c user.email="$BYMAIL" \
			commit --quiet --no-verify -m "Uncommitted changes at the start of the session" -m "Harvest-Carried: yes"
		start=$(git rev-parse --verify HEAD)
	fi`

// beginScript starts the work at HEAD, unless it has started: on a separate branch, on top of the user's uncommitted
// changes. It prints the starting commit and the agent's starting commit. Each git process costs milliseconds in a
// sandbox, so harvest-git's settings are written into the configuration in one step.
const beginScript = `
cd "$DIR"
if ! grep -qF "work = \"$WORK\"" .git/config; then
	base=$(git rev-parse --quiet --verify HEAD || true)
	if [ -n "$base" ]; then git checkout --quiet -B "$WORK"; else git symbolic-ref HEAD "refs/heads/$WORK"; fi
	start=$base` + applyScript + `
	[ -z "$start" ] || git update-ref refs/harvest/reported "$start"
	: >.git/harvest-reported
	mkdir -p .git/info
	printf '%s\n' '# of tools that Harvest gives to agents' .playwright-mcp/ >>.git/info/exclude
	printf '%s\tbase = %s\n' "$CONFIG" "$start" >>.git/config
	echo "$base $start"
fi`

// imageScript is cloneScript for a repository in the image. It updates the repository to the newest commit of the
// bundle, if there is one. Its first output line is how many commits the image was behind the bundle.
const imageScript = receive + `
git config --global user.name "$NAME"
git config --global user.email "$EMAIL"
git -C "$DIR" remote set-url origin "$ORIGIN"
image=$(git -C "$DIR" rev-parse --verify HEAD)
if [ -n "$SENT" ]; then
	otherwise=HEAD # BRANCH may be the image's: a detached HEAD has none
	header
	cd "$DIR"
	objects
	git checkout --quiet --force --detach "$head"
fi
git -C "$DIR" rev-list --count "$image..HEAD"` + beginScript

// config returns a repository's settings for harvest-git, as a section of git's configuration (git-config(1),
// "Syntax"). Without onto, harvest-git determines the origin's default branch itself.
func (t Tree) config(onto string) string {
	return configSection([2]string{"work", Branch(t.Session)}, [2]string{"onto", onto}, [2]string{"title", t.Title},
		[2]string{"events", t.events()})
}

// configSection returns the section of harvest-git's settings with the pairs that have a value.
func configSection(pairs ...[2]string) string { return section("harvest", pairs) }

// remoteSection returns the section of git's configuration about the origin at a URL.
func remoteSection(url string) string {
	return section(`remote "origin"`, [][2]string{{"url", url}, {"fetch", "+refs/heads/*:refs/remotes/origin/*"}})
}

func section(name string, pairs [][2]string) string {
	quote := strings.NewReplacer("\\", "\\\\", "\"", "\\\"", "\n", " ")
	var b strings.Builder
	b.WriteString("[" + name + "]\n")
	for _, pair := range pairs {
		if pair[1] != "" {
			b.WriteString("\t" + pair[0] + " = \"" + quote.Replace(pair[1]) + "\"\n")
		}
	}
	return b.String()
}

// partsScript fetches the parts that a clone omits: DIR LFS SUBMODULES. The allowed protocols are those with which
// git does not start a program of the repository's choice.
const partsScript = `
cd "$1"
if [ "$2" = true ]; then
	git lfs install --local --skip-smudge >/dev/null
	git lfs pull
fi
if [ "$3" = true ]; then
	GIT_ALLOW_PROTOCOL=https:http:ssh:git git submodule update --quiet --init --recursive
fi`

// Clone is a repository to clone.
type Clone struct {
	Repository
	HTTPS   string // address to use instead of URL; "" means URL
	Given   Given
	InImage bool // the repository is in the sandbox's image and only updated, to Given.Bundle
}

// Begun is the state in which work on a repository began.
type Begun struct {
	Fresh       bool   // work began just now; otherwise Base and Start are ""
	Base, Start string // as in Repository
	// Behind is how many commits the image of the repository was behind Given.Bundle; -1 without both.
	Behind int
}

// Clone clones a repository and begins work on it, unless that was done before. It leaves out the parts that FetchParts
// fetches.
func (t Tree) Clone(ctx context.Context, c Clone) (Begun, error) {
	given, err := t.send(ctx, c.Given)
	if err != nil {
		return Begun{}, err
	}
	defer given.close(ctx)
	origin, script := cmp.Or(c.HTTPS, c.URL), cloneScript // the token is valid for https only
	if c.InImage {
		script = imageScript
	}
	out, result, err := t.Run(ctx, given.script(shell.Script{Text: script, Env: map[string]string{
		"DIR": c.Dir, "FROM": origin, "ORIGIN": origin, "BRANCH": c.Branch, "DEPTH": strconv.Itoa(c.Depth),
		"WORK": Branch(t.Session), "NAME": t.Author.Name + " (Harvest)", "EMAIL": t.Author.Email,
		"CONFIG": t.config(c.Branch), "REMOTE": remoteSection(origin), "GIT_ALLOW_PROTOCOL": protocols,
	}}))
	if err == nil && result.ReturnCode != 0 {
		err = t.unreached(ctx, c.URL, git.Explain("the repository could not be cloned", result.Stderr+result.Why()))
	}
	if err != nil {
		return Begun{}, err
	}
	begun, text := Begun{Behind: -1}, string(out)
	if c.InImage {
		behind, rest, _ := strings.Cut(text, "\n")
		text = rest
		if n, err := strconv.Atoi(behind); err == nil && c.Given.Bundle != "" {
			begun.Behind = n
		}
	}
	begun.Base, begun.Start, begun.Fresh = strings.Cut(strings.TrimRight(text, "\n"), " ")
	if !begun.Fresh {
		begun.Base = ""
	}
	return begun, nil
}

// FetchParts fetches the parts of a repository that a clone omits, if they are wanted.
func (t Tree) FetchParts(ctx context.Context, r Repository) error {
	if !r.LFS && !r.Submodules {
		return nil
	}
	_, result, err := t.Run(ctx, shell.Script{Text: partsScript,
		Params: []string{r.Dir, strconv.FormatBool(r.LFS), strconv.FormatBool(r.Submodules)}})
	if err == nil && result.ReturnCode != 0 {
		err = git.Explain("the repository's large files or submodules could not be fetched", result.Stderr+result.Why())
	}
	return err
}

// unreached returns the error of a clone, or a clearer one if the network policy refused the server, or if the server's
// address is the loopback of the sandbox.
func (t Tree) unreached(ctx context.Context, from string, err error) error {
	address, parseErr := git.ParseAddress(from)
	if parseErr != nil || !git.Unreachable(err.Error()) {
		return err
	}
	why := t.Fleet.Refusal(ctx, t.Account, t.ID, address.Hostname())
	return cmp.Or(git.Unreached("the repository could not be cloned", address.Hostname(), why), err)
}
