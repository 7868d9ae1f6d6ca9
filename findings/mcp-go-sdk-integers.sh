#!/bin/sh
# Version: github.com/modelcontextprotocol/go-sdk v1.8.0, a server with a tool whose argument is an int64.
#
# Guess: an integer of 64 bits arrives in a field of type int64 as it was sent, as with encoding/json. The schema that
# the SDK makes for the field says "integer", without limits.
#
# Behaviour: the arguments are decoded into a map, for the validation and the defaults, encoded again, and then decoded
# into the struct. The map has float64: an integer above 2^53, as IDs of 64 bits are, reaches the tool as another one,
# without an error. Only the raw arguments have the original. The same happens to the ID of a request and to a progress
# token: the answer has an ID that the client has not used.
#
# Output seen:
#   raw {"id":9007199254740993} typed 9007199254740992
#   request 9007199254740995 answered as 9007199254740996
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'MOD'
module finding

go 1.26

require github.com/modelcontextprotocol/go-sdk v1.8.0
MOD
cat >main.go <<'GO'
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

type args struct {
	ID int64 `json:"id"`
}

func main() {
	server := mcp.NewServer(&mcp.Implementation{Name: "server", Version: "1"}, nil)
	mcp.AddTool(server, &mcp.Tool{Name: "show"},
		func(_ context.Context, r *mcp.CallToolRequest, in args) (*mcp.CallToolResult, any, error) {
			fmt.Printf("raw %s typed %d\n", r.Params.Arguments, in.ID)
			return nil, nil, nil
		})
	requests, toServer := io.Pipe()
	fromServer, answers := io.Pipe()
	go server.Run(context.Background(), &mcp.IOTransport{Reader: requests, Writer: answers})

	lines := bufio.NewReader(fromServer)
	answer := func(request string) string {
		fmt.Fprintln(toServer, request)
		line, err := lines.ReadBytes('\n')
		must(err)
		var message struct{ ID json.RawMessage }
		must(json.Unmarshal(line, &message))
		return string(message.ID)
	}
	answer(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},` +
		`"clientInfo":{"name":"client","version":"1"}}}`)
	fmt.Fprintln(toServer, `{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	answer(`{"jsonrpc":"2.0","id":2,"method":"tools/call","params":{"name":"show","arguments":{"id":9007199254740993}}}`)
	const id = "9007199254740995"
	fmt.Printf("request %s answered as %s\n", id, answer(strings.Replace(
		`{"jsonrpc":"2.0","id":ID,"method":"ping"}`, "ID", id, 1)))
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
raw {"id":9007199254740993} typed 9007199254740992
request 9007199254740995 answered as 9007199254740996
WANT
cmp seen want
