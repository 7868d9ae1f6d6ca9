# Pushes the branch of the environment to BRANCH of its origin, and prints the commit.
export GIT_TERMINAL_PROMPT=0 LC_ALL=C
cd "$DIR"
work=$(git config harvest.work) || { echo "fatal: not versioned" >&2; exit 1; }
now=$(git rev-parse --verify "refs/heads/$work")
[ "$now" != "$(git rev-parse refs/harvest/start)" ] || { echo unchanged; exit 0; }
git remote get-url origin >/dev/null 2>&1 || { echo "no origin"; exit 0; }
git push --quiet origin "refs/heads/$work:refs/heads/$BRANCH"
echo "$now"
