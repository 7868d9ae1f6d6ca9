#!/bin/sh
# Version: github.com/goccy/go-yaml v1.19.2; go.yaml.in/yaml/v3 v3.0.5 (Go) and yaml 2.9.1 (npm) as the comparison.
#
# Guess: a key of the mapping itself wins over those that "<<" merges into it, wherever "<<" stands: keys of a mapping
# have no order. If "<<" names several mappings, the first one that has a key wins. The definition of the merge key says
# both.
#
# Behaviour: the last one in the file wins. Keys that stand above "<<" are replaced by the defaults, and so are those of
# the first mapping in a list. Decoded into a struct, the same file is an error instead, "duplicate key", even with "<<"
# at the top.
#
# Output seen:
#   goccy: above=1 below=8 list=1G
#   yaml/v3: above=8 below=8 list=16G
#   yaml (npm): above=8 below=8 list=16G
#   goccy, below in a struct: duplicate key "cpu"
#   yaml/v3, below in a struct: 8
#
# It needs npm and node.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >file.yaml <<'YAML'
large: &large {memory: 16G}
default: &default {memory: 1G, cpu: 1}
above:
  cpu: 8
  <<: *default
below:
  <<: *default
  cpu: 8
list:
  <<: [*large, *default]
YAML
cat >go.mod <<'MOD'
module finding

go 1.25

require (
	github.com/goccy/go-yaml v1.19.2
	go.yaml.in/yaml/v3 v3.0.5
)
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"
	"os"
	"strings"

	goccy "github.com/goccy/go-yaml"
	v3 "go.yaml.in/yaml/v3"
)

func main() {
	text, err := os.ReadFile("file.yaml")
	if err != nil {
		panic(err)
	}
	switch os.Args[1] {
	case "maps":
		show("goccy", text, goccy.Unmarshal)
		show("yaml/v3", text, v3.Unmarshal)
	case "structs":
		showStruct("goccy", text, goccy.Unmarshal)
		showStruct("yaml/v3", text, v3.Unmarshal)
	}
}

func show(name string, text []byte, decode func([]byte, any) error) {
	var file map[string]any
	if err := decode(text, &file); err != nil {
		panic(err)
	}
	get := func(job, key string) any { return file[job].(map[string]any)[key] }
	fmt.Printf("%s: above=%v below=%v list=%v\n", name, get("above", "cpu"), get("below", "cpu"), get("list", "memory"))
}

func showStruct(name string, text []byte, decode func([]byte, any) error) {
	var file struct{ Below struct{ CPU int } }
	if err := decode(text, &file); err != nil {
		line, _, _ := strings.Cut(err.Error(), "\n")
		_, line, _ = strings.Cut(line, "] ")
		fmt.Printf("%s, below in a struct: %s\n", name, line)
		return
	}
	fmt.Printf("%s, below in a struct: %d\n", name, file.Below.CPU)
}
GO
cat >main.mjs <<'JS'
import {readFileSync} from "node:fs";
import * as yaml from "yaml";

const {above, below, list} = yaml.parse(readFileSync("file.yaml", "utf8"), {merge: true});
console.log(`yaml (npm): above=${above.cpu} below=${below.cpu} list=${list.memory}`);
JS
npm install --silent --no-save yaml@2.9.1 >/dev/null
{
	GOFLAGS=-mod=mod go run . maps
	node main.mjs
	GOFLAGS=-mod=mod go run . structs
} >seen
cat seen
cat >want <<'WANT'
goccy: above=1 below=8 list=1G
yaml/v3: above=8 below=8 list=16G
yaml (npm): above=8 below=8 list=16G
goccy, below in a struct: duplicate key "cpu"
yaml/v3, below in a struct: 8
WANT
cmp seen want
