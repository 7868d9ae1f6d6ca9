#!/bin/sh
# Version: github.com/goccy/go-yaml v1.19.2 writes; go.yaml.in/yaml/v3 v3.0.5 and sigs.k8s.io/yaml v1.6.0 (Go), yaml
# 2.9.1 and js-yaml 5.5.0 (npm) read.
#
# Guess: an encoder quotes each text that YAML reads as a number, so that every decoder gets text back. goccy/go-yaml
# does so for "12", "1.5", "0x1F" and "1_000".
#
# Behaviour: it has no numbers with an exponent and without a point. It writes the text "685e10", as the short name of a
# commit can be, without quotes. Others read a number, as the core schema of YAML 1.2 says, and the name is lost. A
# number that is written so, such as 1e3, is text for goccy/go-yaml.
#
# Output seen:
#   "685e10" is written as: commit: 685e10
#   goccy: text 685e10
#   yaml/v3: float64 6.85e+12
#   sigs.k8s.io/yaml: float64 6.85e+12
#   yaml (npm): number 6850000000000
#   js-yaml (npm): number 6850000000000
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
	github.com/goccy/go-yaml v1.19.2
	go.yaml.in/yaml/v3 v3.0.5
	sigs.k8s.io/yaml v1.6.0
)
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"os"

	goccy "github.com/goccy/go-yaml"
	v3 "go.yaml.in/yaml/v3"
	sigs "sigs.k8s.io/yaml"
)

func main() {
	text, err := goccy.Marshal(map[string]string{"commit": "685e10"})
	must(err)
	must(os.WriteFile("file.yaml", text, 0o600))
	fmt.Printf("%q is written as: %s", "685e10", text)
	var a map[string]string
	must(goccy.Unmarshal(text, &a))
	fmt.Println("goccy: text", a["commit"])
	var b, c map[string]any
	must(v3.Unmarshal(text, &b))
	fmt.Printf("yaml/v3: %T %v\n", b["commit"], b["commit"])
	must(sigs.Unmarshal(text, &c))
	fmt.Printf("sigs.k8s.io/yaml: %T %v\n", c["commit"], c["commit"])
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
GO
cat >main.mjs <<'JS'
import {readFileSync} from "node:fs";
import * as yaml from "yaml";
import * as jsyaml from "js-yaml";

const text = readFileSync("file.yaml", "utf8");
for (const [name, file] of [["yaml", yaml.parse(text)], ["js-yaml", jsyaml.load(text)]]) {
	console.log(`${name} (npm): ${typeof file.commit} ${file.commit}`);
}
JS
npm install --silent --no-save yaml@2.9.1 js-yaml@5.5.0 >/dev/null
{
	GOFLAGS=-mod=mod go run .
	node main.mjs
} >seen
cat seen
cat >want <<'WANT'
"685e10" is written as: commit: 685e10
goccy: text 685e10
yaml/v3: float64 6.85e+12
sigs.k8s.io/yaml: float64 6.85e+12
yaml (npm): number 6850000000000
js-yaml (npm): number 6850000000000
WANT
cmp seen want
