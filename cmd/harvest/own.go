package main

import (
	"context"
	"io"

	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/agent/claude"
	"github.com/RelevanceAI/harvest/agent/opencode"
	"github.com/RelevanceAI/harvest/agent/opencode/bridge"
	"github.com/RelevanceAI/harvest/agent/scripted"
	"github.com/RelevanceAI/harvest/agent/scripted/program"
	"github.com/RelevanceAI/harvest/model/tunnel"
)

// agents are those that sessions may have, by their names.
var agents = map[string]agent.Agent{"claude": claude.Agent{}, "opencode": opencode.Agent{}, "scripted": scripted.Agent{}}

// ownPrograms are parts of this binary that run inside sandboxes, by their names (engine.Command.Own).
var ownPrograms = map[string]func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int{
	scripted.Program: program.Main,
	tunnel.Program:   tunnel.Main,
	opencode.Program: func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
		return bridge.Main(ctx, args, []string{"opencode", "serve"}, stdin, stdout, stderr)
	},
}
