# Prints the commits of the environment's branch that were not handed back.
cd "$DIR" 2>/dev/null || exit 0
command -v git >/dev/null || exit 0
work=$(git config harvest.work) || exit 0
from=refs/harvest/handed
git rev-parse --quiet --verify "$from" >/dev/null || from=refs/harvest/start
git rev-parse --quiet --verify "$from" >/dev/null || exit 0
git log --format='%h %s' "$from..refs/heads/$work"
