package opencode

import (
	"encoding/json"
	"slices"
	"strings"
)

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
		Model      string
		SmallModel string   `json:"small_model"`
		Enabled    []string `json:"enabled_providers"`
		Disabled   []string `json:"disabled_providers"`
		Agent      map[string]struct{ Model string }
		Mode       map[string]struct{ Model string }
		Provider   map[string]struct {
			NPM     string
			Options map[string]any
		}
	}
	if json.Unmarshal(text, &config) != nil {
		return nil // it may contain comments; Harvest's settings take precedence anyway
	}
	foreign := func(model, name string) {
		if provider, _, ok := strings.Cut(model, "/"); ok && packages[provider] == "" {
			names = append(names, name)
		}
	}
	foreign(config.Model, "model")
	foreign(config.SmallModel, "small_model")
	for name, a := range config.Agent {
		foreign(a.Model, "agent."+name+".model")
	}
	for name, a := range config.Mode {
		foreign(a.Model, "mode."+name+".model")
	}
	for name, set := range map[string]bool{"enabled_providers": config.Enabled != nil,
		"disabled_providers": config.Disabled != nil} {
		if set {
			names = append(names, name)
		}
	}
	for provider, p := range config.Provider {
		if packages[provider] == "" {
			names = append(names, "provider."+provider)
			continue
		}
		if p.NPM != "" && p.NPM != packages[provider] {
			names = append(names, provider+".npm")
		}
		for _, option := range []string{"apiKey", "baseURL"} {
			if _, ok := p.Options[option]; ok {
				names = append(names, provider+"."+option)
			}
		}
	}
	slices.Sort(names)
	return names
}
