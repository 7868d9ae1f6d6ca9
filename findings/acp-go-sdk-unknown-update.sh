#!/bin/sh
# Version: github.com/coder/acp-go-sdk v0.13.0, types of the Agent Client Protocol for Go.
#
# Guess: a session update of a kind that this version does not know is an error, or is kept as unknown, so that a client
# can pass over it. The protocol adds kinds in minor versions, and its field sessionUpdate names the kind.
#
# Behaviour: the union is decoded by trial, without the name. An unknown kind becomes another kind that has no required
# field, without an error: a client acts on a change of the session's title or mode that no agent has sent. The same
# holds for a content block of an unknown type: it becomes an empty text.
#
# Output seen:
#   some_future_kind: err=<nil> became="session_info_update"
#   content of an unknown type: err=<nil> became="text" text=""
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.25

require github.com/coder/acp-go-sdk v0.13.0
MOD
cat >main.go <<'GO'
package main

import (
	"encoding/json"
	"fmt"

	"github.com/coder/acp-go-sdk"
)

func main() {
	var u acp.SessionUpdate
	err := json.Unmarshal([]byte(`{"sessionUpdate":"some_future_kind","progress":40}`), &u)
	out, _ := json.Marshal(u)
	var kind struct{ SessionUpdate string }
	_ = json.Unmarshal(out, &kind)
	fmt.Printf("some_future_kind: err=%v became=%q\n", err, kind.SessionUpdate)

	var c acp.ContentBlock
	err = json.Unmarshal([]byte(`{"type":"some_future_type","url":"https://example.org"}`), &c)
	out, _ = json.Marshal(c)
	var block struct{ Type, Text string }
	_ = json.Unmarshal(out, &block)
	fmt.Printf("content of an unknown type: err=%v became=%q text=%q\n", err, block.Type, block.Text)
}
GO
GOFLAGS=-mod=mod go run . >seen
cat seen
cat >want <<'WANT'
some_future_kind: err=<nil> became="session_info_update"
content of an unknown type: err=<nil> became="text" text=""
WANT
cmp seen want
