package keeper

import (
	"os"

	"github.com/RelevanceAI/harvest/engine"
)

// Handover makes the process a keeper, or a tool inside a sandbox, if it was started as one. It then never returns.
func Handover() {
	if len(os.Args) == 0 {
		return
	}
	switch os.Args[0] {
	case Name:
		os.Exit(Main())
	case engine.OwnEcho:
		engine.Echo(os.Args[1:], os.Stdout)
		os.Exit(0)
	case ToolName:
		os.Exit(Tool(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
}
