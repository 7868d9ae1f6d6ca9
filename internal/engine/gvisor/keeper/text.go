package keeper

import (
	"encoding/json"
	"slices"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/internal/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// isText reports whether gVisor's control socket can transmit a command unchanged.
func isText(exec *runsc.Exec) bool {
	bad := func(s string) bool { return !utf8.ValidString(s) }
	return !slices.ContainsFunc(exec.Argv, bad) && !slices.ContainsFunc(exec.Envv, bad)
}

// viaTool replaces a command by a tool that starts it from inside.
func viaTool(exec *runsc.Exec) {
	var c wire.LaunchArgs
	for _, arg := range exec.Argv {
		c.Args = append(c.Args, []byte(arg))
	}
	for _, pair := range exec.Envv {
		c.Env = append(c.Env, []byte(pair))
	}
	b, err := json.Marshal(c)
	if err != nil {
		return // byte slices can always be encoded as JSON
	}
	exec.Argv = []string{wire.ToolName, wire.ToolLaunch, string(b)}
	exec.Envv = slices.DeleteFunc(exec.Envv, func(pair string) bool { return !utf8.ValidString(pair) })
}
