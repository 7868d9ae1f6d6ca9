package binding

import (
	"maps"
	"slices"

	"github.com/RelevanceAI/harvest/client/errors"
)

// preset is a binding of a known service, with the variables that its credentials usually have.
type preset struct {
	keys   []string
	places []string // a host, and the way to inject after a space
}

// presets are known services. Sources: the documentation of their APIs.
var presets = map[string]preset{
	"anthropic": {[]string{"ANTHROPIC_API_KEY"}, []string{"api.anthropic.com header X-Api-Key"}},
	// Those of logins. Claude Code and Codex use more hosts than these, without the token.
	"claude": {[]string{"CLAUDE_CODE_OAUTH_TOKEN"}, []string{"api.anthropic.com bearer", "platform.claude.com"}},
	"codex":  {[]string{"CHATGPT_ACCESS_TOKEN"}, []string{"chatgpt.com bearer", "api.openai.com"}},
	"gemini-login": {[]string{"GOOGLE_CLOUD_ACCESS_TOKEN"}, []string{"cloudcode-pa.googleapis.com bearer",
		"generativelanguage.googleapis.com", "www.googleapis.com", "oauth2.googleapis.com"}},
	"aws": {[]string{"AWS_ACCESS_KEY_ID"}, []string{"*.amazonaws.com sigv4", "*.amazonaws.com.cn sigv4",
		"*.api.aws sigv4"}},
	"gcp": {[]string{"CLOUDSDK_AUTH_ACCESS_TOKEN"}, []string{"*.googleapis.com bearer"}},
	"gemini": {[]string{"GEMINI_API_KEY", "GOOGLE_API_KEY"},
		[]string{"generativelanguage.googleapis.com header X-Goog-Api-Key"}},
	// Git sends the token as a password. The hosts of user content serve files of private repositories, and are where
	// the API redirects.
	"github": {[]string{"GITHUB_TOKEN", "GH_TOKEN"}, []string{"github.com basic x-access-token",
		"api.github.com bearer", "uploads.github.com bearer", "lfs.github.com", "raw.githubusercontent.com bearer",
		"*.githubusercontent.com", "npm.pkg.github.com bearer", "ghcr.io basic x-access-token"}},
	"gitlab":      {[]string{"GITLAB_TOKEN"}, []string{"gitlab.com basic oauth2", "registry.gitlab.com"}},
	"huggingface": {[]string{"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}, []string{"huggingface.co bearer"}},
	"linear":      {[]string{"LINEAR_API_KEY"}, []string{"api.linear.app", "mcp.linear.app bearer"}},
	"npm":         {[]string{"NPM_TOKEN", "NODE_AUTH_TOKEN"}, []string{"*.npmjs.org bearer"}},
	"openai":      {[]string{"OPENAI_API_KEY"}, []string{"api.openai.com bearer"}},
	"openrouter":  {[]string{"OPENROUTER_API_KEY"}, []string{"openrouter.ai bearer"}},
	"sentry":      {[]string{"SENTRY_AUTH_TOKEN"}, []string{"sentry.io bearer", "*.sentry.io bearer"}},
	"pypi":        {[]string{"PYPI_TOKEN", "TWINE_PASSWORD"}, []string{"upload.pypi.org basic __token__"}},
	"dockerhub":   {[]string{"DOCKERHUB_TOKEN"}, []string{"auth.docker.io", "registry-1.docker.io", "hub.docker.com"}},
}

// Of returns the binding of the service whose variables have these names. ok is false if a name is of none.
func Of(keys []string) (b Binding, ok bool) {
	for _, name := range Presets() {
		known := presets[name].keys
		if len(keys) > 0 && !slices.ContainsFunc(keys, func(k string) bool { return !slices.Contains(known, k) }) {
			b, err := Preset(name)
			return b, err == nil
		}
	}
	return Binding{}, false
}

// Presets returns the names of the services with a known binding.
func Presets() []string { return slices.Sorted(maps.Keys(presets)) }

// Preset returns the binding of a known service. Invalid: the service is not known.
func Preset(name string) (Binding, error) {
	p, ok := presets[name]
	if !ok {
		return Binding{}, errors.Remedy(errors.Newf(errors.Invalid, "there is no preset %.80q", name),
			"name the hosts, or use one of %v", Presets())
	}
	var b Binding
	for _, text := range p.places {
		place, err := parsePlace(text)
		if err != nil {
			return Binding{}, err
		}
		b.Places = append(b.Places, place)
	}
	return b, nil
}
