#!/bin/sh
# Version: k8s.io/apimachinery v0.37.2, yaml.NewYAMLOrJSONDecoder, with which kubectl reads manifests;
# go.yaml.in/yaml/v3 v3.0.5 (Go) and yaml 2.9.1 (npm) as the comparison.
#
# Guess: two manifests can be joined with cat, if the first one ends with "...", the mark of the end of a document. YAML
# 1.2 needs no "---" after it: what follows is the next document. A decoder of YAML 1.1, which needs "---", reports an
# error.
#
# Behaviour: the decoder splits its input at "---" only, and takes the first document of each piece. All documents after
# "..." are dropped, without an error: a manifest is not applied. With "---" between them both are read.
#
# Output seen:
#   first, "---", second: apimachinery reads 2, yaml/v3 reads 2, yaml (npm) reads 2
#   first, "...", second: apimachinery reads 1, yaml/v3 reports an error, yaml (npm) reads 2
#
# It needs npm and node.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.26

require (
	go.yaml.in/yaml/v3 v3.0.5
	k8s.io/apimachinery v0.37.2
)
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"io"
	"os"

	v3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/util/yaml"
)

func main() {
	fmt.Printf("apimachinery %s, yaml/v3 %s\n",
		count(yaml.NewYAMLOrJSONDecoder(open(), 4096)), count(v3.NewDecoder(open())))
}

func open() *os.File {
	f, err := os.Open(os.Args[1])
	if err != nil {
		panic(err)
	}
	return f
}

func count(d interface{ Decode(any) error }) string {
	for n := 0; ; n++ {
		var manifest map[string]any
		switch err := d.Decode(&manifest); {
		case err == io.EOF:
			return fmt.Sprintf("reads %d", n)
		case err != nil:
			return "reports an error"
		case manifest["kind"] != "Namespace":
			panic(manifest)
		}
	}
}
GO
cat >main.mjs <<'JS'
import {readFileSync} from "node:fs";
import * as yaml from "yaml";

const all = yaml.parseAllDocuments(readFileSync(process.argv[2], "utf8"));
console.log(`yaml (npm) reads ${all.filter((d) => d.errors.length === 0 && d.get("kind") === "Namespace").length}`);
JS
npm install --silent --no-save yaml@2.9.1 >/dev/null
GOFLAGS=-mod=mod go build -o count .
for mark in --- ...; do
	for name in first second; do
		test $name = first || echo "$mark"
		printf 'apiVersion: v1\nkind: Namespace\nmetadata:\n  name: %s\n' $name
	done >manifests.yaml
	echo "first, \"$mark\", second: $(./count manifests.yaml), $(node main.mjs manifests.yaml)"
done >seen
cat seen
cat >want <<'WANT'
first, "---", second: apimachinery reads 2, yaml/v3 reads 2, yaml (npm) reads 2
first, "...", second: apimachinery reads 1, yaml/v3 reports an error, yaml (npm) reads 2
WANT
cmp seen want
