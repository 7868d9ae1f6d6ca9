# Gives the copy of an environment a branch of its own, WORK, and an ID.
cd "$DIR" 2>/dev/null || exit 0
command -v git >/dev/null || exit 0
git config harvest.work >/dev/null || exit 0
git checkout --quiet -B "$WORK"
git config harvest.work "$WORK"
git config harvest.id "$ID"
