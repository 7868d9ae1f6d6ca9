#!/bin/sh
# harvest-git: git work that loses nothing (Safe-Carry-Forward), for agents in sandboxes and for Harvest itself.
# Its settings are git's: harvest.onto, harvest.work, harvest.base, harvest.title, harvest.events. Exit codes: 0 done, 1 not done and
# everything as it was, 2 wrong usage.
set -eu
export LC_ALL=C GIT_TERMINAL_PROMPT=0 GIT_EDITOR=true GIT_SEQUENCE_EDITOR=true GIT_SSH_COMMAND="${GIT_SSH_COMMAND:-ssh -o BatchMode=yes}"

usage() {
	cat >&2 <<'END'
usage: harvest-git snapshot [MESSAGE]      commit everything as "wip: …"
       harvest-git sync [--rewritten] [BRANCH]
                                           carry the work forward onto what others have done: snapshot, fetch, rebase; at most three
                                           attempts, and everything as it was if they fail. --rewritten: a person said that the branch was
                                           rewritten on purpose
       harvest-git squash [MESSAGE]        fold the "wip:" commits into the others; no file changes
       harvest-git push                    squash, and push this session's own branch
       harvest-git panic --failed TEXT [--tried TEXT]… --need TEXT
                                           stop: save everything, and have a person look
END
	exit 2
}

# emit EVENT [KEY VALUE]…: tells Harvest. A line has the event and key=value pairs, values in base64.
emit() {
	line=$1
	shift
	while [ $# -gt 1 ]; do
		line="$line $1=$(printf %s "$2" | base64 | tr -d '\n')"
		shift 2
	done
	events=${HARVEST_GIT_EVENTS:-$(git config harvest.events || true)}
	case $events in
	'') ;;
	-) printf '%s\n' "$line" ;;
	*) printf '%s\n' "$line" >>"$events" || true ;;
	esac
}

# why prints what matters of what git said.
why() {
	lines=$(printf '%s\n' "$1" | grep -E '^(fatal|error|remote|ERROR| !)' || true)
	printf '%s\n' "${lines:-$1}" | tail -n 4
}

say() { printf '%s\n' "harvest-git: $*" >&2; }

# stage.sh

dir=
enter() {
	top=$(git rev-parse --show-toplevel 2>/dev/null) || { say "this is no git repository"; exit 1; }
	cd "$top"
	dir=$top
	branch=$(git symbolic-ref --quiet --short HEAD || true)
}

# onto prints the branch of others that this work goes onto.
onto() {
	name=$(git config harvest.onto || true)
	if [ -z "$name" ]; then
		name=$(git symbolic-ref --quiet --short refs/remotes/origin/HEAD || true)
		name=${name#origin/}
	fi
	printf %s "$name"
}

# first prints the commit that this session's own commits begin behind, or nothing.
first() {
	target=$(onto)
	known=
	[ -z "$target" ] || known=$(git merge-base HEAD "refs/remotes/origin/$target" 2>/dev/null || true)
	base=$(git config harvest.base || true)
	if [ -n "$base" ] && git merge-base --is-ancestor "$base" HEAD 2>/dev/null; then
		if [ -z "$known" ] || git merge-base --is-ancestor "$known" "$base" 2>/dev/null; then known=$base; fi
	fi
	printf %s "$known"
}

busy() {
	state=$(git rev-parse --git-dir)
	for mark in rebase-merge rebase-apply MERGE_HEAD CHERRY_PICK_HEAD REVERT_HEAD; do
		[ ! -e "$state/$mark" ] || { say "a rebase, merge or the like is under way: finish it or abort it first"; exit 1; }
	done
	[ -n "$branch" ] || { say "no branch is checked out: git switch to one first"; exit 1; }
}

snapshot() {
	stage
	there=$(git rev-parse --quiet --verify 'HEAD^{tree}' || git hash-object -t tree /dev/null)
	[ "$(git write-tree)" != "$there" ] || return 0
	plain commit --quiet --no-verify -m "wip: ${1:-snapshot}"
}

# many prints a number of things: NUMBER NOUN.
many() { if [ "$1" = 1 ]; then echo "1 $2"; else echo "$1 $2s"; fi; }

# left prints the changes that are not handed back, a line for each: changes in submodules and in other work trees, commits of
# other branches. git does not see files in the place of a submodule that was not fetched.
left() {
	{ modules; links; } | sort -u | while IFS= read -r sub; do
		[ ! -e "$sub/.git" ] && [ -d "$sub" ] && [ ! -L "$sub" ] || continue
		files=$(find "$sub" ! -type d -print | wc -l)
		[ "$files" = 0 ] || echo "submodule $sub, which was not fetched: $(many "$files" file)"
	done
	modules | while IFS= read -r sub; do
		[ -e "$sub/.git" ] || continue
		files=$(plain -C "$sub" status --porcelain 2>/dev/null | wc -l)
		made=$(git -C "$sub" rev-list --count HEAD --not --remotes --tags 2>/dev/null || echo 0)
		[ "$files$made" = 00 ] || echo "submodule $sub: $(many "$made" commit), $(many "$files" "changed file")"
	done
	git worktree list --porcelain | sed -n 's/^worktree //p' | sed 1d | while IFS= read -r tree; do
		files=$(plain -C "$tree" status --porcelain 2>/dev/null | wc -l)
		[ "$files" = 0 ] || echo "work tree $tree: $(many "$files" "changed file")"
	done
	git for-each-ref --format='%(refname)' --no-merged HEAD refs/heads 2>/dev/null | grep -v '^refs/heads/checkpoint/' | while IFS= read -r other; do
		made=$(git rev-list --count "$other" --not HEAD --remotes)
		[ "$made" = 0 ] || echo "branch ${other#refs/heads/}: $(many "$made" commit)"
	done
}

# report tells what was committed and pushed since the last report, and what is not handed back.
report() {
	left | while IFS= read -r text; do emit git.left dir "$dir" branch "$branch" reason "$text"; done
	if git rev-parse --quiet --verify refs/stash >/dev/null; then
		emit git.stashed dir "$dir" branch "$branch" commits "$(git log -g --format=%H refs/stash | wc -l)" subject "$(git log -g -1 --format=%gs refs/stash)"
	fi
	git rev-parse --quiet --verify HEAD >/dev/null || return 0
	last=$(git rev-parse --quiet --verify refs/harvest/reported || first)
	total=$(git rev-list --count HEAD ${last:+"^$last"})
	if [ "$total" -gt 0 ]; then
		for c in $(git rev-list --reverse --max-count=20 HEAD ${last:+"^$last"}); do
			emit git.committed dir "$dir" branch "$branch" commit "$c" subject "$(git log -1 --format=%s "$c")" commits "$total"
		done
	fi
	git update-ref refs/harvest/reported HEAD
	[ -n "$branch" ] || return 0
	there=$(git rev-parse --quiet --verify "refs/remotes/origin/$branch" || true)
	[ -n "$there" ] && [ "$branch" = "$(git config harvest.work || true)" ] || return 0
	[ "$there" != "$(git rev-parse --quiet --verify refs/harvest/pushed || true)" ] || return 0
	git update-ref refs/harvest/pushed "$there"
	emit git.pushed dir "$dir" branch "$branch" commit "$there"
}

# squash rebuilds the session's commits without those called "wip:". The files of a wip commit are in the commit that follows; those of the
# last ones go into the commit before, or are a commit of their own if there is none or it is what the user had not committed.
squash() {
	from=$(first)
	[ "$(git rev-list --count --min-parents=2 HEAD ${from:+"^$from"})" = 0 ] || { say "there are merges among the commits: nothing was squashed"; return 0; }
	git log --format=%s HEAD ${from:+"^$from"} | grep -q '^wip:' || return 0
	before=$from prev=$from last= tree=
	for c in $(git rev-list --reverse HEAD ${from:+"^$from"}); do
		tree=$(git rev-parse "$c^{tree}")
		case $(git log -1 --format=%s "$c") in
		wip:*) continue ;;
		esac
		before=$prev last=$c
		prev=$(again "$c" "$tree" "$prev")
	done
	if [ "$tree" != "$(git rev-parse "${last:-HEAD}^{tree}" 2>/dev/null)" ] || [ -z "$last" ]; then
		carried=
		[ -z "$last" ] || carried=$(git log -1 --format=%B "$last" | grep '^Harvest-Carried: ' || true)
		if [ -n "$last" ] && [ -z "$carried" ] && [ -z "${1:-}" ]; then
			prev=$(again "$last" "$tree" "$before")
		elif [ "$tree" != "$(git rev-parse "${prev:-HEAD}^{tree}" 2>/dev/null)" ] || [ -z "$prev" ]; then
			title=${1:-$(git config harvest.title || true)}
			prev=$(printf '%s\n' "${title:-Work of a Harvest session}" | git commit-tree "$tree" ${prev:+-p "$prev"})
		fi
	fi
	[ "$(git rev-parse "$prev^{tree}")" = "$(git rev-parse 'HEAD^{tree}')" ] || { say "nothing was squashed: the files would not have been the same"; return 1; }
	git update-ref -m "harvest-git squash" HEAD "$prev"
	git update-ref refs/harvest/reported HEAD
}

# again makes a commit with the message and the author of another one: COMMIT TREE PARENT.
again() {
	git log -1 --format=%B "$1" | GIT_AUTHOR_NAME=$(git log -1 --format=%an "$1") GIT_AUTHOR_EMAIL=$(git log -1 --format=%ae "$1") \
		GIT_AUTHOR_DATE=$(git log -1 --format=%ad --date=raw "$1") git commit-tree "$2" ${3:+-p "$3"}
}

# stop reports that the work could not be carried forward, and that everything is as it was.
stop() {
	reason=$1 kept=${2:-} tried=${3:-}
	emit git.synced dir "$dir" branch "$branch" onto "$target" failed true reason "$reason" tried "$tried" checkpoint "$kept"
	say "not synchronised: $reason"
	[ -z "$tried" ] || printf '%s\n' "$tried" >&2
	say "the branch and the files are as they were${kept:+; the checkpoint is the branch $kept}"
	exit 1
}

sync() {
	rewritten=
	[ "${1:-}" != --rewritten ] || { rewritten=1; shift; }
	busy
	target=${1:-$(onto)}
	[ -n "$target" ] || { say "say which branch: harvest-git sync BRANCH"; exit 2; }
	git check-ref-format "refs/heads/$target" || { say "\"$target\" cannot be a branch"; exit 2; }
	remote=refs/remotes/origin/$target
	snapshot "before a sync"
	report
	old=$(git rev-parse --quiet --verify "$remote" || true)
	said=$(plain fetch --quiet --no-tags --no-recurse-submodules origin "+refs/heads/$target:$remote" 2>&1) || stop "fetching from origin failed: $(why "$said")"
	new=$(git rev-parse --verify "$remote")
	since=
	if [ -n "$old" ] && ! git merge-base --is-ancestor "$old" "$new"; then
		if [ -z "$rewritten" ]; then
			git update-ref "$remote" "$old" # so that the next sync sees it, too
			stop "origin/$target was rewritten: $old is no longer part of it. A person must say whether that was meant: harvest-git sync --rewritten"
		fi
		since=$old
	fi
	head=$(git rev-parse HEAD)
	if [ "$(git merge-base HEAD "$new" || true)" = "$new" ]; then
		emit git.synced dir "$dir" branch "$branch" onto "$target" commit "$head" commits 0
		say "nothing new on origin/$target"
		return 0
	fi
	hidden "$head" "$new"
	checkpoint=checkpoint/sync-$(date -u +%Y%m%dT%H%M%SZ)-$$
	git branch --quiet "$checkpoint" "$head"
	behind=$(git rev-list --count "$new" "^$head")
	tried=
	for attempt in 1 2 3; do
		case $attempt in
		1) how="git rebase origin/$target" ;;
		2) how="the same, with another algorithm for differences" ;;
		3) how="the same, with this session's commits as one" ;;
		esac
		if said=$(try "$attempt" 2>&1); then
			git branch --quiet -D "$checkpoint"
			squash >/dev/null
			git update-ref refs/harvest/reported HEAD
			emit git.synced dir "$dir" branch "$branch" onto "$target" commit "$(git rev-parse HEAD)" commits "$behind"
			say "carried forward onto origin/$target: $behind commits"
			return 0
		fi
		files=$(git diff --name-only --diff-filter=U | head -n 20 | tr '\n' ' ')
		if [ -n "$files" ]; then said="conflicts in $files"; else said=$(why "$said"); fi
		tried="$tried$attempt. $how: $said
"
		git rebase --abort >/dev/null 2>&1 || true
		[ "$(git symbolic-ref --quiet --short HEAD || true)" = "$branch" ] || plain checkout --quiet --force "$branch"
		plain reset --quiet --hard "$head"
	done
	stop "the work conflicts with origin/$target" "$checkpoint" "$tried"
}

# try rebases in one of three ways.
try() {
	from=${since:-$(git merge-base HEAD "$new" || true)}
	set -- --quiet --no-autostash --onto "$new"
	case $attempt in
	2) set -- "$@" -X diff-algorithm=histogram -X find-renames=40% ;;
	3)
		whole=$(git log --reverse --format=%B HEAD ${from:+"^$from"} | GIT_AUTHOR_NAME=$(git log -1 --format=%an) GIT_AUTHOR_EMAIL=$(git log -1 --format=%ae) \
			git commit-tree 'HEAD^{tree}' ${from:+-p "$from"})
		plain reset --quiet --soft "$whole"
		;;
	esac
	if [ -n "$from" ]; then plain rebase "$@" "$from"; else plain rebase "$@" --root; fi
}

# hidden stops if a file that git ignores here would be overwritten by one of others: HEAD NEW.
hidden() {
	list=$(git -c core.quotePath=false diff --name-only --no-renames --diff-filter=A "$1" "$2" | while IFS= read -r file; do
		if [ -e "$file" ] && git check-ignore --quiet -- "$file"; then printf '%s ' "$file"; fi
	done | head -c 1000)
	[ -z "$list" ] || stop "origin/$target has files that git ignores here and that would be overwritten: $list"
}

push() {
	busy
	work=$(git config harvest.work || true)
	if [ -n "$work" ] && [ "$branch" != "$work" ]; then say "this session pushes $work only, and $branch is checked out"; exit 1; fi
	snapshot "before a push"
	squash
	there=$(git rev-parse --quiet --verify "refs/remotes/origin/$branch" || true)
	# The lease below protects only what was never fetched. A commit on origin that was never on this branch is another person's.
	if [ -n "$there" ] && [ "$( (printf '%s\n^HEAD\n' "$there"; git log -g --format=^%H "refs/heads/$branch") | git rev-list --count --stdin)" != 0 ]; then
		say "origin/$branch has commits that were never on this branch: look at them before anything is overwritten"
		exit 1
	fi
	if git lfs version >/dev/null 2>&1 && git grep -q 'filter=lfs' HEAD -- .gitattributes '*/.gitattributes' 2>/dev/null; then
		said=$(plain lfs push origin "$branch" 2>&1) || { say "the large files were not pushed: $(why "$said")"; exit 1; }
	fi
	said=$(plain push --quiet --no-verify --force-with-lease="refs/heads/$branch:$there" origin "HEAD:refs/heads/$branch" 2>&1) || {
		case $said in
		*"stale info"*) say "origin/$branch was changed by somebody else: look at it before anything is overwritten" ;;
		*) say "not pushed: $(why "$said")" ;;
		esac
		exit 1
	}
	git update-ref "refs/remotes/origin/$branch" HEAD
	report
	say "pushed $branch"
}

panic() {
	failed= tried= need=
	while [ $# -gt 1 ]; do
		case $1 in
		--failed) failed=$2 ;;
		--tried) tried="$tried- $2
" ;;
		--need) need=$2 ;;
		*) usage ;;
		esac
		shift 2
	done
	[ $# = 0 ] && [ -n "$failed" ] && [ -n "$need" ] || usage
	checkpoint= branch=
	if dir=$(git rev-parse --show-toplevel 2>/dev/null); then
		cd "$dir"
		branch=$(git symbolic-ref --quiet --short HEAD || true)
		if saved=$(save); then
			checkpoint=checkpoint/panic-$(date -u +%Y%m%dT%H%M%SZ)-$$
			git update-ref "refs/heads/$checkpoint" "$saved" || checkpoint=
		fi
	fi
	emit git.panic dir "$dir" branch "$branch" checkpoint "$checkpoint" failed "$failed" tried "$tried" need "$need"
	printf 'PANIC: %s\n\nTried:\n%s\nCheckpoint: %s\nA person must: %s\n' "$failed" "${tried:-nothing else
}" "${checkpoint:-none}" "$need"
	say "stop here. Harvest ends the turn."
	sleep "${HARVEST_GIT_WAIT:-30}" # until it does
	exit 1
}

# save prints a commit of everything as it is, and changes neither branch nor index nor files.
save() {
	index=$(git rev-parse --git-path index) copy=$(git rev-parse --path-format=absolute --git-path "harvest-index-$$")
	[ ! -f "$index" ] || cp "$index" "$copy"
	parent=$(git rev-parse --quiet --verify HEAD || true)
	(export GIT_INDEX_FILE="$copy" && stage) >/dev/null 2>&1 || { rm -f "$copy"; return 1; }
	tree=$(GIT_INDEX_FILE=$copy git write-tree)
	rm -f "$copy"
	if [ -n "$parent" ] && [ "$tree" = "$(git rev-parse "$parent^{tree}")" ]; then printf %s "$parent"; return 0; fi
	git commit-tree "$tree" ${parent:+-p "$parent"} -m "wip: checkpoint before somebody looks"
}

[ $# -gt 0 ] || usage
order=$1
shift
case $order in
snapshot)
	[ $# -le 1 ] || usage
	enter
	busy
	snapshot "${1:-snapshot}"
	report
	;;
sync)
	enter
	sync "$@"
	;;
squash)
	[ $# -le 1 ] || usage
	enter
	busy
	snapshot "before a squash"
	squash "${1:-}"
	report
	;;
push)
	[ $# = 0 ] || usage
	enter
	push
	;;
report)
	enter
	report
	;;
left)
	enter
	left
	;;
panic) panic "$@" ;;
*) usage ;;
esac
