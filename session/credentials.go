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

// login is what git gets when it asks for a user and a password.
type login struct {
	where    string // address that it is for, or the beginning of one
	api      string // of GitHub, for the same
	user     string
	password config.Secret
	expires  time.Time    // zero if it has no end that is known; a token with one is ours to revoke
	client   *http.Client // for api
	release  func()       // shows the password in the log again
}

// logins are those of a session. More special addresses come first.
type logins []login

// release lets go of them.
func (l logins) release() {
	for _, one := range l {
		one.release()
	}
}

// expires returns when the first of them ends; zero if none does.
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
	i := slices.IndexFunc(l, func(one login) bool { return one.where == origin(a) || one.where == origin(a)+"/"+a.Path })
	if i < 0 {
		return login{}, false
	}
	return l[i], true
}

// https returns the address at which a login can be used, if address is one for SSH and there is a login; otherwise "".
func (l logins) https(address string) string {
	a, err := git.ParseAddress(address)
	if _, ok := l.of(address); err != nil || !ok || a.Scheme != "ssh" {
		return ""
	}
	return origin(a) + "/" + a.Path
}

// origin is the beginning of the address that a credential for a is for; "" where there can be none.
func origin(a git.Address) string {
	switch a.Scheme {
	case "ssh":
		host, _, _ := strings.Cut(a.Host, ":") // its port is not that of https
		return "https://" + host
	case "http":
		if a.Host == "github.com" { // everybody on the way would see the token
			return ""
		}
	}
	return a.Origin()
}

// logins returns what the account's secrets have for the session's repositories. Tokens of GitHub Apps are new ones.
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
			return found, errors.Remedy(errors.Newf(errors.Invalid, "secret %q has nothing for %s", s.GitSecret, host), "give it GITHUB_TOKEN, and GITHUB_HOST if that is not github.com; or GIT_HOST, GIT_USERNAME and GIT_PASSWORD")
		}
		if _, known := found.of(r.URL); !ok || known {
			continue
		}
		one, err := m.loginFrom(ctx, s.Account, g, a)
		if errors.KindOf(err) == errors.NotFound && s.GitSecret == "" {
			logf.Infof(ctx, "no credentials for %s: %v", host, err)
			continue // the App is not installed there: the repository may be public
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

// loginFrom makes a login of what a secret has, which for an App is a token for this one repository.
func (m *Manager) loginFrom(ctx context.Context, account string, g secret.Git, a git.Address) (login, error) {
	one := login{where: origin(a), api: cmp.Or(g.API, github.API(g.Host)), user: g.User, password: g.Password}
	if m.opts.GitHub != nil {
		one.client = m.opts.GitHub(account)
	}
	if g.App == "" {
		return one, nil
	}
	token, err := github.Installation{API: one.api, App: g.App, Key: g.Key, ID: g.Installation, HTTP: one.client}.Token(ctx, a.Path)
	one.where, one.password, one.expires = one.where+"/"+a.Path, token.Value, token.Expires
	return one, err
}

// credentialsDir is where credentials are in a sandbox: in memory, so that no snapshot has them, and outside of every work tree.
const credentialsDir = "/dev/shm/.harvest-git"

// helperScript is the credential helper (gitcredentials(7)): it gives what the file has for the address that git asks for, and nothing to
// any other. It forgets nothing and learns nothing.
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

// loginScript writes the file of credentials, which is its input, and has git use it for these addresses: DIRECTORY HELPER ADDRESS…
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

// putLogins gives them to the sandbox's git: over standard input, so that no argument and no environment has them.
func (m *Manager) putLogins(ctx context.Context, s Session, box string, l logins) error {
	var file strings.Builder
	origins := []string{}
	for _, one := range l {
		if password := one.password.Reveal(); strings.ContainsAny(one.user+password, "\t\r\n\x00") {
			return errors.Newf(errors.Invalid, "the credential for %s has a line end or a tab in it", one.where)
		}
		file.WriteString(one.where + "\t" + one.user + "\t" + one.password.Reveal() + "\n")
		scheme, rest, _ := strings.Cut(one.where, "://")
		host, _, _ := strings.Cut(rest, "/")
		if at := scheme + "://" + host; !slices.Contains(origins, at) {
			origins = append(origins, at)
		}
	}
	_, result, err := m.inSandbox(ctx, s, box, shell{script: loginScript, stdin: file.String(), params: append([]string{credentialsDir, helperScript}, origins...)})
	if err == nil && result.ReturnCode != 0 {
		err = errors.Newf(errors.Unavailable, "the credentials could not be written: %s", lastLines(result.Stderr, result.Why()))
	}
	return err
}

// freshLogins gives a session that runs the credentials that the secrets have now.
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

// renewLogins keeps what the sandbox has got, and sees to it that it is replaced before it ends.
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

// renewRetry is how long to wait before a token that could not be had is tried again.
const renewRetry = 30 * time.Second

// renewAt gets new credentials when five sixths of the time to at are over: of a token's hour, ten minutes are left for what goes wrong.
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

// findLogins is renewLogins for a session of an earlier server.
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

// take has the session keep what its sandbox has got. If the session has ended meanwhile, nobody needs it any more.
func (r *runner) take(l logins) {
	if err := r.call(r.m.ctx, func() error { r.renewLogins(l); return nil }); err != nil {
		l.revoke(context.WithoutCancel(r.m.ctx))
		l.release()
	}
}

// dropLogins ends the renewal. What the sandbox has stays until it ends.
func (r *runner) dropLogins() {
	if r.endRenewal != nil {
		r.endRenewal()
	}
	r.logins.release()
	r.logins, r.endRenewal = nil, nil
}

// revokeLimit is how long the end of a session waits for GitHub.
const revokeLimit = 5 * time.Second

// endLogins makes tokens that Harvest has made worthless. The file goes with the sandbox.
func (r *runner) endLogins(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), revokeLimit)
	defer cancel()
	r.logins.revoke(ctx)
	r.dropLogins()
}

// revoke makes those worthless that Harvest has made.
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
