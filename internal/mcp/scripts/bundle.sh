# Writes the branch of the environment to the file BUNDLE, and prints its commit and the ID of
# the environment. With WHOLE, the history is complete.
export LC_ALL=C
cd "$DIR"
work=$(git config harvest.work) || { echo "fatal: not versioned" >&2; exit 1; }
now=$(git rev-parse --verify "refs/heads/$work")
if [ -n "$WHOLE" ]; then
	git bundle create --quiet "$BUNDLE" HEAD "refs/heads/$work"
elif [ "$now" = "$(git rev-parse refs/harvest/start)" ]; then
	echo unchanged
	exit 0
else
	git bundle create --quiet "$BUNDLE" "refs/heads/$work" --not refs/harvest/base
fi
chmod 644 "$BUNDLE"
echo "$now $(git config harvest.id)"
[ "$(git symbolic-ref --quiet --short HEAD)" = "$work" ] ||
	echo "the current branch of the environment is another one: $(git symbolic-ref --quiet --short HEAD)"
