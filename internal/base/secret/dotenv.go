package secret

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/client/errors"
)

const maxFile = 2 << 20

// ParseEnv reads a .env file:
//
//	# a comment
//	export KEY=value            # "export" may stand there; after white space, # begins a comment
//	KEY='taken as it is'        # may go over several lines
//	KEY="with \n \t \" \\ \$"   # those escapes only; may go over several lines
//	KEY=
//
// Nothing is expanded: a '$' is a '$', since passwords have them. (That, and errors that quote the file, is why no
// library for .env files is used here.) The last of several equal keys counts. Invalid, with the line's number and none
// of its text.
func ParseEnv(r io.Reader) (Pairs, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	switch {
	case err != nil:
		return nil, errors.Wrapf(err, "read the variables")
	case len(data) > maxFile:
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "the file of variables has more than %d MiB",
			maxFile>>20), "keep large values in a volume")
	case !utf8.Valid(data) || strings.ContainsRune(string(data), 0):
		return nil, errors.Remedy(errors.Newf(errors.Invalid, "the file of variables is not text"),
			"give a text file in UTF-8 with one KEY=VALUE on each line")
	}
	e := envFile{rest: strings.TrimPrefix(strings.ReplaceAll(string(data), "\r\n", "\n"), "\ufeff"), line: 1}
	p := Pairs{}
	for e.rest != "" {
		key, value, problem := e.next()
		if problem != "" {
			return nil, errors.Remedy(errors.Newf(errors.Invalid, "line %d of the variables: %s", e.line, problem),
				"write one KEY=VALUE on each line")
		}
		if key != "" {
			p[key] = value
		}
	}
	return p, nil
}

type envFile struct {
	rest string
	line int // of rest's beginning
}

// next reads a line, or several where a quote goes on. key is "" for one without a pair.
func (e *envFile) next() (key, value, problem string) {
	line, _, _ := strings.Cut(e.rest, "\n")
	text := strings.TrimSpace(line)
	if text == "" || text[0] == '#' {
		e.skip(len(line))
		return "", "", ""
	}
	before, after, ok := strings.Cut(line, "=")
	if !ok {
		return "", "", "there is no '='"
	}
	key = strings.TrimSpace(before)
	if words := strings.Fields(key); len(words) == 2 && words[0] == "export" {
		key = words[1]
	}
	if !keyPattern().MatchString(key) {
		return "", "", "the text before '=' is not a name of an environment variable"
	}
	start := strings.TrimLeft(after, " \t")
	if start != "" && (start[0] == '\'' || start[0] == '"') {
		e.skip(len(line) - len(start))
		value, problem = e.quoted(start[0])
		return key, value, problem
	}
	e.skip(len(line))
	return key, plainValue(after), ""
}

// plainValue is a value without quotes: up to white space and '#'.
func plainValue(text string) string {
	for i := range len(text) {
		if text[i] == '#' && i > 0 && (text[i-1] == ' ' || text[i-1] == '\t') {
			text = text[:i]
			break
		}
	}
	return strings.TrimSpace(text)
}

// escapes are those inside double quotes.
var escapes = map[byte]byte{'n': '\n', 'r': '\r', 't': '\t', '"': '"', '\\': '\\', '$': '$'}

// quoted reads a value in quotes, and the rest of its line.
func (e *envFile) quoted(quote byte) (value, problem string) {
	var b strings.Builder
	for i := 1; i < len(e.rest); i++ {
		c := e.rest[i]
		if c == '\\' && quote == '"' && i+1 < len(e.rest) {
			if escaped, ok := escapes[e.rest[i+1]]; ok {
				b.WriteByte(escaped)
				i++
				continue
			}
		}
		if c != quote {
			b.WriteByte(c)
			continue
		}
		behind, _, _ := strings.Cut(e.rest[i+1:], "\n")
		if text := strings.TrimSpace(behind); text != "" && text[0] != '#' {
			return "", fmt.Sprintf("there is something behind the closing %c", quote)
		}
		e.skip(i + 1 + len(behind))
		return b.String(), ""
	}
	return "", fmt.Sprintf("the closing %c is missing", quote)
}

// skip goes n bytes on, and over the end of the line if that is next.
func (e *envFile) skip(n int) {
	if n < len(e.rest) && e.rest[n] == '\n' {
		n++
	}
	e.line += strings.Count(e.rest[:n], "\n")
	e.rest = e.rest[n:]
}
