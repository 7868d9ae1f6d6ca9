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
	"--workdir": "workdir", "--env": "env", "--volume": "volumes", "--tag": "tags", "--force": "force_build",
	"--image": "image", "--port": "encrypted_ports", "--build-arg": "build_args",
}

// dockerfile are flags of instructions of Dockerfiles, which mean the same at Modal.
var dockerfile = []string{"--chmod", "--chown", "--checksum", "--mount", "--link", "--exclude", "--from", "--network",
	"--security", "--device"}

// phrases are remedies of which alternatives alone make no sense.
var phrases = map[string]string{
	"name an image that \"harvest image ls\" lists, or one of a registry":     "name an image of a registry",
	"name an image that \"harvest image ls\" shows, or build it":              "name another image, or build it",
	"name an image that \"harvest image ls\" lists":                           "name an image of a registry",
	"list sandboxes, including ended ones, with \"harvest sandbox ls --all\"": "look for it with Sandbox.list",
}

var (
	flag        = pattern.New(`--[a-z][a-z-]*`)
	buildSecret = pattern.New(`--secret id=\S+`)
	// Users of Modal's SDKs may need these commands, too: they prepare the server and its objects.
	needed = pattern.New(`harvest (secret|key|doctor|config|up|down|modal|volume (cp|rm|create)|image (build|gc))\b`)
	other  = pattern.New(`\bharvest [a-z]`)
)

// Remedy returns a remedy without the flags and commands of Harvest. It leaves out the alternatives that mean nothing
// without them, and returns "" if nothing remains.
func Remedy(text string) string {
	return without(text, "; ", func(part string) string {
		if phrase, ok := phrases[part]; ok {
			return phrase
		}
		return without(part, ", or ", alternative)
	})
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
	if needed().MatchString(text) {
		return text
	}
	if other().MatchString(text) {
		return ""
	}
	text = buildSecret().ReplaceAllString(text, "secrets")
	known := true
	text = flag().ReplaceAllStringFunc(text, func(name string) string {
		if p, ok := parameters[name]; ok {
			return p
		}
		known = known && slices.Contains(dockerfile, name)
		return name
	})
	if !known {
		return ""
	}
	return text
}
