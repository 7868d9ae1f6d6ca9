#!/bin/sh
# Version: github.com/google/go-containerregistry v0.22.1, mutate.Extract, which `crane export` calls.
#
# Guess: a whiteout hides files of the layers below it. The specification of OCI images says that it must not hide a
# file of its own layer: a layer that removes a directory and creates it again is valid, and its files remain.
#
# Behaviour: the order of the entries decides. A whiteout that comes first, as the specification recommends, hides also
# the entries of its own layer that follow it. The flattened file system lacks files that every container has, without
# an error. With the same entries in the opposite order it is complete.
#
# Output seen:
#   lower layer: dir/ dir/old file
#   whiteouts first: (nothing)
#   whiteouts last: dir/ dir/new file
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
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"sort"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	lower := layer("dir/", "dir/old", "file")
	fmt.Println("lower layer:", flat(lower))
	fmt.Println("whiteouts first:", flat(lower, layer(".wh.dir", ".wh.file", "dir/", "dir/new", "file")))
	fmt.Println("whiteouts last:", flat(lower, layer("dir/", "dir/new", "file", ".wh.dir", ".wh.file")))
}

func layer(names ...string) v1.Layer {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		hdr := &tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeReg}
		if strings.HasSuffix(name, "/") {
			hdr.Typeflag = tar.TypeDir
		}
		must(w.WriteHeader(hdr))
	}
	must(w.Close())
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(b.Bytes())), nil
	})
	must(err)
	return l
}

// flat returns the names of the flattened file system.
func flat(layers ...v1.Layer) string {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	must(err)
	r := tar.NewReader(mutate.Extract(img))
	var names []string
	for {
		hdr, err := r.Next()
		if err == io.EOF {
			break
		}
		must(err)
		name := hdr.Name
		if hdr.Typeflag == tar.TypeDir {
			name += "/"
		}
		names = append(names, name)
	}
	if names == nil {
		return "(nothing)"
	}
	sort.Strings(names)
	return strings.Join(names, " ")
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
GO
GOFLAGS=-mod=mod go run . >seen
cat seen
cat >want <<'WANT'
lower layer: dir/ dir/old file
whiteouts first: (nothing)
whiteouts last: dir/ dir/new file
WANT
cmp seen want
