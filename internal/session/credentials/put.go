package credentials

import (
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/session/shell"
)

// Dir is the directory of credentials in a sandbox. It is in memory, so that no snapshot contains them, and outside of
// every work tree.
const Dir = "/dev/shm/.harvest-git"

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

// Put passes the logins to git in the sandbox. Of the passwords, the sandbox gets placeholders, unless its engine
// cannot put the values into its requests. Put uses standard input, so that no argument and no environment contains
// either.
func (l Logins) Put(ctx context.Context, box shell.Sandbox) error {
	for _, one := range l {
		if password := one.password.Reveal(); strings.ContainsAny(one.user+password, "\t\r\n\x00") {
			return errors.Newf(errors.Invalid, "the credential for %s contains a line break or a tab", one.where)
		}
	}
	passwords, err := l.lend(ctx, box)
	if err != nil {
		return err
	}
	var file strings.Builder
	origins := []string{}
	for i, one := range l {
		file.WriteString(one.where + "\t" + one.user + "\t" + passwords[i] + "\n")
		scheme, rest, _ := strings.Cut(one.where, "://")
		host, _, _ := strings.Cut(rest, "/")
		if at := scheme + "://" + host; !slices.Contains(origins, at) {
			origins = append(origins, at)
		}
	}
	_, result, err := box.Run(ctx, shell.Script{Text: loginScript, Stdin: file.String(),
		Params: append([]string{Dir, helperScript}, origins...)})
	if err == nil && result.ReturnCode != 0 {
		err = errors.Newf(errors.Unavailable, "cannot write the credentials: %s",
			shell.LastLines(result.Stderr, result.Why()))
	}
	return err
}

// lend lends the logins to the sandbox, and returns what it has as their passwords.
func (l Logins) lend(ctx context.Context, box shell.Sandbox) ([]string, error) {
	sb, err := box.Fleet.Get(ctx, box.Account, box.ID)
	if err != nil {
		return nil, err
	}
	var held []string
	var lent []secret.Credential
	for _, one := range l {
		if !sb.Borrows {
			held = append(held, one.password.Reveal())
			continue
		}
		c, err := one.credential(box.ID)
		if err != nil {
			return nil, err
		}
		held, lent = append(held, c.Placeholder), append(lent, c)
	}
	if !sb.Borrows {
		return held, nil
	}
	return held, fleet.Lend(ctx, box.Fleet, box.Account, box.ID, lent)
}

// credential returns a login as it is lent to a sandbox. Its placeholder stays the same while the password changes.
func (one login) credential(sandbox string) (secret.Credential, error) {
	scheme, rest, _ := strings.Cut(one.where, "://")
	host, _, _ := strings.Cut(rest, "/")
	var at binding.Host
	if err := at.UnmarshalText([]byte(scheme + "://" + host)); err != nil {
		return secret.Credential{}, err
	}
	return secret.Credential{Secret: one.secret, Key: "password", Value: one.password,
		Placeholder: binding.Placeholder([]byte(sandbox), one.where, one.password.Reveal()),
		Binding:     binding.Binding{Places: []binding.Place{{Host: at}}}}, nil
}
