// The Go client of a Harvest server, for programs: this module needs nothing but a WebSocket library.
module github.com/RelevanceAI/harvest/client

go 1.26.3

require github.com/coder/websocket v1.8.15
