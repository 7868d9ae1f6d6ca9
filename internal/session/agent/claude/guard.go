package claude

import (
	"encoding/json"
	"slices"
)

// guarded are the variables that determine the address of the program's model and its credentials. For these
// variables a project's settings take precedence over the program's environment; an empty variable counts as unset.
var guarded = []string{
	"ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS",
	"ANTHROPIC_UNIX_SOCKET", "CLAUDE_CODE_API_BASE_URL",
	"CLAUDE_CODE_OAUTH_TOKEN", "CLAUDE_CODE_USE_BEDROCK", "ANTHROPIC_BEDROCK_BASE_URL",
	"AWS_BEARER_TOKEN_BEDROCK", "AWS_REGION",
	"CLAUDE_CODE_USE_MANTLE", "ANTHROPIC_BEDROCK_MANTLE_BASE_URL", "CLAUDE_CODE_USE_VERTEX",
	"ANTHROPIC_VERTEX_BASE_URL",
	"CLAUDE_CODE_USE_FOUNDRY", "ANTHROPIC_FOUNDRY_BASE_URL", "ANTHROPIC_FOUNDRY_API_KEY",
	"ANTHROPIC_FOUNDRY_AUTH_TOKEN",
	"CLAUDE_CODE_USE_ANTHROPIC_AWS", "ANTHROPIC_AWS_BASE_URL", "ANTHROPIC_AWS_API_KEY",
	"CLAUDE_CODE_USE_ANTHROPIC_GOOGLE_CLOUD", "ANTHROPIC_GOOGLE_CLOUD_BASE_URL",
	"CLAUDE_CODE_USE_GATEWAY", "CLAUDE_CODE_GATEWAY_TOKEN", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy",
	"https_proxy", "no_proxy",
}

// helpers are settings for commands that print credentials.
var helpers = []string{"apiKeyHelper", "awsAuthRefresh", "awsCredentialExport", "gcpAuthRefresh"}

// Guarded implements agent.Guard.
func (Agent) Guarded() []string { return guarded }

// Guard implements agent.Guard.
func (Agent) Guard(env map[string]string) []byte {
	settings := map[string]any{"env": env}
	for _, name := range helpers {
		settings[name] = ""
	}
	text, err := json.Marshal(settings)
	if err != nil { // unexpected: only strings
		return nil
	}
	return text
}

// SettingsFiles implements agent.Guard.
func (Agent) SettingsFiles() []string {
	return []string{".claude/settings.json", ".claude/settings.local.json"}
}

// Redirects implements agent.Guard.
func (Agent) Redirects(text []byte) (names []string) {
	var settings map[string]json.RawMessage
	if json.Unmarshal(text, &settings) != nil {
		return nil
	}
	var env map[string]any
	if json.Unmarshal(settings["env"], &env) != nil {
		env = nil
	}
	for name := range env {
		if slices.Contains(guarded, name) {
			names = append(names, name)
		}
	}
	for _, name := range helpers {
		if _, ok := settings[name]; ok {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
