# Commits all changes of the work tree at DIR with the message MESSAGE. It prints the result in one line.
export LC_ALL=C
cd "$DIR" 2>/dev/null || exit 0
command -v git >/dev/null || exit 0
top=$(git rev-parse --show-toplevel 2>/dev/null) || exit 0
cd "$top"
store=$(git rev-parse --absolute-git-dir)
if command -v flock >/dev/null; then
	exec 9>"$store/harvest.lock"
	flock 9
fi
for state in MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD rebase-merge rebase-apply; do
	if [ -e "$store/$state" ]; then
		echo "changes are not committed while git has an unfinished operation ($state)"
		exit 0
	fi
done
stage HEAD
if plain diff --cached --quiet; then exit 0; fi
plain commit --quiet --no-verify -m "$MESSAGE"
branch=$(git symbolic-ref --quiet --short HEAD || echo "a detached HEAD")
echo "committed $(git rev-parse --short HEAD) on $branch:$(git show --format= --shortstat HEAD)"
