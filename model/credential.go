package model

import (
	"github.com/RelevanceAI/harvest/config"
)

// Kind says how a credential is shown to a model's API.
type Kind string

// The kinds.
const (
	APIKey  Kind = "api_key" // header X-Api-Key
	Bearer  Kind = "bearer"  // header Authorization, of a gateway of the user's own
	OAuth   Kind = "oauth"   // the same, of a subscription: `claude setup-token`
	Bedrock Kind = "bedrock" // the same, at Amazon Bedrock
)

// Credential is what the provider of a model lets its holder in with. The zero Credential is none.
type Credential struct {
	Kind   Kind
	Value  config.Secret
	Region string // of Bedrock
}

// sources are the environment variables that hold credentials; the first that is set counts.
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

// defaultRegion is Bedrock's where nothing says otherwise.
const defaultRegion = "us-east-1"

// Keys returns the names of the environment variables that hold credentials, the most wanted first.
func Keys() []string {
	var all []string
	for _, s := range sources {
		all = append(all, s.key)
	}
	return all
}

// Find returns the credential among environment variables; ok is false if there is none.
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
