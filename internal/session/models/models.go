// Package models connects agents in sandboxes with their models, through the server's gateway or directly, and keeps
// settings of repositories from redirecting them.
package models

import (
	"context"
	"slices"

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

// providers returns the providers whose APIs an agent speaks.
func providers(a agent.Agent) []model.Provider {
	speaker, ok := a.(agent.Speaker)
	if !ok {
		return native
	}
	var all []model.Provider
	for _, p := range speaker.Speaks() {
		all = append(all, model.Provider(p).With()...)
	}
	return all
}

// native are the providers of agents that are not an agent.Speaker.
var native = []model.Provider{model.Anthropic, model.Bedrock}

// keys returns the secret keys that the sandboxes of an agent do not receive: those of its models, and those of the
// native providers.
func keys(a agent.Agent) []string {
	return model.Keys(append(slices.Clone(native), providers(a)...)...)
}

// Withheld returns the secret keys that sandboxes of sessions with the agent do not receive.
func (c Connector) Withheld(a agent.Agent) []string {
	if c.Gateway == nil {
		return nil
	}
	return keys(a) // without a tunnel, only the agent's process receives its credential
}

// Access returns the address and credential with which a program in a sandbox reaches its model. id identifies the
// owner of the token; secrets are the names of secrets that are searched first.
func (c Connector) Access(ctx context.Context, program agent.Agent, account, id string,
	secrets []string) (*agent.Access, error) {
	if c.Gateway == nil {
		return nil, nil
	}
	found, err := c.Credential(ctx, program, account, secrets)
	if err != nil {
		return nil, err
	}
	if c.tunneled() {
		if found.Kind == "" { // the gateway reports the missing credential
			found.Kind = model.Default(providers(program)[0])
		}
		a := &agent.Access{Kind: agent.AccessKind(found.Kind), URL: tunnel.URL() + found.Provider().Path(),
			Token: c.Gateway.Token(id), Region: found.Region}
		if found.Kind == model.ChatGPTLogin {
			a.Kind = agent.AccessOpenAI
		}
		return a, nil
	}
	if found.Value == "" || found.Kind == model.ChatGPTLogin { // which needs the file of the login
		return nil, nil
	}
	a := &agent.Access{Kind: agent.AccessKind(found.Kind), Token: found.Value.Reveal(), Region: found.Region}
	a.URL, err = c.Gateway.Custom(found)
	return a, err
}

// Credential returns the credential for the models of an agent; the zero Credential means that there is none.
func (c Connector) Credential(ctx context.Context, program agent.Agent, account string,
	secrets []string) (model.Credential, error) {
	return c.Gateway.Credential(ctx, account, secrets, providers(program)...)
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
	for _, key := range keys(a) {
		if env[key] != "" {
			return errors.Remedy(errors.Newf(errors.Invalid,
				"%s would be in the agent's environment, which its commands can read", key),
				"store it with \"harvest secret set anthropic %s=…\" and leave it out here: the server adds it to "+
					"the agent's requests", key)
		}
	}
	return nil
}
