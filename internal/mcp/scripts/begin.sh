# Begins the work on a repository in a new environment. Its parameters are environment variables.
export GIT_TERMINAL_PROMPT=0 LC_ALL=C
if ! command -v git >/dev/null; then
	mkdir -p "$DIR"
	[ -z "$SENT$FROM" ] || { echo "fatal: the image has no git" >&2; exit 1; }
	echo unversioned
	exit 0
fi
git config --global user.name "$NAME"
git config --global user.email "$EMAIL"
if [ -n "${GITHUB_TOKEN-}" ]; then
	git config --global credential.https://github.com.helper \
		'!f() { echo username=x-access-token; echo "password=$GITHUB_TOKEN"; }; f'
fi
if [ -n "$SENT" ]; then
	format=$(head -c 2000 "$SENT" | grep -a -m 1 '^@object-format=' | cut -d = -f 2 || true)
	git init --quiet ${format:+"--object-format=$format"} --initial-branch=main "$DIR"
	cd "$DIR"
	[ -z "$SHALLOW" ] || cp "$SHALLOW" .git/shallow
	git fetch --quiet --no-tags "$SENT" HEAD '+refs/heads/*:refs/remotes/origin/*'
	[ -z "$ORIGIN" ] || git remote add origin "$ORIGIN"
	git checkout --quiet -b "$WORK" FETCH_HEAD
elif [ -n "$FROM" ]; then
	set -- --quiet --no-recurse-submodules
	[ -z "$BRANCH" ] || set -- "$@" "--branch=$BRANCH"
	git clone "$@" -- "$FROM" "$DIR"
	cd "$DIR"
	git checkout --quiet -B "$WORK"
else
	git init --quiet --initial-branch="$WORK" "$DIR"
	cd "$DIR"
	git commit --quiet --allow-empty -m "Begin"
fi
git config harvest.work "$WORK"
git config harvest.id "$ID"
git update-ref refs/harvest/base HEAD
if [ -n "$PATCH" ]; then
	git apply --index --whitespace=nowarn "$PATCH"
	plain -c user.name="$BY" -c user.email="$BYMAIL" commit --quiet --no-verify \
		-m "Uncommitted changes at the start of the environment" -m "Harvest-Carried: yes"
fi
git update-ref refs/harvest/start HEAD
echo "begun $(git rev-parse --short refs/harvest/base)"
