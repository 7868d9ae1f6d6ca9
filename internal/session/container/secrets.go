package container

import (
	"maps"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/devcontainer"
)

const (
	// mostSecrets limits the recommended secrets of a description, and mostAbout the texts about each, in characters:
	// they are in a line of a Dockerfile.
	mostSecrets = 20
	mostAbout   = 200
)

// shortened returns the first secrets of a description, with texts of limited length.
func shortened(all map[string]devcontainer.Secret) map[string]devcontainer.Secret {
	out := map[string]devcontainer.Secret{}
	names := slices.Sorted(maps.Keys(all))
	for _, name := range names[:min(len(names), mostSecrets)] {
		s := all[name]
		s.Description, s.DocumentationURL = oneLine(s.Description), oneLine(s.DocumentationURL)
		out[name] = s
	}
	return out
}

// Lacking returns a sentence for each secret that the dev container recommends, and that a sandbox lacks: with this
// environment, and the secrets of these names out of those that the account owns.
func (e *Environment) Lacking(env map[string]string, owned []secret.Secret, passed []string) []string {
	all := maps.Clone(e.env)
	maps.Copy(all, env)
	return e.lacking(all, owned, passed)
}

func (p place) lacking(env map[string]string, owned []secret.Secret, passed []string) (all []string) {
	named := map[string]bool{}
	for _, s := range owned {
		named[s.Name] = true
	}
	if slices.ContainsFunc(passed, func(name string) bool { return !named[name] }) {
		return nil // secrets of the engine's provider may have the variables
	}
	for _, name := range slices.Sorted(maps.Keys(p.Secrets)) {
		with := slices.DeleteFunc(slices.Clone(owned), func(s secret.Secret) bool {
			return !slices.Contains(s.Keys, name)
		})
		if env[name] != "" || slices.ContainsFunc(with, func(s secret.Secret) bool {
			return slices.Contains(passed, s.Name)
		}) {
			continue
		}
		text := p.Config + " recommends the secret " + name
		if about := oneLine(p.Secrets[name].Description); about != "" {
			text += " (" + about + ")"
		}
		if url := oneLine(p.Secrets[name].DocumentationURL); url != "" {
			text += ", see " + url
		}
		if len(with) > 0 {
			text += ": --secret " + with[0].Name + " passes it"
		} else {
			text += ": store it with harvest secret set, and pass it with --secret"
		}
		all = append(all, text)
	}
	return all
}

// oneLine returns a text of a description on one line, which may be shortened.
func oneLine(text string) string {
	line := []rune(strings.Join(strings.Fields(text), " "))
	if len(line) > mostAbout {
		line = append(line[:mostAbout], '…')
	}
	return string(line)
}
