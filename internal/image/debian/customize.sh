# The last changes to the new root $1, made from outside of it. What begins with "harvest:" is read by package debian.
set -eu
root=$1

chroot "$root" update-ca-certificates

# Debian wants a virtual environment for everything. A sandbox is one already.
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED

# pip installs exactly these files: the wheels of uv for x86-64 and arm64.
cat >"$root/tmp/uv.txt" <<'END'
uv==0.9.5 --hash=sha256:6507bbbcd788553ec4ad5a96fa19364dc0f58b023e31d79868773559a83ec181 --hash=sha256:48a3542835d37882ff57d1ff91b757085525d98756712fa61cf9941d3dda8ebf
END
if chroot "$root" timeout 60 pip install --no-cache-dir --no-input --disable-pip-version-check --root-user-action=ignore \
	--retries 0 --timeout 10 --require-hashes --only-binary=:all: --no-deps --requirement /tmp/uv.txt >"$root/tmp/uv.log" 2>&1; then
	echo "harvest: part uv $(chroot "$root" uv --version | cut -d' ' -f2)" >&2
else
	echo "harvest: missing uv $(grep -v '^$' "$root/tmp/uv.log" | tail -n 2 | tr '\n' ' ' | cut -c1-300)" >&2
fi

# mmdebstrap would have apt-get clear these. It finds the new root through a file in $root/tmp alone: were that file ever missing, it
# would clear the caches of this machine instead.
find "$root/var/lib/apt/lists" "$root/var/cache/apt" -type f -delete

# Nothing of the machine that built the image stays in it.
rm -rf "$root/tmp/uv.log" "$root/tmp/uv.txt" "$root/root/.cache" "$root/etc/hostname" "$root/etc/apt/apt.conf.d/99mmdebstrap" "$root/var/log/apt"
rm -f "$root"/var/log/*.log
echo 'Acquire::Languages "none";' >"$root/etc/apt/apt.conf.d/99harvest"
: >"$root/etc/resolv.conf"
chmod 644 "$root/etc/resolv.conf"
printf '127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n' >"$root/etc/hosts"
