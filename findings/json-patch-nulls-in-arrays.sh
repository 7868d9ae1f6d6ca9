#!/bin/sh
# Version: github.com/evanphx/json-patch/v5 v5.9.11 and gopkg.in/evanphx/json-patch.v4 v4.13.0, the library of
# Kubernetes; json-merge-patch 1.0.2 (npm) as the comparison.
#
# Guess: a JSON merge patch sets an array as it is. RFC 7396 deletes members that are null in objects of the patch, but
# does not look into arrays: {"f":null} within an array is a value like any other. So the patch that the library makes
# from two documents turns the first into the second.
#
# Behaviour: MergePatch also removes members that are null from objects within arrays, at any depth, without an error.
# CreateMergePatch makes the patch that the RFC demands, and the library does not apply its own patch. Members that are
# null in the document, and null as an element of an array, are kept.
#
# Output seen:
#   v4: patch {"list":[{"f":null},null]} result {"list":[{},null]}
#   v5: patch {"list":[{"f":null},null]} result {"list":[{},null]}
#   json-merge-patch (npm): patch {"list":[{"f":null},null]} result {"list":[{"f":null},null]}
#
# It needs npm and node.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.25

require (
	github.com/evanphx/json-patch/v5 v5.9.11
	gopkg.in/evanphx/json-patch.v4 v4.13.0
)
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"

	v5 "github.com/evanphx/json-patch/v5"
	v4 "gopkg.in/evanphx/json-patch.v4"
)

func main() {
	show("v4", v4.CreateMergePatch, v4.MergePatch)
	show("v5", v5.CreateMergePatch, v5.MergePatch)
}

func show(name string, create, apply func(a, b []byte) ([]byte, error)) {
	from, to := []byte(`{"list":[]}`), []byte(`{"list":[{"f":null},null]}`)
	patch, err := create(from, to)
	if err != nil {
		panic(err)
	}
	result, err := apply(from, patch)
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s: patch %s result %s\n", name, patch, result)
}
GO
cat >main.cjs <<'JS'
const merge = require("json-merge-patch");

const patch = merge.generate({list: []}, {list: [{f: null}, null]});
const text = JSON.stringify(patch);
console.log(`json-merge-patch (npm): patch ${text} result ${JSON.stringify(merge.apply({list: []}, patch))}`);
JS
npm install --silent --no-save json-merge-patch@1.0.2 >/dev/null
{
	GOFLAGS=-mod=mod go run .
	node main.cjs
} >seen
cat seen
cat >want <<'WANT'
v4: patch {"list":[{"f":null},null]} result {"list":[{},null]}
v5: patch {"list":[{"f":null},null]} result {"list":[{},null]}
json-merge-patch (npm): patch {"list":[{"f":null},null]} result {"list":[{"f":null},null]}
WANT
cmp seen want
