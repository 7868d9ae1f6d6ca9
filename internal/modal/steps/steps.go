// Package steps adapts the commands of image builds, as SDKs send them, to the rules of Dockerfiles.
package steps

import (
	"bytes"
	"encoding/json"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

var (
	environment = pattern.New(`(?i)^\s*ENV\s`)
	list        = pattern.New(`(?i)^(\s*(?:ENTRYPOINT|CMD|SHELL)\s+)\["(.*)"\]\s*$`)
	heredoc     = pattern.New(`<<-?["']?([A-Za-z_][A-Za-z0-9_]*)["']?`)
)

// Adapt returns commands that mean in Dockerfiles what clients of Modal mean:
//   - Single quotes of ENV become double quotes. SDKs put the values of an image's environment in the shell's single
//     quotes, and Modal expands variables in them; in Dockerfiles they are literal.
//   - Lists of ENTRYPOINT, CMD and SHELL become JSON. Python's SDK puts quotes around the arguments, without escaping
//     quotes and backslashes in them, and Dockerfiles take a list that is not JSON for a command of the shell.
//
// The commands are otherwise unchanged: RUN, WORKDIR and COPY mean the same.
func Adapt(commands []string) []string {
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
		} else if m := list().FindStringSubmatch(line); m != nil && !continued {
			made[i] = m[1] + array(m[2])
		} else if m := heredoc().FindStringSubmatch(line); m != nil && !strings.Contains(line, "\n") {
			until = m[1]
		}
		continued = strings.HasSuffix(strings.TrimRight(line, " \t"), `\`)
	}
	return made
}

// array returns a list of arguments as JSON. text is the list without its brackets and its first and last quote.
func array(text string) string {
	if all := `["` + text + `"]`; json.Valid([]byte(all)) {
		return all
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(strings.Split(text, `", "`)) // strings can always be encoded
	return strings.TrimSpace(b.String())
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
