package web_test

import (
	"bytes"
	"html"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// hole stands for the value of an expression in a text.
const hole = "…"

// script finds the strings in a module's source.
type script struct {
	source string
	found  []literal
}

// literal is a string in the source, or a property name that is not quoted.
type literal struct {
	at   int
	text string
}

// code reads code from offset i up to the brace that closes it, or up to the end, and returns the offset behind it.
func (s *script) code(i int) int {
	previous := byte('{') // the last byte that is not a space
	for i < len(s.source) && s.source[i] != '}' {
		c, rest := s.source[i], s.source[i:]
		switch {
		case strings.HasPrefix(rest, "//"):
			i += strings.IndexByte(rest+"\n", '\n')
			continue
		case strings.HasPrefix(rest, "/*"):
			i += strings.Index(rest, "*/") + len("*/")
			continue
		case c == '/' && strings.IndexByte("(,=:[!&|?{};+>", previous) >= 0:
			i += len(expression.FindString(rest))
		case c == '\'' || c == '"' || c == '`':
			i = s.quoted(i)
		case c == '{':
			i = s.code(i + 1)
		default:
			if m := property.FindStringSubmatch(rest); m != nil && strings.IndexByte("{,", previous) >= 0 {
				s.found = append(s.found, literal{i, m[1]})
			}
			i++
		}
		if c != ' ' && c != '\n' {
			previous = c
		}
	}
	return i + 1
}

var (
	expression = regexp.MustCompile(`^/(?:\\.|\[(?:\\.|[^\]\\])*\]|[^/\\\[\n])+/[a-z]*`)
	property   = regexp.MustCompile(`^([A-Z][a-z]+): `)
)

// quoted reads the string that begins at offset i, and returns the offset behind it.
func (s *script) quoted(i int) int {
	quote, at := s.source[i], len(s.found)
	s.found = append(s.found, literal{at: i})
	var text strings.Builder
	for i++; s.source[i] != quote; i++ {
		switch {
		case s.source[i] == '\\':
			i++
			if s.source[i] == 'n' {
				text.WriteByte(' ')
			} else {
				text.WriteByte(s.source[i])
			}
		case quote == '`' && strings.HasPrefix(s.source[i:], "${"):
			i = s.code(i+2) - 1
			text.WriteString(hole)
		default:
			text.WriteByte(s.source[i])
		}
	}
	s.found[at].text = text.String()
	return i + 1
}

var (
	// unseen ends the code before a string that people do not see.
	unseen = regexp.MustCompile(`(?:\b(?:class|role|type|href|rel|id|autocomplete|cursor\w*|fontFamily): |` +
		`'(?:data|aria)-[a-km-z][a-z]*': |(?:\b(?:import|call|all|keep|kept|socket|follow|url|matchMedia|closest|` +
		`matches|querySelector|querySelectorAll|addEventListener|removeEventListener|indexOf|startsWith)\(|\bfrom ))$`)
	// seen ends the code before a string that people see.
	seen = regexp.MustCompile(`(?:\b(?:placeholder|title|alt|what|remedy|detail): |'aria-label': |` +
		`\b(?:textContent|title|placeholder) = | [?:] |\bbutton\(|\bfield\(|h\('\w+', null, )$`)
	// sentence matches a string that is a text by its form.
	sentence = regexp.MustCompile(`^[^\s]*[A-Z]|\s`)
	// identifier matches ids, paths and the empty string.
	identifier = regexp.MustCompile(`^(?:[a-z]+-[a-z]+|v1/\S*|)$`)
)

// texts returns the texts of a module that people see.
func texts(source string) (found []string) {
	s := script{source: source}
	for i := 0; i < len(source); {
		i = s.code(i)
	}
	for _, l := range s.found {
		before := source[max(0, l.at-60):l.at]
		if !unseen.MatchString(before) && !identifier.MatchString(l.text) &&
			(sentence.MatchString(l.text) || seen.MatchString(before)) {
			found = append(found, l.text)
		}
	}
	return found
}

// TestTextsAreFound checks texts.
func TestTextsAreFound(t *testing.T) {
	t.Parallel()
	for source, want := range map[string]string{
		"f('A text'); // 'No text'\ng(\"it's one\") /* 'No text' */":         "A text|it's one",
		"h('p', { class: 'row wide' }, `Of ${n === 1 ? 'a file' : ''} now`)": "Of … now|a file",
		"x = a / b; y = /'[/']/.test(c); f('a text')":                        "a text",
		"f(call('A b'), keep('a b', { placeholder: 'none' }), g('none'))":    "none",
		"f({ State: a, b: 'repo' }); el.textContent = 'done'":                "State|done",
		"f('it\\'s `one`'); g(`${h(`in ${1}`)} it`)":                         "it's `one`|… it|in …",
	} {
		if got := strings.Join(texts(source), "|"); got != want {
			t.Errorf("%s has the texts %s, want %s", source, got, want)
		}
	}
}

// pageTexts returns the texts of the page that people see, by file.
func pageTexts(t *testing.T) map[string][]string {
	t.Helper()
	names, err := filepath.Glob("*.*")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	tag := regexp.MustCompile(`<(?:!--[\s\S]*?--|[^>]*)>`)
	for _, name := range names {
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		switch filepath.Ext(name) {
		case ".js":
			all[name] = texts(string(data))
		case ".html":
			for line := range strings.Lines(tag.ReplaceAllString(string(data), "\n")) {
				if line = strings.TrimSpace(line); line != "" {
					all[name] = append(all[name], html.UnescapeString(line))
				}
			}
		}
	}
	return all
}

// word matches a word or its plural.
func word(text string) *regexp.Regexp {
	return regexp.MustCompile(`(?i)\b` + strings.ReplaceAll(regexp.QuoteMeta(text), " ", `\s+`) + `(?:s|es)?\b`)
}

// TestWords checks that the page names each thing by one word, as the table of docs/ui.md has them.
// mission: F2
func TestWords(t *testing.T) {
	t.Parallel()
	doc, err := os.ReadFile("../docs/ui.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := bytes.Cut(doc, []byte("\n| word | meaning | words not used |\n"))
	if !found {
		t.Fatal("docs/ui.md has no table of words")
	}
	all := pageTexts(t)
	used := strings.Join(slices.Concat(slices.Collect(maps.Values(all))...), "\n")
	words, others := map[string]bool{}, map[string]string{} // the word to use instead, by the other word
	for line := range strings.Lines(string(table)) {
		cells := strings.Split(strings.Trim(line, "| \n"), " | ")
		if strings.HasPrefix(line, "|---") {
			continue
		} else if len(cells) != 3 {
			break
		}
		if words[cells[0]] || !word(cells[0]).MatchString(used) {
			t.Errorf("the table has the word %q twice, or the page does not use it", cells[0])
		}
		words[cells[0]] = true
		for _, other := range strings.Split(cells[2], ", ") {
			if other != "–" {
				others[other] = cells[0]
			}
		}
	}
	if len(words) < 30 {
		t.Fatalf("the table has %d words", len(words))
	}
	for other, instead := range others {
		if words[other] {
			t.Errorf("the table has %q as a word, and as one not used for %q", other, instead)
		}
		bad := word(other)
		for name, found := range all {
			for _, text := range found {
				if bad.MatchString(text) {
					t.Errorf("%s: %q has the word %q, and %q is the word for it", name, text, other, instead)
				}
			}
		}
	}
}
