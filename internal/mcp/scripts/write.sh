# Writes its input to the file $1. If SUM is set, the file must have that checksum. The file keeps its mode and owner.
file=$1
case $file in */*) mkdir -p -- "${file%/*}" ;; esac
if [ -n "$SUM" ] && [ "$(sha256sum <"$file" | cut -d ' ' -f 1)" != "$SUM" ]; then
	echo "fatal: the file has changed meanwhile" >&2
	exit 9
fi
if [ -d "$file" ]; then
	echo "fatal: $file is a directory" >&2
	exit 1
fi
new=$(mktemp "${file%/*}/.harvest-XXXXXX")
trap 'rm -f "$new"' EXIT
cat >"$new"
if [ -e "$file" ]; then cat "$new" >"$file"; else chmod 644 "$new"; mv "$new" "$file"; fi
