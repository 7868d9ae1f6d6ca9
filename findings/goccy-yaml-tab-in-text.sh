#!/bin/sh
# Version: github.com/goccy/go-yaml v1.19.2; go.yaml.in/yaml/v3 v3.0.5 as the comparison.
#
# Guess: a tab between two words of an unquoted value is a part of the value. In YAML, white space within a plain scalar
# is content, unless a line ends with it.
#
# Behaviour: the decoder drops the tab, and the words run together, without an error. The encoder writes text with a tab
# unquoted, so the library does not get back what it has written. A tab in quotes is kept.
#
# Output seen:
#   decoded, goccy: "gofmt-l ." quoted: "gofmt\t-l ."
#   decoded, yaml/v3: "gofmt\t-l ." quoted: "gofmt\t-l ."
#   encoded by goccy and decoded, goccy: "gofmt-l ."
#   encoded by goccy and decoded, yaml/v3: "gofmt\t-l ."
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
)
MOD
cat >main.go <<'GO'
package main

import (
	"fmt"

	goccy "github.com/goccy/go-yaml"
	v3 "go.yaml.in/yaml/v3"
)

type file struct{ Plain, Quoted string }

func main() {
	text := []byte("plain: gofmt\t-l .\nquoted: \"gofmt\t-l .\"\n")
	var a, b file
	must(goccy.Unmarshal(text, &a))
	must(v3.Unmarshal(text, &b))
	fmt.Printf("decoded, goccy: %q quoted: %q\n", a.Plain, a.Quoted)
	fmt.Printf("decoded, yaml/v3: %q quoted: %q\n", b.Plain, b.Quoted)

	text, err := goccy.Marshal(file{Plain: "gofmt\t-l ."})
	must(err)
	must(goccy.Unmarshal(text, &a))
	must(v3.Unmarshal(text, &b))
	fmt.Printf("encoded by goccy and decoded, goccy: %q\n", a.Plain)
	fmt.Printf("encoded by goccy and decoded, yaml/v3: %q\n", b.Plain)
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
decoded, goccy: "gofmt-l ." quoted: "gofmt\t-l ."
decoded, yaml/v3: "gofmt\t-l ." quoted: "gofmt\t-l ."
encoded by goccy and decoded, goccy: "gofmt-l ."
encoded by goccy and decoded, yaml/v3: "gofmt\t-l ."
WANT
cmp seen want
