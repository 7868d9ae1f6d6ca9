package app

import (
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/claude"
	"github.com/RelevanceAI/harvest/internal/session/agent/opencode"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
)

// agents are the available agents, by name.
var agents = map[string]agent.Agent{"claude": claude.Agent{}, "opencode": opencode.Agent{},
	"scripted": scripted.Agent{}}
