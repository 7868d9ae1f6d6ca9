#!/bin/sh
# Version: npm 11.19.1; yarn 1.22.22 and pnpm 12.21.0 as the comparison.
#
# Guess: if node_modules is a symbolic link to a directory, as to a volume that several sandboxes or builds keep, the
# packages are installed there. Node.js follows the link, and so do other package managers.
#
# Behaviour: `npm install` and `npm ci` remove the link and create a directory in its place. The volume stays empty, the
# packages are on the disk of the project, and there is no warning: each new sandbox installs everything again.
#
# Output seen:
#   npm install: node_modules is a directory, volume is empty
#   npm ci: node_modules is a directory, volume is empty
#   yarn install: node_modules is a link, volume has the package
#   pnpm install: node_modules is a link, volume has the package
#
# It needs npm and node.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
mkdir tools home package
(cd tools && npm install --silent --no-save npm@11.19.1 yarn@1.22.22 pnpm@12.21.0 >/dev/null)
echo '{"name": "leaf", "version": "1.0.0"}' >package/package.json
tar czf leaf.tgz package

# try_out runs a package manager, as in "yarn install", in a new project with a link.
try_out() {
	rm -rf project volume
	mkdir project volume
	echo '{"name": "project", "version": "1.0.0", "dependencies": {"leaf": "file:../leaf.tgz"}}' >project/package.json
	(
		cd project
		export PATH="$dir/tools/node_modules/.bin:$PATH" HOME="$dir/home"
		npm install --silent --package-lock-only
		ln -s ../volume node_modules
		"$@"
	) >log 2>&1 || { cat log; return 1; }
	kind='a directory'
	test ! -L project/node_modules || kind='a link'
	content='is empty'
	test ! -e volume/leaf/package.json || content='has the package'
	test -e project/node_modules/leaf/package.json || content='the package is nowhere'
	echo "$1 $2: node_modules is $kind, volume $content"
}
{
	try_out npm install
	try_out npm ci
	try_out yarn install --no-lockfile
	try_out pnpm install --no-lockfile
} >seen
cat seen
cat >want <<'WANT'
npm install: node_modules is a directory, volume is empty
npm ci: node_modules is a directory, volume is empty
yarn install: node_modules is a link, volume has the package
pnpm install: node_modules is a link, volume has the package
WANT
cmp seen want
