package app

import (
	"github.com/RelevanceAI/harvest/agent"
	"github.com/RelevanceAI/harvest/agent/claude"
	"github.com/RelevanceAI/harvest/agent/opencode"
	"github.com/RelevanceAI/harvest/agent/scripted"
)

// agents are the available agents, by name.
var agents = map[string]agent.Agent{"claude": claude.Agent{}, "opencode": opencode.Agent{},
	"scripted": scripted.Agent{}}
