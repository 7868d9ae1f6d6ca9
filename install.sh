#!/bin/sh
# Installs Harvest from a release: sh install.sh [DIRECTORY], by default /usr/local/bin.
# HARVEST_RELEASES is where releases are, HARVEST_VERSION the one to install.
set -eu

fail() { echo "install.sh: $*" >&2; exit 1; }

dir=${1:-/usr/local/bin}
version=${HARVEST_VERSION:-0.1.0}
releases=${HARVEST_RELEASES:-https://github.com/RelevanceAI/harvest/releases/download}

case $(uname -s) in
Linux) os=linux ;;
Darwin) os=darwin ;;
*) fail "there is no release for $(uname -s); on Windows, unpack the zip archive" ;;
esac
case $(uname -m) in
x86_64 | amd64) arch=amd64 ;;
aarch64 | arm64) arch=arm64 ;;
armv6l | armv7l) arch=arm ;;
*) fail "there is no release for $(uname -m)" ;;
esac
name=harvest_${version}_${os}_${arch}.tar.gz

if command -v curl >/dev/null; then
	fetch() { curl -fsSL -o "$2" "$1"; }
elif command -v wget >/dev/null; then
	fetch() { wget -q -O "$2" "$1"; }
else
	fail "neither curl nor wget is there; install one"
fi
if command -v sha256sum >/dev/null; then
	digest() { sha256sum "$1"; }
else
	digest() { shasum -a 256 "$1"; }
fi

temp=$(mktemp -d)
trap 'rm -rf "$temp"' EXIT
for file in checksums.txt "$name"; do
	fetch "$releases/v$version/$file" "$temp/$file" || fail "$releases/v$version/$file cannot be fetched"
done
want=$(awk -v name="$name" '$2 == name { print $1 }' "$temp/checksums.txt")
have=$(digest "$temp/$name" | cut -d' ' -f1)
[ -n "$want" ] || fail "checksums.txt has no line for $name"
[ "$want" = "$have" ] || fail "$name has the checksum $have, not $want; nothing is installed"

tar -xzf "$temp/$name" -C "$temp" harvest
mkdir -p "$dir" && install -m 755 "$temp/harvest" "$dir/.harvest.new" && mv "$dir/.harvest.new" "$dir/harvest" ||
	fail "$dir cannot be written; name another directory: sh install.sh ~/.local/bin"
echo "installed $dir/harvest"
if [ "$os" = linux ] && [ "$arch" != arm ]; then
	echo "next: sudo $dir/harvest doctor --fix, then $dir/harvest run --code 'print(6*7)'"
else
	echo "next: set HARVEST_URL and HARVEST_API_KEY to those of a server, then $dir/harvest version"
fi
