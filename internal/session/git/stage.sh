# plain is git without anything that a repository may have configured to run on its own.
plain() { git -c core.fsmonitor=false -c core.hooksPath=/dev/null -c commit.gpgSign=false -c core.quotePath=false -c advice.addEmbeddedRepo=false "$@"; }

# links prints the paths of the index that are commits of other repositories.
links() { plain ls-files --stage | sed -n 's/^160000 [^	]*	//p'; }

# modules prints the paths of submodules that .gitmodules has.
modules() { git config --file .gitmodules --get-regexp '^submodule\..*\.path$' 2>/dev/null | sed 's,^submodule\..*\.path ,,' || true; }

# nested prints the directories that git does not know and that are repositories of their own.
nested() { plain ls-files --others --exclude-standard | sed -n 's,/$,,p'; }

# stage [TREE] adds everything to the index, as git add --all does, but the files of nested repositories as ordinary files. git
# itself adds the id of a commit that no other repository has, or fails if there is no commit. Submodules stay submodules, and
# a nested repository that TREE has as a commit stays one. The current directory must be the top of the work tree.
stage() {
	kept=${1:-}
	pending=
	if ! complaint=$(plain add --all 2>&1); then
		pending=$(nested)
		[ -n "$pending" ] || { printf '%s\n' "$complaint" >&2; return 1; }
		set -- .
		while IFS= read -r sub; do set -- "$@" ":(exclude,literal)$sub"; done <<END
$pending
END
		plain add --all -- "$@"
	fi
	pending="$pending
$(links)"
	[ "$pending" != "
" ] || return 0
	top=$(pwd) store=$(git rev-parse --absolute-git-dir) shared=$(git rev-parse --path-format=absolute --git-common-dir) list=$(mktemp)
	entries=${GIT_INDEX_FILE:-$store/index}
	while [ -n "$pending" ]; do
		sub=${pending%%"
"*}
		case $pending in *"
"*) pending=${pending#*"
"} ;; *) pending= ;; esac
		if [ -n "$sub" ] && [ -e "$sub/.git" ] && ! modules | grep -qxF -- "$sub"; then flatten; fi
	done
	rm -f "$list" "$list.rules"
}

# flatten adds the files of the nested repository $sub: those that it has, and those that neither it nor a .gitignore above it
# ignores. Rules above that are for one place only are for other places.
flatten() {
	if [ -n "$kept" ] && [ "$(plain ls-tree "$kept" -- "$sub" | cut -c 1-6)" = 160000 ]; then return 0; fi
	if [ "$(git -C "$sub" rev-parse --path-format=absolute --git-common-dir)" = "$shared" ]; then # a work tree of this repository
		plain update-index --force-remove -- "$sub"
		return 0
	fi
	above=$sub rules=
	while [ "$above" != . ]; do
		case $above in */*) above=${above%/*} ;; *) above=. ;; esac
		[ ! -f "$above/.gitignore" ] || rules="$(grep -v '/.' "$above/.gitignore" || true)
$rules"
	done
	printf '%s' "$rules" >"$list.rules"
	inner=$(cd "$sub" && unset GIT_INDEX_FILE && { nested; links; })
	set -- .
	while IFS= read -r other; do
		[ -z "$other" ] || { set -- "$@" ":(exclude,literal)$other"; pending="$pending
$sub/$other"; }
	done <<END
$inner
END
	(
		cd "$sub"
		unset GIT_INDEX_FILE
		plain ls-files -z --cached --others --exclude-standard --exclude-from="$list.rules" -- "$@" >"$list"
		export GIT_DIR="$store" GIT_WORK_TREE="$top" GIT_INDEX_FILE="$entries"
		plain update-index --add --remove --replace -z --stdin <"$list"
	)
}
