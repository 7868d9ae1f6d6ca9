// Package words puts remedies into the words of Modal's SDKs: their users know neither the flags nor the commands of
// Harvest.
package words

import (
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// parameters are the parameters of Modal's SDKs that mean the same as flags of Harvest.
var parameters = map[string]string{
	"--cpu": "cpu", "--memory": "memory", "--timeout": "timeout", "--idle-timeout": "idle_timeout", "--name": "name",
	"--workdir": "workdir", "--env": "env", "--secret": "secrets", "--volume": "volumes", "--tag": "tags",
	"--force": "force_build", "--image": "image", "--port": "encrypted_ports",
}

// commands are the commands that users of Modal's SDKs need, too: they prepare the server.
var commands = []string{"harvest secret set", "harvest modal env", "harvest doctor", "harvest config", "harvest up",
	"harvest image build", "harvest volume create"}

// phrases are remedies of which alternatives alone make no sense.
var phrases = map[string]string{
	"name an image that \"harvest image ls\" lists, or one of a registry":     "name an image of a registry",
	"list sandboxes, including ended ones, with \"harvest sandbox ls --all\"": "look for it with Sandbox.list",
}

var (
	flag    = pattern.New(`--[a-z][a-z-]*`)
	command = pattern.New(`harvest [a-z]+( [a-z]+)?`)
)

// Remedy returns a remedy without the flags and commands of Harvest. It leaves out the alternatives that mean nothing
// without them, and returns "" if nothing remains.
func Remedy(text string) string {
	if phrase, ok := phrases[text]; ok {
		return phrase
	}
	return without(text, "; ", func(part string) string { return without(part, ", or ", alternative) })
}

// without joins the parts of a text again, without those for which f returns "".
func without(text, separator string, f func(part string) string) string {
	var kept []string
	for part := range strings.SplitSeq(text, separator) {
		if part = f(part); part != "" {
			kept = append(kept, part)
		}
	}
	return strings.Join(kept, separator)
}

// alternative returns a part of a remedy with the parameters of Modal's SDKs, "" if they have none for it.
func alternative(text string) string {
	text = flag().ReplaceAllStringFunc(text, func(name string) string {
		if p, ok := parameters[name]; ok {
			return p
		}
		return name
	})
	if flag().MatchString(text) {
		return ""
	}
	for _, found := range command().FindAllString(text, -1) {
		if !slices.ContainsFunc(commands, func(c string) bool { return strings.HasPrefix(found, c) }) {
			return ""
		}
	}
	return text
}
