package repo

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

// All operations on a repository run in a sandbox: its content is untrusted.

// credentials is a git credential helper that reads its answers from the environment, which contains the secrets of
// the recipe. It writes no files, and no argument contains a token. GITHUB_TOKEN is for GitHub only, GIT_TOKEN for
// the repository's host.
const credentials = `!f() {
	[ "$1" = get ] || exit 0
	host=
	while IFS='=' read -r name value; do if [ "$name" = host ]; then host=$value; fi; done
	token=
	case $host in github.com) token=$GITHUB_TOKEN ;; esac
	if [ -n "$GIT_TOKEN" ] && [ "$host" = "$HARVEST_GIT_HOST" ]; then token=$GIT_TOKEN; fi
	if [ -n "$token" ]; then printf 'username=%s\npassword=%s\n' "${GIT_USERNAME:-x-access-token}" "$token"; fi
}; f`

// gitEnv returns the environment of Harvest's own git commands.
func gitEnv(url string) map[string]string {
	host := strings.TrimPrefix(key(url), "/")
	host, _, _ = strings.Cut(host, "/")
	return map[string]string{
		"GIT_TERMINAL_PROMPT": "0", "GIT_LFS_SKIP_SMUDGE": "1", "LC_ALL": "C.UTF-8",
		"GIT_ALLOW_PROTOCOL": "https:http:ssh:git:file", "HARVEST_GIT_HOST": host,
		"GIT_CONFIG_COUNT": "2", "GIT_CONFIG_KEY_0": "credential.helper", "GIT_CONFIG_VALUE_0": "",
		"GIT_CONFIG_KEY_1": "credential.helper", "GIT_CONFIG_VALUE_1": credentials,
	}
}

// stepEnv is added to the sandbox's environment for the repository's commands.
var stepEnv = map[string]string{
	"CI": "true", "GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive",
	"npm_config_update_notifier": "false", "YARN_ENABLE_TELEMETRY": "0",
	"HUSKY": "0", "PIP_NO_INPUT": "1",
}

// The scripts. Their parameters are $1, $2, ….
const (
	// lookScript prints the refs of the remote: URL, branch.
	// Without a branch, and if HEAD names a branch that does not exist, it prints some of the branches.
	lookScript = `if [ -n "$2" ]; then exec git ls-remote --symref -- "$1" HEAD "refs/heads/$2"; fi
head=$(git ls-remote --symref -- "$1" HEAD)
if [ -n "$head" ]; then echo "$head"; else git ls-remote --heads -- "$1" | head -n 20; fi`
	// dirScript creates the directory for the repository, as root, and changes its owner to the given user:
	// directory, uid:gid.
	dirScript = `[ -d "$1" ] || { mkdir -p "$1"; chown "$2" "$1"; }`
	// cloneScript clones the repository: URL, branch, directory.
	cloneScript = `git clone --progress --no-recurse-submodules --branch="$2" -- "$1" "$3"
mkdir -p "$3/.git/info"
printf '%s\n' .venv/ .bundle/ vendor/bundle/ node_modules/ >>"$3/.git/info/exclude"
git -C "$3" rev-parse --verify HEAD`
	// updateScript updates the repository to the newest commit and keeps untracked files: URL, branch, directory.
	updateScript = `cd "$3"
git remote set-url origin "$1"
git fetch --progress --prune --force --no-recurse-submodules origin "+refs/heads/$2:refs/remotes/origin/$2"
git checkout --quiet --force -B "$2" "refs/remotes/origin/$2"
git rev-parse --verify HEAD`
	// readScript prints files, each with its size on a line before it: directory, size limit. Its input has a line for
	// each file: its digest, and a smaller limit for files of which the beginning is enough.
	readScript = `cd "$1"
while read -r id most; do
	size=$(git cat-file -s "$id")
	if [ "$most" -lt "$2" ] && [ "$size" -gt "$most" ]; then size=$most; fi
	if [ "$size" -gt "$2" ]; then size=0; fi
	echo "$size"
	if [ "$size" -gt 0 ]; then git cat-file blob "$id" | head -c "$size"; fi
done`
	// partsScript fetches the parts that a clone omits: directory, whether the large files, whether the submodules. The
	// allowed protocols are those with which git does not start a program of the repository's choice.
	partsScript = `cd "$1"
if [ "$2" = true ]; then git lfs install --local --skip-smudge >/dev/null; git lfs pull; fi
if [ "$3" = true ]; then
	export GIT_ALLOW_PROTOCOL=https:http:ssh:git
	git submodule --quiet sync --recursive
	git submodule update --init --recursive --force --progress
	if [ "$2" = true ]; then git submodule --quiet foreach --recursive 'git lfs pull'; fi
fi`
	// pythonsScript prints the interpreters of the sandbox, each with its version.
	pythonsScript = `IFS=:
for dir in $PATH; do
	for program in "$dir/python3" "$dir"/python3.[0-9] "$dir"/python3.[0-9][0-9]; do
		[ -x "$program" ] || continue
		version=$("$program" -c 'import platform; print(platform.python_version())' 2>/dev/null) || continue
		echo "$program $version"
	done
done`
	// uvScript installs a version of Python with uv: specifier. It fails without uv.
	uvScript = `command -v uv >/dev/null; uv python install "$1" >&2; command -v uv`
	// cleanScript removes files that no session needs, as root: directory, owner, seconds. It also removes files from
	// caches that are old and were not read recently.
	cleanScript = `find /tmp -mindepth 1 -maxdepth 1 -exec rm -rf {} + 2>/dev/null || true
rm -rf /var/lib/apt/lists/* /var/cache/apt/archives/*.deb
home=$(getent passwd "${2%%:*}" | cut -d: -f6)
for cache in "$home/.cache" "$home/.npm/_cacache" /var/cache/harvest/npm; do
	if [ -d "$cache" ]; then find "$cache" -xdev -type f -mmin "+$3" -amin "+$3" -delete || true; fi
done
if [ "$(stat -c %u "$1")" != "${2%%:*}" ] || [ -n "$4" ]; then chown -R "$2" "$1"; fi`
	// verifyScript fails unless the repository is at the commit and its programs run: directory, commit, whether Node
	// is needed.
	verifyScript = `cd "$1"
test "$(git rev-parse HEAD)" = "$2" || { echo "the repository is at another commit" >&2; exit 1; }
git diff --quiet HEAD -- || echo "building has changed files of the repository" >&2
if [ -n "$3" ]; then node --version; fi`
)

const maxListing = 8 << 20 // limit for git's listing of a repository's files, in bytes

// limited stores the data that is written to it, up to maxListing bytes.
type limited struct {
	bytes.Buffer
	over bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > maxListing {
		l.over = true
		return len(p), nil
	}
	return l.Buffer.Write(p)
}

// command is a command of Harvest itself in a build's sandbox.
type command struct {
	text   string
	params []string
	user   string
	stdin  io.Reader
	quiet  bool // keep its output out of the log
}

// script runs one of Harvest's own scripts in a sandbox and returns its output.
func (a *attempt) script(ctx context.Context, box string, c command) ([]byte, error) {
	var out limited
	var said io.Writer = a.log
	var complaint limited
	if c.quiet {
		said = &complaint
	} else {
		said = io.MultiWriter(a.log, &complaint)
	}
	x, err := a.m.opts.Fleet.Exec(ctx, a.repo.Account, box, fleet.ExecRequest{
		Args: append([]string{"/bin/sh", "-euc", c.text, "sh"}, c.params...), User: c.user, Workdir: "/",
		Env:   a.env(gitEnv(a.repo.URL)),
		Stdin: c.stdin, Stdout: &out, Stderr: said,
		Timeout: a.repo.Recipe.limit(),
	})
	if err != nil {
		return nil, err
	}
	result, err := x.Wait(context.WithoutCancel(ctx)) // when ctx ends, the script is killed
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case err != nil:
		return nil, err
	case result.ReturnCode != 0:
		if host := hostname(a.repo.URL); git.Unreachable(complaint.String()) {
			why := a.m.opts.Fleet.Refusal(ctx, a.repo.Account, box, host)
			if err := git.Unreached("the repository's server cannot be reached", host, why); err != nil {
				return nil, err
			}
		}
		return nil, gitError(complaint.String(), result.Reason, result.ReturnCode)
	case out.over:
		return nil, errors.Newf(errors.Invalid, "the repository has too many files that say how it is installed")
	}
	return out.Bytes(), nil
}

// hostname returns the host of a repository's address, without its port.
func hostname(address string) string {
	host, _, _ := strings.Cut(strings.TrimPrefix(key(address), "/"), "/")
	return (&url.URL{Host: host}).Hostname()
}

// gitError returns the error for the output of a failed script.
func gitError(text, reason string, code int) error {
	said := lastLine(text)
	if said == "" {
		said = reason
	}
	if said == "" {
		said = "a command ended with exit code " + strconv.Itoa(code)
	}
	has := func(words ...string) bool {
		return slices.ContainsFunc(words, func(w string) bool { return strings.Contains(text, w) })
	}
	switch {
	case has("No space left on device", "Disk quota exceeded"): // the latter at the limit of a volume's files
		return errors.Remedy(errors.Newf(errors.Exhausted, "the disk is full: %s", said),
			"give the sandbox more with --disk")
	case has("'lfs' is not a git command"):
		return errors.Remedy(errors.Newf(errors.Unsupported, "the image has no git-lfs"),
			"use the image \"agent\", or install git-lfs with --setup")
	case has("could not read Username", "Authentication failed", "Permission denied (publickey)", "error: 401",
		"error: 403"):
		return errors.Remedy(errors.Newf(errors.Unauthenticated, "the repository's server requires a token: %s", said),
			"put GITHUB_TOKEN, or GIT_TOKEN and perhaps GIT_USERNAME, into a secret and name it with --secret")
	case has("Repository not found", "not found", "does not appear to be a git repository", "error: 404",
		"does not exist"):
		return errors.Remedy(errors.Newf(errors.NotFound, "the repository is not there: %s", said),
			"check its address and its branch")
	}
	if git.Unreachable(text) {
		return errors.Remedy(errors.Newf(errors.Unavailable, "the repository's server cannot be reached: %s", said),
			"check its address, and whether the sandbox may reach it (--network)")
	}
	return errors.Newf(errors.Unavailable, "%s", said)
}

// lastLine returns the last non-empty line.
func lastLine(text string) string {
	lines := strings.FieldsFunc(text, func(c rune) bool { return c == '\n' || c == '\r' })
	for _, line := range slices.Backward(lines) {
		if line = strings.TrimSpace(string(clean([]byte(line)))); line != "" {
			return line[:min(len(line), 500)]
		}
	}
	return ""
}

// remote is the answer of git ls-remote for a branch.
type remote struct {
	branch, commit string
}

// parseRemote parses the output of git ls-remote --symref. branch "" means the branch of HEAD.
func parseRemote(out, branch string) (remote, error) {
	refs, head := map[string]string{}, ""
	for line := range strings.Lines(out) {
		value, name, ok := strings.Cut(strings.TrimRight(line, "\n"), "\t")
		if !ok {
			continue
		}
		if target, symbolic := strings.CutPrefix(value, "ref: "); symbolic {
			if name == "HEAD" {
				head = strings.TrimPrefix(target, "refs/heads/")
			}
			continue
		}
		refs[name] = value
	}
	if branch == "" {
		branch = head
	}
	commit := refs["refs/heads/"+branch]
	if commit == "" && branch == head {
		commit = refs["HEAD"]
	}
	switch {
	case commit != "" && isHash(commit):
		return remote{branch, commit}, nil
	case len(refs) == 0 && branch == head:
		return remote{}, errors.Remedy(errors.Newf(errors.Invalid, "the repository is empty"), "push a commit first")
	case branch == "" && head == "":
		return headless(refs)
	}
	return remote{}, errors.Remedy(errors.Newf(errors.NotFound, "the repository has no branch %.100q", branch),
		"name another one with --branch")
}

// headless returns the branch of a repository whose HEAD names a branch that does not exist: the only one, else none.
func headless(refs map[string]string) (remote, error) {
	var names []string
	for _, ref := range slices.Sorted(maps.Keys(refs)) {
		if name, ok := strings.CutPrefix(ref, "refs/heads/"); ok && isHash(refs[ref]) {
			names = append(names, name)
		}
	}
	if len(names) == 1 {
		return remote{names[0], refs["refs/heads/"+names[0]]}, nil
	}
	err := errors.Newf(errors.NotFound, "the repository's HEAD names a branch that does not exist")
	return remote{}, errors.Remedy(err, "name a branch with --branch, such as %.200s", strings.Join(names, ", "))
}

func isHash(text string) bool {
	return (len(text) == 40 || len(text) == 64) && strings.Trim(text, "0123456789abcdef") == ""
}

// inspect reads the checked-out tree.
func (a *attempt) inspect(ctx context.Context) (Tree, error) {
	args := []string{a.repo.Dir}
	for _, name := range append(slices.Concat(locks, manifests, settings, contents), "*requirements*.txt",
		"requirements/*.txt", "Dockerfile") {
		args = append(args, ":(glob)**/"+name)
	}
	args = append(args, ":(glob).devcontainer/**", ":(glob).devcontainer*.json")
	listing, err := a.script(ctx, a.box, command{text: `cd "$1"; shift; exec git ls-files -s -z -- "$@"`,
		params: args, quiet: true})
	if err != nil {
		return Tree{}, err
	}
	t := parseListing(listing)
	var names []string
	var ask strings.Builder
	for name, digest := range t.Digests {
		if NeedsText(name) {
			names = append(names, name)
		}
		_ = digest
	}
	slices.Sort(names)
	for _, name := range names {
		most := MaxText
		if slices.Contains(locks, path.Base(name)) {
			most = headBytes
		}
		fmt.Fprintf(&ask, "%s %d\n", t.Digests[name], most)
	}
	texts, err := a.script(ctx, a.box, command{text: readScript,
		params: []string{a.repo.Dir, strconv.Itoa(MaxText)}, stdin: strings.NewReader(ask.String()), quiet: true})
	if err != nil {
		return Tree{}, err
	}
	t.Text = parseTexts(texts, names)
	return t, nil
}

// parseListing parses the output of git ls-files -s -z, and returns the regular files that Detect wants.
func parseListing(out []byte) Tree {
	t := Tree{Digests: map[string]string{}}
	for entry := range strings.SplitSeq(string(out), "\x00") {
		about, name, ok := strings.Cut(entry, "\t")
		fields := strings.Fields(about)
		if !ok || len(fields) != 3 || !strings.HasPrefix(fields[0], "100") || !isHash(fields[1]) ||
			path.Clean(name) != name || !Wanted(name) {
			continue
		}
		t.Digests[name] = fields[1]
	}
	return t
}

// parseTexts parses file contents, one for each name: the size on a line, followed by that many bytes.
func parseTexts(out []byte, names []string) map[string][]byte {
	texts := map[string][]byte{}
	for _, name := range names {
		line, rest, ok := bytes.Cut(out, []byte("\n"))
		size, err := strconv.Atoi(string(line))
		if !ok || err != nil || size < 0 || size > len(rest) {
			break
		}
		texts[name], out = rest[:size], rest[size:]
	}
	return texts
}
