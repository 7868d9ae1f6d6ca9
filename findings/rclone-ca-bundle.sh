#!/bin/sh
# Version: rclone 1.60.1+dfsg-2+b5 (Debian 12), whose S3 backend uses aws-sdk-go v1.
#
# Guess: AWS_CA_BUNDLE names the authorities that a client of AWS trusts, as the CLI and all SDKs document. A valid
# bundle has an effect on TLS only, and none on a server without TLS.
#
# Behaviour: with the variable, no S3 remote can be opened at all, even one with an http:// endpoint, before anything is
# sent. The SDK replaces the authorities of an http.Transport, and rclone gives it a transport of its own type. An
# environment that sets the variable for all programs, as one with a proxy that inspects TLS does, breaks rclone, which
# would take the same authorities from SSL_CERT_FILE.
#
# Output seen:
#   without AWS_CA_BUNDLE: connects
#   with AWS_CA_BUNDLE: unsupported transport, *fshttp.Transport
#   with SSL_CERT_FILE: connects
#
# It needs apt-get with the lists of Debian 12.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
chmod 755 "$dir"
cd "$dir"
apt-get -q -o APT::Sandbox::User=root download rclone=1.60.1+dfsg-2+b5 >/dev/null
dpkg-deb -x rclone_*.deb package

# list opens a remote at a port that refuses connections, with the given variables.
list() {
	said=$(env -i PATH="$PATH" HOME="$dir" RCLONE_CONFIG="$dir/none.conf" RCLONE_CONFIG_X_TYPE=s3 \
		RCLONE_CONFIG_X_PROVIDER=Other RCLONE_CONFIG_X_ENDPOINT=http://127.0.0.1:1 RCLONE_CONFIG_X_ACCESS_KEY_ID=id \
		RCLONE_CONFIG_X_SECRET_ACCESS_KEY=key "$@" package/usr/bin/rclone --retries 1 --low-level-retries 1 lsd x: 2>&1) ||
		true
	case $said in
	*'connection refused'*) echo connects ;;
	*) echo "$said" | sed -n 's/^caused by: //p' ;;
	esac
}
{
	echo "without AWS_CA_BUNDLE: $(list)"
	echo "with AWS_CA_BUNDLE: $(list AWS_CA_BUNDLE=/etc/ssl/certs/ca-certificates.crt)"
	echo "with SSL_CERT_FILE: $(list SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt)"
} >seen
cat seen
cat >want <<'WANT'
without AWS_CA_BUNDLE: connects
with AWS_CA_BUNDLE: unsupported transport, *fshttp.Transport
with SSL_CERT_FILE: connects
WANT
cmp seen want
