package agent

import (
	"strings"
	"unicode"
)

// Command is a command of an agent.
type Command struct {
	Name        string `json:"name"` // without the slash
	Description string `json:"description,omitempty"`
	Hint        string `json:"hint,omitempty"` // of what follows the name
}

// Limits of a list of commands, in entries and bytes.
const (
	maxCommands = 300
	maxBrief    = 200
)

// Offer returns the list in the form in which it is shown: usable names, and the first line of each text, since agents
// describe their skills to models in paragraphs.
func Offer(all []Command) (list []Command) {
	for _, c := range all {
		c = Command{strings.TrimPrefix(c.Name, "/"), brief(c.Description), brief(c.Hint)}
		if c.Name == "" || len(c.Name) > maxBrief || strings.ContainsFunc(c.Name, unicode.IsControl) {
			continue
		}
		if list = append(list, c); len(list) == maxCommands {
			break
		}
	}
	return list
}

func brief(text string) string {
	text, _, _ = strings.Cut(strings.TrimSpace(text), "\n")
	if len(text) > maxBrief {
		text = strings.ToValidUTF8(text[:maxBrief], "") + "…"
	}
	return text
}

// IsCommand reports whether a prompt looks like a command of an agent: agents recognize one only at the beginning of
// what they get.
func IsCommand(prompt string) bool {
	name, _, _ := strings.Cut(prompt, " ")
	return len(name) > 1 && name[0] == '/' && !strings.ContainsAny(name[1:], "/\n")
}
