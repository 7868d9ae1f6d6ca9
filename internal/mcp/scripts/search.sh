# Prints lines of files that match PATTERN below $1, from line FIRST to LAST. GLOB selects files.
export LC_ALL=C
cd "$1" 2>/dev/null || { echo "fatal: no directory $1" >&2; exit 1; }
fold=
[ -z "$FOLD" ] || fold=-i
if command -v git >/dev/null && git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
	matches() {
		git grep --untracked -n -I -E $fold -e "$PATTERN" -- ${GLOB:+":(glob)**/$GLOB"} 
	}
else
	matches() { grep -rnE $fold ${GLOB:+"--include=$GLOB"} -e "$PATTERN" . | sed 's,^\./,,'; }
fi
code=0
matches >/tmp/.harvest-matches.$$ 2>/tmp/.harvest-said.$$ || code=$?
trap 'rm -f /tmp/.harvest-matches.$$ /tmp/.harvest-said.$$' EXIT
if [ "$code" -gt 1 ]; then
	sed 's/^fatal: //' /tmp/.harvest-said.$$ >&2
	exit "$code"
fi
wc -l </tmp/.harvest-matches.$$
sed -n "${FIRST},${LAST}p" /tmp/.harvest-matches.$$ | cut -c 1-400
