// Package models connects agents in sandboxes with their models, through the server's gateway or directly, and keeps
// settings of repositories from redirecting them.
package models

import (
	"context"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/session/model/tunnel"
)

// Connector connects sandboxes with models.
type Connector struct {
	Fleet   *fleet.Fleet
	Gateway *model.Gateway // nil: agents reach models on their own
	// Direct means that agents receive the credential itself. Otherwise they send their requests through the gateway,
	// if the engine can connect into sandboxes.
	Direct bool
}

// tunneled reports whether agents reach their models through this server.
func (c Connector) tunneled() bool {
	return c.Gateway != nil && !c.Direct && c.Fleet.Capabilities().Network
}

// Withheld returns the secret keys that sandboxes of sessions do not receive.
func (c Connector) Withheld() []string {
	if c.Gateway == nil {
		return nil
	}
	return model.Keys() // without a tunnel, only the agent's process receives its credential
}

// Access returns the address and credential with which a program in a sandbox reaches its model. id identifies the
// owner of the token; secrets are the names of secrets that are searched first.
func (c Connector) Access(ctx context.Context, account, id string, secrets []string) (*agent.Access, error) {
	if c.Gateway == nil {
		return nil, nil
	}
	found, err := c.Gateway.Credential(ctx, account, secrets)
	if err != nil {
		return nil, err
	}
	if c.tunneled() {
		if found.Kind == "" {
			found.Kind = model.APIKey // the gateway reports the missing credential
		}
		return &agent.Access{Kind: agent.AccessKind(found.Kind), URL: tunnel.URL(), Token: c.Gateway.Token(id),
			Region: found.Region}, nil
	}
	if found.Value == "" {
		return nil, nil
	}
	a := &agent.Access{Kind: agent.AccessKind(found.Kind), Token: found.Value.Reveal(), Region: found.Region}
	url, err := c.Gateway.Upstream(found)
	if err != nil {
		return nil, err
	}
	if url != model.Anthropic && found.Kind != model.Bedrock {
		a.URL = url
	}
	return a, nil
}

// Needed reports whether an agent uses a model.
func Needed(a agent.Agent) bool {
	without, ok := a.(interface{ Modelless() bool })
	return !ok || !without.Modelless()
}

// CheckKeys returns Invalid if a session's environment contains a key that belongs into a secret.
func (c Connector) CheckKeys(a agent.Agent, env map[string]string) error {
	if !c.tunneled() || !Needed(a) {
		return nil
	}
	for _, key := range model.Keys() {
		if env[key] != "" {
			return errors.Remedy(errors.Newf(errors.Invalid,
				"%s would be in the agent's environment, which its commands can read", key),
				"store it with \"harvest secret set anthropic %s=…\" and leave it out here: the server adds it to "+
					"the agent's requests", key)
		}
	}
	return nil
}
