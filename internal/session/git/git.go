// Package git contains what Harvest knows about git: the program that agents run in their sandboxes, the event lines
// that this program writes, the accepted repository addresses and branch names, and the meaning of git's error
// messages.
//
// The package runs no command on the host. Its scripts run in sandboxes: git must never run on the host in a tree
// that an agent wrote.
package git

import (
	_ "embed" // for Program
	"encoding/base64"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// Stage defines functions for /bin/sh that add all files of a work tree to the index, including those of nested
// repositories.
//
//go:embed stage.sh
var Stage string

//go:embed harvest-git.sh
var program string

// Program is harvest-git, a /bin/sh script with Safe-Carry-Forward and the panic button. The top of the script
// describes its usage.
var Program = strings.Replace(program, "\n# stage.sh\n", "\n"+Stage+"\n", 1)

// PatchFormat is the options of git diff for a patch that git apply reads, whatever the settings of the repository and
// its user: diff.noprefix, diff.submodule and the like.
const PatchFormat = "--no-ext-diff --no-textconv --no-color --src-prefix=a/ --dst-prefix=b/ --unified=3 " +
	"--submodule=short --no-relative"

// ProgramName is the command name under which agents run Program.
const ProgramName = "harvest-git"

// The types of events that Program writes. Clients see events of the same names.
const (
	Synced    = "git.synced"    // Branch, Onto, Commits; or Failed with Reason, Tried, Checkpoint
	Committed = "git.committed" // Branch, Commit, Subject, Commits
	Pushed    = "git.pushed"    // Branch, Commit
	Panic     = "git.panic"     // Branch, Checkpoint, Reason, Tried, Need
	Stashed   = "git.stashed"   // Branch, Commits, Subject: entries of git stash, handed back as branches
	Left      = "git.left"      // Branch, Reason: changes of the agent that are not handed back
)

// Event describes an action of git in a session's repository. The event type determines which fields are set.
type Event struct {
	Dir        string `json:"dir,omitempty"`
	Branch     string `json:"branch,omitempty"`
	Onto       string `json:"onto,omitempty"` // upstream branch
	Commit     string `json:"commit,omitempty"`
	Subject    string `json:"subject,omitempty"`
	Commits    int    `json:"commits,omitempty"` // upstream commits below the work, or commits made at once
	Failed     bool   `json:"failed,omitempty"`
	Reason     string `json:"reason,omitempty"`     // what failed
	Tried      string `json:"tried,omitempty"`      // a line for each attempt
	Checkpoint string `json:"checkpoint,omitempty"` // branch with the last good state
	Need       string `json:"need,omitempty"`       // what a person must do
}

// maxValue is the limit for a text from a sandbox in an Event, in bytes.
const maxValue = 8 << 10

// ParseEvent parses a line that Program wrote. ok is false if the line is not an event: agents can write arbitrary
// lines to that file.
func ParseEvent(line string) (kind string, e Event, ok bool) {
	fields := strings.Fields(line)
	if len(fields) == 0 || !slices.Contains([]string{Synced, Committed, Pushed, Panic, Stashed, Left}, fields[0]) {
		return "", Event{}, false
	}
	texts := map[string]*string{"dir": &e.Dir, "branch": &e.Branch, "onto": &e.Onto, "commit": &e.Commit,
		"subject": &e.Subject, "reason": &e.Reason,
		"tried": &e.Tried, "checkpoint": &e.Checkpoint, "need": &e.Need, "failed": new(string), "commits": new(string)}
	if fields[0] == Panic {
		texts["failed"] = &e.Reason
	}
	for _, field := range fields[1:] {
		key, encoded, _ := strings.Cut(field, "=")
		value, err := base64.StdEncoding.DecodeString(encoded)
		if err != nil || texts[key] == nil {
			return "", Event{}, false
		}
		*texts[key] = clean(string(value))
	}
	e.Failed = fields[0] == Synced && *texts["failed"] == "true"
	if n, err := strconv.Atoi(*texts["commits"]); err == nil && n >= 0 {
		e.Commits = n
	}
	return fields[0], e, true
}

// clean removes control characters and invalid UTF-8 from a text of a sandbox, so that it can be displayed.
func clean(text string) string {
	text = strings.Map(func(c rune) rune {
		if unicode.IsControl(c) && c != '\n' && c != '\t' {
			return -1
		}
		return c
	}, strings.ToValidUTF8(text[:min(len(text), maxValue)], ""))
	return strings.TrimSpace(text)
}

// Report formats a Panic event for people.
func (e Event) Report() string {
	var b strings.Builder
	b.WriteString("PANIC: " + e.Reason)
	for _, part := range []struct{ name, text string }{{"Tried", e.Tried}, {"Checkpoint", e.Checkpoint},
		{"A person must", e.Need}} {
		if part.text != "" {
			b.WriteString("\n" + part.name + ": " + part.text)
		}
	}
	return b.String()
}

var (
	scpLike  = pattern.New(`^([A-Za-z0-9._-]+)@([A-Za-z0-9.-]+):([^:].*)$`)
	notNames = pattern.New(`[^A-Za-z0-9._-]+`)
)

// Address is the location of a repository.
type Address struct {
	Scheme string // "https", "http", "ssh", "git" or "file"
	Host   string // perhaps with a port
	Path   string // without leading or trailing slashes and without ".git", such as "owner/name"
}

// ParseAddress parses a repository's address. It returns Invalid for addresses that are not accepted: some make git
// run programs, and credentials in an address would be visible.
func ParseAddress(text string) (Address, error) {
	bad := func(why string) (Address, error) {
		return Address{}, errors.Remedy(errors.Newf(errors.Invalid, "the repository cannot be cloned: %s", why),
			"give an address such as https://github.com/owner/name")
	}
	if len(text) > 2000 || strings.ContainsFunc(text, func(c rune) bool {
		return unicode.IsControl(c) ||
			unicode.IsSpace(c)
	}) {
		return bad("its address has spaces or control characters, or is too long")
	}
	if m := scpLike().FindStringSubmatch(text); m != nil {
		return Address{"ssh", strings.ToLower(m[2]), trim(m[3])}, nil
	}
	u, err := url.Parse(text)
	if err != nil || !slices.Contains([]string{"https", "http", "ssh", "git", "file"}, u.Scheme) ||
		u.Scheme != "file" && u.Hostname() == "" || strings.HasPrefix(u.Host, "-") {
		return bad("its address is not https, http, ssh or git")
	}
	if _, has := u.User.Password(); has || u.User != nil && u.Scheme != "ssh" {
		return Address{}, errors.Remedy(errors.Newf(errors.Invalid,
			"the repository's address has a user or a password in it"), "leave it out, and put a token into a secret")
	}
	return Address{u.Scheme, strings.ToLower(u.Host), trim(u.Path)}, nil
}

func trim(p string) string {
	return strings.Trim(strings.TrimSuffix(strings.TrimRight(p, "/"), ".git"), "/")
}

// Hostname is Host without its port.
func (a Address) Hostname() string { return (&url.URL{Host: a.Host}).Hostname() }

// Name returns the last part of the path as a directory name; "" if no usable characters remain.
func (a Address) Name() string { return DirName(path.Base("/" + a.Path)) }

// Owner returns the path before Name, such as an organisation, as one word; "" if the path has one part.
func (a Address) Owner() string { return DirName(strings.TrimPrefix(path.Dir("/"+a.Path), "/")) }

// DirName converts text to a directory name; "" if no usable characters remain.
func DirName(text string) string {
	return strings.Trim(notNames().ReplaceAllString(text, "-"), "-.")
}

// Origin returns the prefix of the address for which a credential is valid, such as "https://github.com"; "" if the
// scheme uses no credentials.
func (a Address) Origin() string {
	if a.Scheme != "https" && a.Scheme != "http" {
		return ""
	}
	return a.Scheme + "://" + a.Host
}

// CheckBranch returns Invalid if name is not a valid branch name (git check-ref-format). The empty name is valid.
func CheckBranch(name string) error {
	bad := strings.HasPrefix(name, "-") || strings.HasPrefix(name, "/") || strings.HasSuffix(name, "/") ||
		strings.HasSuffix(name, ".") ||
		strings.Contains(name, "..") || strings.Contains(name, "//") || strings.Contains(name, "@{") || name == "@" ||
		strings.ContainsAny(name, " ~^:?*[\\\x7f") ||
		strings.ContainsFunc(name, unicode.IsControl) || len(name) > 250
	for part := range strings.SplitSeq(name, "/") {
		bad = bad || strings.HasPrefix(part, ".") || strings.HasSuffix(part, ".lock")
	}
	if bad {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid branch %.100q", name),
			"give its name as `git branch` shows it")
	}
	return nil
}

// complaints maps git's error messages to their meaning and remedy. The texts are those of git 2.39 and 2.47
// (LC_ALL=C).
var complaints = []struct {
	said   string
	kind   errors.Kind
	means  string
	remedy string
}{
	{"could not read Username", errors.Denied, "it does not exist, or is private and there is no token for it",
		"check its address, and put a token into a secret: harvest secret set github GITHUB_TOKEN"},
	{"could not read Password", errors.Denied, "it does not exist, or is private and there is no token for it",
		"check its address, and put a token into a secret: harvest secret set github GITHUB_TOKEN"},
	{"Authentication failed", errors.Denied, "the token was refused: it is wrong, was revoked or has expired",
		"make a new one and put it into the secret"},
	{"Invalid username or", errors.Denied, "the token was refused: it is wrong, was revoked or has expired",
		"make a new one and put it into the secret"},
	{"returned error: 401", errors.Denied, "the token was refused: it is wrong, was revoked or has expired",
		"make a new one and put it into the secret"},
	{"returned error: 403", errors.Denied, "the token does not allow it",
		"give it the rights to read and write the repository's contents"},
	{"Write access to repository not granted", errors.Denied, "the token does not allow it",
		"give it the rights to read and write the repository's contents"},
	{"Permission denied (publickey", errors.Denied, "there is no SSH key in the sandbox",
		"give the repository's https address, and a token as a secret"},
	{"cannot run ssh", errors.Denied, "there is no SSH in the sandbox",
		"give the repository's https address, and a token as a secret"},
	{"Host key verification failed", errors.Denied, "the host's SSH key is not known in the sandbox",
		"give the repository's https address, and a token as a secret"},
	{"Remote branch ", errors.NotFound, "it has no such branch", "give the name of a branch that it has"},
	{"HEAD names a branch that does not exist", errors.NotFound, "its default branch is missing",
		"name one that it has with --branch"},
	{"couldn't find remote ref", errors.NotFound, "it has no such branch", "give the name of a branch that it has"},
	{"Repository not found", errors.NotFound, "it does not exist, or the token may not see it",
		"check the address, and the permissions of the token"},
	{"repository '", errors.NotFound, "it does not exist, or the token may not see it",
		"check the address, and the permissions of the token"},
	{"does not appear to be a git repository", errors.NotFound, "there is no repository at that address",
		"check its address"},
	{"does not exist", errors.NotFound, "there is no repository at that address", "check its address"},
	{"No space left on device", errors.Exhausted, "it is too large for the sandbox's disk",
		"give the sandbox more with --disk, or take less history with --depth 1"},
	{"Disk quota exceeded", errors.Exhausted, "it is too large for the sandbox's disk",
		"give the sandbox more with --disk, or take less history with --depth 1"},
	{"Could not resolve host", errors.Unavailable, "its host cannot be found",
		"check the address, and whether the sandbox may reach that host (--network)"},
	{"Failed to connect", errors.Unavailable, "its host cannot be reached",
		"check whether the sandbox may reach that host (--network)"},
	{"Couldn't connect", errors.Unavailable, "its host cannot be reached",
		"check whether the sandbox may reach that host (--network)"},
	{"Connection refused", errors.Unavailable, "its host cannot be reached",
		"check whether the sandbox may reach that host (--network)"},
	{"' not allowed", errors.Denied, "it, or a part of it, has an address that is not taken",
		"use https addresses for submodules"},
	{"transport '", errors.Denied, "it, or a part of it, has an address that is not taken",
		"use https addresses for submodules"},
	{"is not a git command", errors.Unsupported, "the image has no git-lfs",
		"use the image \"agent\", or one with git-lfs"},
	{"dubious ownership", errors.Denied, "its files belong to another user than the agent's",
		"change their owner in the image: chown -R agent:agent DIRECTORY"},
	{"repository extension", errors.Unsupported, "its format is newer than the image's git",
		"use an image with a newer git, or the older format: git refs migrate --ref-format=files"},
	{"would clobber existing", errors.Conflict, "there is a branch in the way", "remove it first"},
}

// Explain returns the error for a git command that failed in a sandbox. The argument what names the failed task. The
// last lines of said, git's output, become part of the message.
func Explain(what, said string) error {
	said = clean(said)
	for _, c := range complaints {
		if strings.Contains(said, c.said) {
			return errors.Remedy(errors.Newf(c.kind, "%s: %s (%s)", what, c.means, lastLines(said)), "%s", c.remedy)
		}
	}
	return errors.Remedy(errors.Newf(errors.Unavailable, "%s: %s", what, lastLines(said)),
		"read git's message, and try again")
}

// Unreachable reports whether git's output says that it could not reach the repository's server.
func Unreachable(said string) bool {
	return slices.ContainsFunc([]string{"Could not resolve host", "Failed to connect", "Couldn't connect",
		"Connection refused", "Connection timed out", "Network is unreachable", "unable to connect to"},
		func(words string) bool { return strings.Contains(said, words) })
}

// Unreached returns the error for a repository whose server, host, could not be reached from a sandbox. The argument
// what names the failed task, and why is the reason for which the sandbox's network policy refused the host, or "".
// Unreached returns nil if the policy did not refuse the host and the host is not the loopback of the sandbox.
func Unreached(what, host, why string) error {
	addr, err := netip.ParseAddr(host)
	switch {
	case why != "":
		return errors.Remedy(errors.Newf(errors.Denied, "%s: the network policy of the sandbox refused %s: %s",
			what, host, why),
			"allow it, if it is meant, beside the internet: --network default --network allow=%s", host)
	case err == nil && addr.IsLoopback(), host == "localhost", strings.HasSuffix(host, ".localhost"):
		return errors.Remedy(errors.Newf(errors.Invalid, "%s: inside a sandbox, %s is the sandbox itself", what, host),
			"for a server on the loopback of Harvest's machine, give the address http://10.0.2.2:PORT and "+
				"--network default --network allow=127.0.0.1:PORT")
	}
	return nil
}

// lastLines returns the last lines of git's output.
func lastLines(said string) string {
	lines := strings.Split(strings.TrimSpace(said), "\n")
	text := strings.Join(lines[max(0, len(lines)-3):], "; ")
	if text == "" {
		return "it failed and said nothing"
	}
	return text
}
