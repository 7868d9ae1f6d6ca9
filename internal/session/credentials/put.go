package credentials

import (
	"context"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
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

// Put passes the logins to git in the sandbox. It uses standard input, so that no argument and no environment contains
// them.
func (l Logins) Put(ctx context.Context, box shell.Sandbox) error {
	var file strings.Builder
	origins := []string{}
	for _, one := range l {
		if password := one.password.Reveal(); strings.ContainsAny(one.user+password, "\t\r\n\x00") {
			return errors.Newf(errors.Invalid, "the credential for %s contains a line break or a tab", one.where)
		}
		file.WriteString(one.where + "\t" + one.user + "\t" + one.password.Reveal() + "\n")
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
