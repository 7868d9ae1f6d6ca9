# Prints a part of the changes since the environment began: SIZE bytes after OFFSET, after a line with the whole size.
export LC_ALL=C
cd "$DIR"
git rev-parse --verify --quiet refs/harvest/start >/dev/null || { echo "fatal: not versioned" >&2; exit 1; }
page=$(mktemp)
trap 'rm -f "$page"' EXIT
{
	git log --reverse --format='%h %s' refs/harvest/start..HEAD
	echo
	git diff --stat=100 refs/harvest/start HEAD -- "$@"
	[ -n "$SUMMARY" ] || { echo; git diff --no-color --no-ext-diff refs/harvest/start HEAD -- "$@"; }
} >"$page"
wc -c <"$page"
tail -c "+$((OFFSET + 1))" "$page" | head -c "$SIZE"
