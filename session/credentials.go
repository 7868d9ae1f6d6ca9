package session

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/config"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/git"
	"github.com/RelevanceAI/harvest/github"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/secret"
)

// login is the user and password that git receives when it asks for credentials.
type login struct {
	where    string // address or address prefix for which the login is valid
	api      string // address of GitHub's API for the same server
	user     string
	password config.Secret
	expires  time.Time    // zero if no expiry is known; Harvest revokes tokens that have one
	client   *http.Client // for api
	release  func()       // stops redacting the password in the log
}

// logins are the logins of a session, sorted by address length, the longest first.
type logins []login

// release calls release of each login.
func (l logins) release() {
	for _, one := range l {
		one.release()
	}
}

// expires returns the earliest expiry; zero if no login expires.
func (l logins) expires() (at time.Time) {
	for _, one := range l {
		if !one.expires.IsZero() && (at.IsZero() || one.expires.Before(at)) {
			at = one.expires
		}
	}
	return at
}

// of returns the login for a repository.
func (l logins) of(address string) (login, bool) {
	a, err := git.ParseAddress(address)
	if err != nil {
		return login{}, false
	}
	i := slices.IndexFunc(l, func(one login) bool {
		return one.where == origin(a) ||
			one.where == origin(a)+"/"+a.Path
	})
	if i < 0 {
		return login{}, false
	}
	return l[i], true
}

// https returns the HTTPS address for address, if address is an SSH address and a login for its server exists;
// otherwise "".
func (l logins) https(address string) string {
	a, err := git.ParseAddress(address)
	if _, ok := l.of(address); err != nil || !ok || a.Scheme != "ssh" {
		return ""
	}
	return origin(a) + "/" + a.Path
}

// origin returns the prefix of a's address for which a credential is valid; "" if no credential may be sent there.
func origin(a git.Address) string {
	switch a.Scheme {
	case "ssh":
		host, _, _ := strings.Cut(a.Host, ":") // the SSH port does not apply to https
		return "https://" + host
	case "http":
		if a.Host == "github.com" { // plain HTTP would expose the token on the network
			return ""
		}
	}
	return a.Origin()
}

// logins returns the credentials in the account's secrets for the session's repositories. Tokens of GitHub Apps are
// created on each call.
func (m *Manager) logins(ctx context.Context, s Session) (found logins, err error) {
	if m.opts.Secrets == nil || s.GitSecret == NoSecret {
		return nil, nil
	}
	defer func() {
		if err != nil {
			found.release()
			found = nil
		}
	}()
	for _, r := range s.Repositories() {
		a, err := git.ParseAddress(r.URL)
		if r.URL == "" || err != nil || origin(a) == "" {
			continue
		}
		_, host, _ := strings.Cut(origin(a), "://")
		g, ok, err := m.opts.Secrets.Git(ctx, s.Account, s.GitSecret, host)
		if err != nil {
			return found, err
		}
		if !ok && s.GitSecret != "" {
			return found, errors.Remedy(errors.Newf(errors.Invalid, "secret %q: no credentials for %s", s.GitSecret,
				host),
				"add GITHUB_TOKEN, and GITHUB_HOST if that is not github.com; or GIT_HOST, GIT_USERNAME and GIT_PASSWORD")
		}
		if _, known := found.of(r.URL); !ok || known {
			continue
		}
		one, err := m.loginFrom(ctx, s.Account, g, a)
		if errors.KindOf(err) == errors.NotFound && s.GitSecret == "" {
			logf.Infof(ctx, "no credentials for %s: %v", host, err)
			continue // the App is not installed there; the repository may be public
		}
		if err != nil {
			return found, err
		}
		one.release = logf.Redact(one.password.Reveal())
		found = append(found, one)
	}
	slices.SortStableFunc(found, func(a, b login) int { return cmp.Compare(len(b.where), len(a.where)) })
	return found, nil
}

// loginFrom converts a secret to a login. For a GitHub App it creates a token for this one repository.
func (m *Manager) loginFrom(ctx context.Context, account string, g secret.Git, a git.Address) (login, error) {
	one := login{where: origin(a), api: cmp.Or(g.API, github.API(g.Host)), user: g.User, password: g.Password}
	if m.opts.GitHub != nil {
		one.client = m.opts.GitHub(account)
	}
	if g.App == "" {
		return one, nil
	}
	token, err := github.Installation{API: one.api, App: g.App, Key: g.Key, ID: g.Installation,
		HTTP: one.client}.Token(ctx, a.Path)
	one.where, one.password, one.expires = one.where+"/"+a.Path, token.Value, token.Expires
	return one, err
}

// credentialsDir is the directory of credentials in a sandbox. It is in memory, so that no snapshot contains them,
// and outside of every work tree.
const credentialsDir = "/dev/shm/.harvest-git"

// helperScript is the credential helper (gitcredentials(7)). It prints the file's entry for the address that git asks
// about, and nothing for other addresses. It ignores the operations store and erase.
const helperScript = `[ "$1" = get ] || exit 0
protocol= host= path=
while IFS='=' read -r key value && [ -n "$key" ]; do
	case $key in protocol) protocol=$value ;; host) host=$value ;; path) path=${value%/} ;; esac
done
path=${path%%/info/lfs*}
path=${path%.git}
tab=$(printf '\t')
while IFS="$tab" read -r where user password; do
	if [ "$where" = "$protocol://$host/$path" ] || [ "$where" = "$protocol://$host" ]; then
		printf 'username=%s\npassword=%s\n' "$user" "$password"
		exit
	fi
done <"${0%/*}/credentials"
`

// loginScript writes its input to the file of credentials, and makes git use it for these addresses: DIRECTORY HELPER
// ADDRESS…
const loginScript = `
umask 077
dir=$1 helper=$2
shift 2
mkdir -p "$dir"
cat >"$dir/new"
mv -f "$dir/new" "$dir/credentials"
printf %s "$helper" >"$dir/helper"
for origin; do
	git config --global --unset-all "credential.$origin.helper" || true
	git config --global --add "credential.$origin.helper" ""
	git config --global --add "credential.$origin.helper" "!sh $dir/helper"
	git config --global "credential.$origin.useHttpPath" true
done`

// putLogins passes the logins to git in the sandbox. It uses standard input, so that no argument and no environment
// contains them.
func (m *Manager) putLogins(ctx context.Context, s Session, box string, l logins) error {
	var file strings.Builder
	origins := []string{}
	for _, one := range l {
		if password := one.password.Reveal(); strings.ContainsAny(one.user+password, "\t\r\n\x00") {
			return errors.Newf(errors.Invalid, "the credential for %s contains a line end or a tab", one.where)
		}
		file.WriteString(one.where + "\t" + one.user + "\t" + one.password.Reveal() + "\n")
		scheme, rest, _ := strings.Cut(one.where, "://")
		host, _, _ := strings.Cut(rest, "/")
		if at := scheme + "://" + host; !slices.Contains(origins, at) {
			origins = append(origins, at)
		}
	}
	_, result, err := m.inSandbox(ctx, s, box, shell{script: loginScript, stdin: file.String(),
		params: append([]string{credentialsDir, helperScript}, origins...)})
	if err == nil && result.ReturnCode != 0 {
		err = errors.Newf(errors.Unavailable, "cannot write the credentials: %s",
			lastLines(result.Stderr, result.Why()))
	}
	return err
}

// freshLogins reads the current credentials from the secrets and puts them into the sandbox of a running session.
func (m *Manager) freshLogins(ctx context.Context, s Session) (logins, error) {
	l, err := m.logins(ctx, s)
	if err != nil || len(l) == 0 {
		return nil, err
	}
	if err := m.putLogins(ctx, s, s.SandboxID, l); err != nil {
		l.revoke(context.WithoutCancel(ctx))
		l.release()
		return nil, err
	}
	return l, nil
}

// renewLogins stores the logins that the sandbox has, and schedules their renewal before they expire.
func (r *runner) renewLogins(l logins) {
	r.dropLogins()
	if len(l) == 0 {
		return
	}
	ctx, stop := context.WithCancel(r.m.ctx)
	r.logins, r.endRenewal = l, stop
	if at := l.expires(); !at.IsZero() {
		r.m.work.Go(func() { r.renewAt(ctx, at) })
	}
}

// renewRetry is the pause before a failed token renewal is retried.
const renewRetry = 30 * time.Second

// renewAt gets new credentials after five sixths of the time until at. For a token that is valid for an hour, this
// leaves ten minutes for retries.
func (r *runner) renewAt(ctx context.Context, at time.Time) {
	wait := max(time.Until(at)*5/6, time.Second)
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
		fresh, err := r.m.freshLogins(ctx, r.session())
		if err == nil {
			r.take(fresh)
			return
		}
		if ctx.Err() != nil {
			return
		}
		logf.Errorf(ctx, "renew the credentials of session %s: %v", r.id, err)
		wait = renewRetry
	}
}

// findLogins is renewLogins for a session that an earlier server started.
func (r *runner) findLogins() {
	s := r.session()
	if r.m.opts.Secrets == nil || s.GitSecret == NoSecret {
		return
	}
	r.m.work.Go(func() {
		l, err := r.m.freshLogins(r.m.ctx, s)
		if err != nil {
			logf.Errorf(r.m.ctx, "find the credentials of session %s: %v", r.id, err)
		}
		r.take(l)
	})
}

// take stores the logins that the session's sandbox has. If the session has ended meanwhile, take revokes them.
func (r *runner) take(l logins) {
	if err := r.call(r.m.ctx, func() error { r.renewLogins(l); return nil }); err != nil {
		l.revoke(context.WithoutCancel(r.m.ctx))
		l.release()
	}
}

// dropLogins stops the renewal. The credentials in the sandbox remain until it ends.
func (r *runner) dropLogins() {
	if r.endRenewal != nil {
		r.endRenewal()
	}
	r.logins.release()
	r.logins, r.endRenewal = nil, nil
}

// revokeLimit is how long the end of a session waits for GitHub to revoke tokens.
const revokeLimit = 5 * time.Second

// endLogins revokes the tokens that Harvest created. The file of credentials is removed with the sandbox.
func (r *runner) endLogins(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeLimit)
	defer cancel()
	r.logins.revoke(ctx)
	r.dropLogins()
}

// revoke revokes the tokens that Harvest created.
func (l logins) revoke(ctx context.Context) {
	for _, one := range l {
		if one.expires.IsZero() {
			continue
		}
		if err := (&github.Client{API: one.api, Token: one.password, HTTP: one.client}).Revoke(ctx); err != nil {
			logf.Infof(ctx, "revoke a token for %s: %v", one.where, err)
		}
	}
}
