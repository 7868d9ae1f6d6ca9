#!/bin/sh
# Version: k8s.io/apimachinery v0.37.2, jsonmergepatch, with gopkg.in/evanphx/json-patch.v4 v4.13.0. `kubectl apply`
# uses it for custom resources.
#
# Guess: if a manifest has a new value for an integer, the patch for the API server has it. The API has integers of 64
# bits, and Kubernetes decodes JSON without loss. For its own types, the package strategicpatch sees each difference.
#
# Behaviour: the patch is made from numbers of type float64. A change between neighbours above 2^53, such as an ID, is
# not seen: the patch is empty, nothing is sent, and there is no error. Version 5 of the library would see the change.
#
# Output seen:
#   jsonmergepatch, from 9007199254740992 to 9007199254740993: {}
#   jsonmergepatch, from 9007199254740992 to 9007199254740994: {"spec":{"id":9007199254740994}}
#   json-patch/v5, from 9007199254740992 to 9007199254740993: {"spec":{"id":9007199254740993}}
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.26

require (
	github.com/evanphx/json-patch/v5 v5.9.11
	gopkg.in/evanphx/json-patch.v4 v4.13.0
	k8s.io/apimachinery v0.37.2
)
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"

	v5 "github.com/evanphx/json-patch/v5"
	"k8s.io/apimachinery/pkg/util/jsonmergepatch"
)

const old = 1 << 53

func main() {
	for _, id := range []int{old + 1, old + 2} {
		patch, err := jsonmergepatch.CreateThreeWayJSONMergePatch(document(old), document(id), document(old))
		show("jsonmergepatch", id, patch, err)
	}
	patch, err := v5.CreateMergePatch(document(old), document(old+1))
	show("json-patch/v5", old+1, patch, err)
}

func document(id int) []byte {
	return fmt.Appendf(nil, `{"spec":{"id":%d}}`, id)
}

func show(name string, id int, patch []byte, err error) {
	if err != nil {
		panic(err)
	}
	fmt.Printf("%s, from %d to %d: %s\n", name, old, id, patch)
}
GO
GOFLAGS=-mod=mod go run . >seen
cat seen
cat >want <<'WANT'
jsonmergepatch, from 9007199254740992 to 9007199254740993: {}
jsonmergepatch, from 9007199254740992 to 9007199254740994: {"spec":{"id":9007199254740994}}
json-patch/v5, from 9007199254740992 to 9007199254740993: {"spec":{"id":9007199254740993}}
WANT
cmp seen want
