package model

import (
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/config"
)

// Kind is the form in which a credential is sent to a model's API.
type Kind string

// The kinds.
const (
	APIKey     Kind = "api_key" // header X-Api-Key of Anthropic's API
	Bearer     Kind = "bearer"  // header Authorization, for a gateway of the user
	OAuth      Kind = "oauth"   // same header, for a subscription: `claude setup-token`
	BedrockKey Kind = "bedrock" // same header, for Amazon Bedrock

	OpenAIKey     Kind = "openai"     // same header, for OpenAI or a compatible API
	OpenRouterKey Kind = "openrouter" // same header, for OpenRouter
	ChatGPTLogin  Kind = "chatgpt"    // same header, with the account in another: `harvest login codex`
	GeminiKey     Kind = "gemini"     // header X-Goog-Api-Key
)

// Credential authenticates at the provider of a model. The zero Credential means that there is
// none.
type Credential struct {
	Kind   Kind
	Value  config.Secret
	Region string // of Bedrock
	Owner  string // account of a ChatGPTLogin
	Base   string // base URL of the API that the account has chosen; "" means the provider's or the operator's
}

// source is an environment variable with a credential.
type source struct {
	key      string
	kind     Kind
	provider Provider
	base     string // variable with the base URL; "" means none
}

// sources are in order of precedence.
var sources = []source{
	{"ANTHROPIC_API_KEY", APIKey, Anthropic, ""},
	{"ANTHROPIC_AUTH_TOKEN", Bearer, Anthropic, ""},
	{"CLAUDE_CODE_OAUTH_TOKEN", OAuth, Anthropic, ""},
	{"AWS_BEARER_TOKEN_BEDROCK", BedrockKey, Bedrock, ""},
	{"AWS_BEDROCK_API_KEY", BedrockKey, Bedrock, ""},
	{"OPENAI_API_KEY", OpenAIKey, OpenAI, "OPENAI_BASE_URL"},
	{"CHATGPT_ACCESS_TOKEN", ChatGPTLogin, ChatGPT, ""},
	{"OPENROUTER_API_KEY", OpenRouterKey, OpenRouter, "OPENROUTER_BASE_URL"},
	{"GEMINI_API_KEY", GeminiKey, Gemini, "GOOGLE_GEMINI_BASE_URL"},
	{"GOOGLE_API_KEY", GeminiKey, Gemini, "GOOGLE_GEMINI_BASE_URL"},
}

// Default returns the kind of credentials that a provider prefers.
func Default(p Provider) Kind {
	for _, s := range sources {
		if s.provider == p {
			return s.kind
		}
	}
	return ""
}

// Provider returns the provider that accepts the credential; "" for the zero Credential.
func (c Credential) Provider() Provider {
	for _, s := range sources {
		if s.kind == c.Kind {
			return s.provider
		}
	}
	return ""
}

// defaultRegion is the region of Bedrock if none is set.
const defaultRegion = "us-east-1"

// Keys returns the names of the environment variables with credentials for these providers, in
// order of precedence.
func Keys(providers ...Provider) []string {
	var all []string
	for _, s := range sources {
		if slices.Contains(providers, s.provider) {
			all = append(all, s.key)
		}
	}
	return all
}

// Find returns the credential for one of the providers in environment variables. ok is false if
// there is none.
func Find(env map[string]string, providers ...Provider) (c Credential, ok bool) {
	for _, s := range sources {
		value := env[s.key]
		if value == "" || !slices.Contains(providers, s.provider) {
			continue
		}
		c = Credential{Kind: s.kind, Value: config.Secret(value)}
		if s.base != "" {
			c.Base = strings.TrimSuffix(env[s.base], "/")
		}
		if c.Kind == BedrockKey {
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
