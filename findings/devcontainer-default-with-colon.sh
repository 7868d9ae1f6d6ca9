#!/bin/sh
# Version: @devcontainers/cli 0.89.0 (npm).
#
# Guess: in "${localEnv:NAME:default}" of a devcontainer.json, the text between the second colon and the brace is the
# default, as in the Compose files beside it. A URL is a common default.
#
# Behaviour: the text is split at all colons, and all parts after the third are dropped: the default of
# "${localEnv:API:http://localhost:8080/v1}" is "http". There is no warning. A value of the variable itself may have
# colons.
#
# Output seen:
#   unset: api=http time=10
#   set: api=http://localhost:8080/v1 time=10:30
#
# It needs npm and node.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
npm install --silent --no-save @devcontainers/cli@0.89.0 >/dev/null
mkdir -p work/.devcontainer
cat >work/.devcontainer/devcontainer.json <<'JSON'
{
	"image": "debian:12",
	"containerEnv": {
		"API": "${localEnv:FINDING_API:http://localhost:8080/v1}",
		"TIME": "${localEnv:FINDING_TIME:10:30}"
	}
}
JSON

# read_configuration prints the configuration, with the given variables. It asks Docker for a container: there is none.
read_configuration() {
	env "$@" node_modules/.bin/devcontainer read-configuration --workspace-folder work --docker-path true 2>/dev/null |
		node -e 'const {containerEnv: e} = JSON.parse(require("fs").readFileSync(0)).configuration
			console.log(`api=${e.API} time=${e.TIME}`)'
}
{
	echo "unset: $(read_configuration -u FINDING_API -u FINDING_TIME)"
	echo "set: $(read_configuration FINDING_API=http://localhost:8080/v1 FINDING_TIME=10:30)"
} >seen
cat seen
cat >want <<'WANT'
unset: api=http time=10
set: api=http://localhost:8080/v1 time=10:30
WANT
cmp seen want
