# Prints the files below $1 that match GLOB, from line FIRST to LAST, after a line with their number.
export LC_ALL=C
cd "$1" 2>/dev/null || { echo "fatal: no directory $1" >&2; exit 1; }
if command -v git >/dev/null && git rev-parse --is-inside-work-tree >/dev/null 2>&1; then
	found=$(git -c core.quotePath=false ls-files --cached --others --exclude-standard -- ":(glob)**/$GLOB" | sort -u)
else
	found=$(find . -name .git -prune -o -type f -name "${GLOB##*/}" -print | sed 's,^\./,,' | sort)
fi
[ -n "$found" ] || { echo 0; exit 0; }
printf '%s\n' "$found" | wc -l
printf '%s\n' "$found" | sed -n "${FIRST},${LAST}p"
