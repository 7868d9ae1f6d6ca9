// Package own lists the parts of Harvest that run inside sandboxes. The programs harvest and tools both contain
// them.
package own

import (
	"context"
	"io"
	"maps"

	"github.com/RelevanceAI/harvest/internal/image/dockerfile/mounts"
	"github.com/RelevanceAI/harvest/internal/image/trust/installer"
	"github.com/RelevanceAI/harvest/internal/session/agent/acp"
	acpbridge "github.com/RelevanceAI/harvest/internal/session/agent/acp/bridge"
	"github.com/RelevanceAI/harvest/internal/session/agent/opencode"
	"github.com/RelevanceAI/harvest/internal/session/agent/opencode/bridge"
	"github.com/RelevanceAI/harvest/internal/session/agent/release"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted/program"
	"github.com/RelevanceAI/harvest/internal/session/model/tunnel"
	"github.com/RelevanceAI/harvest/internal/ssh/inside"
)

// Program is a part of this binary. It returns an exit code.
type Program func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int

// Programs are all parts, by name (engine.Command.Own).
var Programs = withRelease(parts)

var parts = map[string]Program{
	acp.Program:       acpbridge.Main,
	scripted.Program:  program.Main,
	tunnel.Program:    tunnel.Main,
	inside.Program:    inside.Main,
	mounts.Program:    mounts.Main,
	installer.Program: installer.Main,
	opencode.Program: func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
		return bridge.Main(ctx, args, []string{"opencode", "serve"}, stdin, stdout, stderr)
	},
}

// withRelease adds the part that starts agents of other versions, also those that are parts.
func withRelease(parts map[string]Program) map[string]Program {
	all := maps.Clone(parts)
	all[release.Program] = func(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
		own := func(name string) release.Part { return release.Part(parts[name]) }
		return release.Main(ctx, args, own, stdin, stdout, stderr)
	}
	return all
}
