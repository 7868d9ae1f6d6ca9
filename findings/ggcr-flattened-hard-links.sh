#!/bin/sh
# Version: github.com/google/go-containerregistry v0.22.1, mutate.Extract, which `crane export` calls.
#
# Guess: the flattened file system of an image is the one that a container gets. A file with two names keeps its content
# under the second name, even if a later layer replaces or removes the first.
#
# Behaviour: the layers are read from the last to the first, and a hard link of an earlier layer is passed on as a link,
# although its target is left out. So it becomes a link to the file of the later layer: the second name has the new
# content. If the later layer removes the first name, the link points to nothing, and tar cannot extract the archive.
# There is no error. Real images have such links: Debian's Perl has two names.
#
# Output seen:
#   first name replaced: first="new" second="new"
#   first name removed: tar: second: Cannot hard link to 'first': No such file or directory
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.25

require github.com/google/go-containerregistry v0.22.1
MOD
cat >main.go <<'GO'
package main

import (
	"io"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The arguments are the layers, from the first to the last.
func main() {
	var layers []v1.Layer
	for _, name := range os.Args[1:] {
		l, err := tarball.LayerFromFile(name)
		if err != nil {
			panic(err)
		}
		layers = append(layers, l)
	}
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		panic(err)
	}
	if _, err := io.Copy(os.Stdout, mutate.Extract(img)); err != nil {
		panic(err)
	}
}
GO
mkdir lower replaced removed one two
echo old >lower/first
ln lower/first lower/second
echo new >replaced/first
: >removed/.wh.first
for layer in lower replaced removed; do (cd "$layer" && ls -A | tar cf "../$layer.tar" -T -); done
GOFLAGS=-mod=mod go build -o flatten .
{
	./flatten lower.tar replaced.tar | tar xf - -C one
	echo "first name replaced: first=\"$(cat one/first)\" second=\"$(cat one/second)\""
	echo "first name removed: $(./flatten lower.tar removed.tar | LC_ALL=C tar xf - -C two 2>&1 | sed -n 1p)"
} >seen
cat seen
cat >want <<'WANT'
first name replaced: first="new" second="new"
first name removed: tar: second: Cannot hard link to 'first': No such file or directory
WANT
cmp seen want
