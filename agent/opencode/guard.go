package opencode

import "encoding/json"

// Guarded implements agent.Guard: files cannot set the program's own variables.
func (Agent) Guarded() []string { return nil }

// Guard implements agent.Guard: OPENCODE_CONFIG_CONTENT, which Command sets, takes precedence over the files.
func (Agent) Guard(map[string]string) []byte { return nil }

// SettingsFiles implements agent.Guard.
func (Agent) SettingsFiles() []string {
	return []string{"opencode.json", "opencode.jsonc", ".opencode/opencode.json", ".opencode/opencode.jsonc"}
}

// Redirects implements agent.Guard.
func (Agent) Redirects(text []byte) (names []string) {
	var config struct {
		Provider map[string]struct{ Options map[string]any }
	}
	if json.Unmarshal(text, &config) != nil {
		return nil // it may contain comments; Harvest's settings take precedence anyway
	}
	for _, provider := range []string{"amazon-bedrock", "anthropic"} {
		for _, option := range []string{"apiKey", "baseURL"} {
			if _, ok := config.Provider[provider].Options[option]; ok {
				names = append(names, provider+"."+option)
			}
		}
	}
	return names
}
