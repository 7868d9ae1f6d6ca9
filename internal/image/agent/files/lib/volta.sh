#!/bin/sh
# Installs Volta, whose archive has the digest $2 (SHA-256), where its site can be reached. Where it cannot, says why: the image's list of missing parts has it.
# Volta honours package.json only, and is no longer developed; the commands in /usr/local/bin do what it does either way.
set -u
url=https://github.com/volta-cli/volta/releases/download/v$1/volta-$1-linux.tar.gz
verify() {
	echo "$1  /tmp/volta.tar.gz" | sha256sum --check --status && return
	echo "the archive is not the one that the image names: its SHA-256 differs" >/tmp/volta.err
	return 1
}
mkdir -p /opt/volta /usr/share/harvest
if curl --fail --silent --show-error --location --connect-timeout 10 --max-time 120 --output /tmp/volta.tar.gz "$url" 2>/tmp/volta.err && verify "$2" &&
	tar -xzf /tmp/volta.tar.gz -C /opt/volta 2>/tmp/volta.err && /opt/volta/volta --version >/usr/share/harvest/volta 2>/tmp/volta.err; then
	ln -sf /opt/volta/volta /usr/local/bin/volta
else
	rm -rf /opt/volta /usr/share/harvest/volta
	tr '\n' ' ' </tmp/volta.err | cut -c1-200 >/usr/share/harvest/volta.missing
fi
rm -f /tmp/volta.tar.gz /tmp/volta.err
