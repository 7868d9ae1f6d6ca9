#!/bin/sh
# Version: github.com/modelcontextprotocol/go-sdk v1.8.0 and @modelcontextprotocol/sdk 1.32.2 (npm) as clients, the
# former also as the server.
#
# Guess: a server of MCP over HTTP may keep its sessions in memory and be restarted. It answers 404 to a session that it
# does not know, and the specification demands that the client then starts a new session: "MUST", with a request
# "initialize" without the old ID. So both official clients do that, once, and repeat the call.
#
# Behaviour: neither does. The Go client closes its session at the first 404, and all further calls fail without a
# request. The TypeScript client sends the old ID again with each call, forever. The program has to notice the text of
# the error and connect anew. A server that is to survive a restart has to be stateless.
#
# Output seen:
#   go: before "hi"
#   go: after "session not found", again "client is closing"
#   go: 1 request after the restart, 0 of them initialize
#   typescript: before "hi"
#   typescript: after "session not found", again "session not found"
#   typescript: 2 requests after the restart, 0 of them initialize
#
# It needs npm and node.
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
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"
)

// server counts the requests with POST since it was started.
type server struct {
	http.Server
	posts, initializes int
}

func start(addr string) (*server, string) {
	tools := mcp.NewServer(&mcp.Implementation{Name: "server", Version: "1"}, nil)
	mcp.AddTool(tools, &mcp.Tool{Name: "greet"},
		func(context.Context, *mcp.CallToolRequest, struct{}) (*mcp.CallToolResult, any, error) {
			return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: "hi"}}}, nil, nil
		})
	handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return tools }, nil)
	s := &server{}
	s.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			body, err := io.ReadAll(r.Body)
			must(err)
			r.Body = io.NopCloser(bytes.NewReader(body))
			s.posts++
			s.initializes += strings.Count(string(body), `"method":"initialize"`)
		}
		handler.ServeHTTP(w, r)
	})
	s.SetKeepAlivesEnabled(false) // no call goes to a connection of the server before
	l, err := net.Listen("tcp", addr)
	must(err)
	go s.Serve(l)
	return s, l.Addr().String()
}

func main() {
	first, addr := start("127.0.0.1:0")
	client := mcp.NewClient(&mcp.Implementation{Name: "client", Version: "1"}, nil)
	session, err := client.Connect(context.Background(), &mcp.StreamableClientTransport{Endpoint: "http://" + addr}, nil)
	must(err)
	fmt.Printf("go: before %q\n", call(session))
	second := restart(first, addr)
	fmt.Printf("go: after %q, again %q\n", call(session), call(session))
	report("go", second)

	third := restart(second, addr)
	cmd := exec.Command("node", "client.mjs", "http://"+addr)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	must(err)
	out, err := cmd.StdoutPipe()
	must(err)
	must(cmd.Start())
	line := make([]byte, 100)
	n, err := out.Read(line)
	must(err)
	fmt.Print(string(line[:n]))
	fourth := restart(third, addr)
	must(in.Close())
	_, err = io.Copy(os.Stdout, out)
	must(err)
	must(cmd.Wait())
	report("typescript", fourth)
}

func restart(s *server, addr string) *server {
	must(s.Close())
	s, _ = start(addr)
	return s
}

func call(session *mcp.ClientSession) string {
	result, err := session.CallTool(context.Background(), &mcp.CallToolParams{Name: "greet"})
	for _, text := range []string{"client is closing", "session not found"} {
		if err != nil && strings.Contains(err.Error(), text) {
			return text
		}
	}
	must(err)
	return result.Content[0].(*mcp.TextContent).Text
}

func report(name string, s *server) {
	requests := "requests"
	if s.posts == 1 {
		requests = "request"
	}
	fmt.Printf("%s: %d %s after the restart, %d of them initialize\n", name, s.posts, requests, s.initializes)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
GO
cat >client.mjs <<'JS'
import {Client} from "@modelcontextprotocol/sdk/client/index.js";
import {StreamableHTTPClientTransport} from "@modelcontextprotocol/sdk/client/streamableHttp.js";

const client = new Client({name: "client", version: "1"});
await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
const call = async () => {
	try {
		return (await client.callTool({name: "greet", arguments: {}})).content[0].text;
	} catch (e) {
		return /session not found/.exec(e.message)?.[0] ?? e.message;
	}
};
console.log(`typescript: before "${await call()}"`);
process.stdin.resume();
await new Promise((resolve) => process.stdin.on("end", resolve));
console.log(`typescript: after "${await call()}", again "${await call()}"`);
process.exit(0);
JS
npm install --silent --no-save @modelcontextprotocol/sdk@1.32.2 >/dev/null
GOFLAGS=-mod=mod go run . >seen
cat seen
cat >want <<'WANT'
go: before "hi"
go: after "session not found", again "client is closing"
go: 1 request after the restart, 0 of them initialize
typescript: before "hi"
typescript: after "session not found", again "session not found"
typescript: 2 requests after the restart, 0 of them initialize
WANT
cmp seen want
