package model

import (
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// Kind is the form in which a credential is sent to a model's API.
type Kind string

// The kinds.
const (
	APIKey  Kind = "api_key" // header X-Api-Key
	Bearer  Kind = "bearer"  // header Authorization, for a gateway of the user
	OAuth   Kind = "oauth"   // same header, for a subscription: `claude setup-token`
	Bedrock Kind = "bedrock" // same header, for Amazon Bedrock
)

// Credential authenticates at the provider of a model. The zero Credential means that there is
// none.
type Credential struct {
	Kind   Kind
	Value  config.Secret
	Region string // of Bedrock
}

// sources are the environment variables with credentials, in order of precedence.
var sources = []struct {
	key  string
	kind Kind
}{
	{"ANTHROPIC_API_KEY", APIKey},
	{"ANTHROPIC_AUTH_TOKEN", Bearer},
	{"CLAUDE_CODE_OAUTH_TOKEN", OAuth},
	{"AWS_BEARER_TOKEN_BEDROCK", Bedrock},
	{"AWS_BEDROCK_API_KEY", Bedrock},
}

// defaultRegion is the region of Bedrock if none is set.
const defaultRegion = "us-east-1"

// Keys returns the names of the environment variables with credentials, in order of precedence.
func Keys() []string {
	var all []string
	for _, s := range sources {
		all = append(all, s.key)
	}
	return all
}

// Find returns the credential in environment variables; ok is false without one.
func Find(env map[string]string) (c Credential, ok bool) {
	for _, s := range sources {
		value := env[s.key]
		if value == "" {
			continue
		}
		c = Credential{Kind: s.kind, Value: config.Secret(value)}
		if c.Kind == Bedrock {
			c.Region = defaultRegion
			for _, key := range []string{"AWS_DEFAULT_REGION", "AWS_REGION"} {
				if env[key] != "" {
					c.Region = env[key]
				}
			}
		}
		return c, true
	}
	return Credential{}, false
}
