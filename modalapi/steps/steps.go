// Package steps adapts the commands of image builds, as SDKs send them, to the rules of Dockerfiles.
package steps

import (
	"strings"

	"github.com/RelevanceAI/harvest/internal/pattern"
)

var (
	environment = pattern.New(`(?i)^\s*ENV\s`)
	heredoc     = pattern.New(`<<-?["']?([A-Za-z_][A-Za-z0-9_]*)["']?`)
)

// Expanding returns commands in which single quotes of ENV are double quotes. SDKs put the values of an image's
// environment in the shell's single quotes, and Modal expands variables in them; in Dockerfiles they are literal.
func Expanding(commands []string) []string {
	made := make([]string, len(commands))
	inside, continued, until := false, false, ""
	for i, line := range commands {
		made[i] = line
		if until != "" { // text of a heredoc
			if strings.TrimLeft(line, "\t") == until {
				until = ""
			}
			continue
		}
		if !continued {
			inside = environment().MatchString(line)
		}
		if inside {
			made[i] = double(line)
		} else if m := heredoc().FindStringSubmatch(line); m != nil && !strings.Contains(line, "\n") {
			until = m[1]
		}
		continued = strings.HasSuffix(strings.TrimRight(line, " \t"), `\`)
	}
	return made
}

// double replaces the single quotes around text with double quotes, and keeps all other characters of the text.
func double(line string) string {
	var b strings.Builder
	quote := rune(0)
	escaped := false
	for _, r := range line {
		switch {
		case escaped:
			escaped = false
			b.WriteRune(r)
		case quote == '\'' && r == '\'', quote == 0 && r == '\'':
			quote ^= '\''
			b.WriteByte('"')
		case quote == '\'':
			if r == '"' || r == '\\' {
				b.WriteByte('\\')
			}
			b.WriteRune(r)
		default:
			if r == '"' {
				quote ^= '"'
			}
			escaped = r == '\\'
			b.WriteRune(r)
		}
	}
	return b.String()
}
