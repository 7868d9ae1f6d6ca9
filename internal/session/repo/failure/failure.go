// Package failure explains failed steps of the builds of repositories: whether the same attempt would fail again, and
// the
// command that mends it.
package failure

import (
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/fleet/commands"
)

// The commands that install what the images of Harvest lack, as root, on their Debian.
const (
	update = "apt-get update && apt-get install -y "
	// Backports are on the mirror that the image uses.
	setupGo = `sed -n "s/ bookworm / bookworm-backports /p" /etc/apt/sources.list ` +
		">/etc/apt/sources.list.d/backports.list && " +
		update + "-t bookworm-backports golang-go"
	setupRust = update + "cargo"
	setupRuby = update + "bundler ruby-dev"
	setupPHP  = update + "composer php-cli php-curl php-mbstring php-xml php-zip"
)

// setups are the commands that install a program.
var setups = map[string]string{
	"go": setupGo, "gofmt": setupGo, "cargo": setupRust, "rustc": setupRust, "ruby": setupRuby, "bundle": setupRuby,
	"bundler": setupRuby, "gem": setupRuby, "rake": setupRuby, "composer": setupPHP, "php": setupPHP,
	"java": update + "default-jdk", "javac": update + "default-jdk", "mvn": update + "default-jdk maven",
	"gradle": update + "default-jdk gradle", "cmake": update + "cmake", "pkg-config": update + "pkg-config",
	"python": update + "python-is-python3", "perl": update + "perl", "protoc": update + "protobuf-compiler",
	"psql": update + "postgresql-client", "pg_config": update + "libpq-dev", "mysql_config": update +
		"default-libmysqlclient-dev",
	"uv": "pip install --break-system-packages uv", "poetry": "pip install --break-system-packages poetry",
	"pdm": "pip install --break-system-packages pdm", "pipenv": update + "pipenv",
	"npm": "", "npx": "", "pnpm": "", "yarn": "", "bun": "", "node": "", // of the agent image
}

// causes map the output of a failed step to the command that mends it.
var causes = []struct {
	said  string // a regular expression
	why   string
	setup string
}{
	{`invalid go version|requires go >=|go\.mod requires go|unknown directive: toolchain`, "needs a newer Go", setupGo},
	{`pg_config.* not found`, "needs the headers of PostgreSQL", update + "libpq-dev"},
	{`mysql_config.* not found|mysqlclient.*pkg-config`, "needs the headers of MySQL",
		update + "default-libmysqlclient-dev pkg-config"},
	{`ffi\.h: No such file`, "needs the headers of libffi", update + "libffi-dev"},
	{`openssl/[a-z]+\.h: No such file|Could not find directory of OpenSSL`, "needs the headers of OpenSSL",
		update + "libssl-dev pkg-config"},
	{`Python\.h: No such file`, "needs the headers of Python", update + "python3-dev"},
	{`yaml\.h not found`, "needs the headers of libyaml", update + "libyaml-dev"},
	{`can't find header files for ruby|mkmf\.rb can't find`, "needs the headers of Ruby", setupRuby},
}

// missing finds the name of a program in the complaint of a shell.
var missing = pattern.New(`(?m)(?:^|[:\s])([A-Za-z0-9][A-Za-z0-9._+-]*): (?:command )?not found\s*$`)

// temporary matches the output of programs that could not reach a server, or that a server refused for now.
var temporary = pattern.New(`ETIMEDOUT|ECONNRESET|ECONNREFUSED|EAI_AGAIN|ENOTFOUND|ENETUNREACH|EHOSTUNREACH|` +
	`ERR_SOCKET_TIMEOUT|` +
	`socket hang up|Temporary failure (in name resolution|resolving)|[Cc]ould not resolve|Name or service not known|` +
	`no such host|[Cc]onnection (reset|refused|timed out|aborted)|[Nn]etwork is unreachable|TLS handshake ` +
	`timeout|i/o timeout|` +
	`[Rr]ead timed out|Read timeout|Max retries exceeded|(error|status|HTTP|code|returned)[^\n]{0,20} ` +
	`(429|50[0234])\b|` +
	`Bad Gateway|Service Unavailable|Gateway Time-?out|Failed to fetch http|spurious network error`)

// overrideFile is the file of a repository that configures its build.
const overrideFile = "harvest.json"

// name matches the names of programs.
var name = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._+-]*$`)

// quoted returns text as a word for the shell.
func quoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// full reports whether a program's output says that the disk, or the limit of a volume's files, is used up.
func full(output string) bool {
	return slices.ContainsFunc([]string{"No space left on device", "ENOSPC", "Disk quota exceeded", "EDQUOT"},
		func(words string) bool { return strings.Contains(output, words) })
}

// Step is a command of a repository, of the build of its image.
type Step struct {
	Stage   string // name of its flag
	Dir     string // within the repository
	Command string
}

// Repository is the repository of a step.
type Repository struct {
	Name, URL string
	HasSetup  bool // it has a command that runs before the others, as root
}

// Setup returns the command that installs a program; "" if none is known.
func Setup(program string) string { return setups[program] }

// Explain returns the error of a failed step, else nil. A failure of the repository itself is Invalid, or Unsupported
// if
// the image lacks a program: the same attempt would fail again. Only a failure of a server or of the sandbox is
// Unavailable.
func Explain(s Step, result commands.Result, output string, r Repository) error {
	short := strings.Join(strings.Fields(s.Command), " ")
	if len(short) > 100 {
		short = strings.ToValidUTF8(short[:100], "") + "…"
	}
	where := ""
	if s.Dir != "." {
		where = " in " + s.Dir
	}
	failed := func(kind errors.Kind, why string) error {
		return errors.Newf(kind, "%q%s ended with exit code %d%s", short, where, result.ReturnCode, why)
	}
	switch {
	case result.ReturnCode == 0:
		return nil
	case result.OutOfMemory:
		return errors.Remedy(errors.Newf(errors.Exhausted, "%q%s ran out of memory", short, where),
			"give the sandbox more with --memory")
	case full(output):
		return errors.Remedy(errors.Newf(errors.Exhausted, "the disk was full when %q ran%s", short, where),
			"give the sandbox more with --disk")
	case result.TimedOut:
		return errors.Newf(errors.Timeout, "%q%s took too long", short, where)
	case result.ReturnCode == 127:
		return lacking(s, short, where, output, r)
	case result.Why() != "":
		return failed(errors.Unavailable, ": "+result.Why())
	}
	for _, c := range causes {
		if pattern.New(c.said)().MatchString(output) {
			return errors.Remedy(failed(errors.Unsupported, ": it "+c.why), "%s", again(r, c.setup))
		}
	}
	if temporary().MatchString(output) {
		return errors.Remedy(failed(errors.Unavailable, ": a server could not be reached, or refused"),
			"see the log: harvest repo log %s; check that the sandbox may reach the server (--network), and try "+
				"again", r.Name)
	}
	return errors.Remedy(failed(errors.Invalid, ""), "see the log: harvest repo log %s; correct the repository, or "+
		"name "+
		"another command with --%s or in %s", r.Name, s.Stage, overrideFile)
}

// lacking returns the error of a step that needs a program that the image does not have.
func lacking(s Step, short, where, output string, r Repository) error {
	program := ""
	for _, m := range missing().FindAllStringSubmatch(output, -1) {
		program = m[1]
	}
	if words := strings.Fields(s.Command); program == "" && len(words) > 0 {
		program = words[0]
	}
	setup, known := setups[program]
	what := "a program"
	if name().MatchString(program) {
		what = program
	}
	err := errors.Newf(errors.Unsupported, "%q%s needs %s, which the image does not have", short, where, what)
	switch {
	case setup != "":
		return errors.Remedy(err, "%s", again(r, setup))
	case known:
		return errors.Remedy(err, "use the image that has it: --image agent")
	}
	return errors.Remedy(err, "name an image that has it with --image, or install it with --setup")
}

// again returns the commands that register a repository again with a setup.
func again(r Repository, setup string) string {
	if r.HasSetup {
		return "add this to the command of --setup: " + setup
	}
	return "register it again, with the flags that it had and a setup: harvest repo rm " + r.Name +
		" && harvest repo add " +
		quoted(r.URL) + " --setup " + quoted(setup)
}
