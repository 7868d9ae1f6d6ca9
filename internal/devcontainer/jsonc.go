package devcontainer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/RelevanceAI/harvest/client/errors"
)

// MaxBytes is the size limit for a devcontainer.json, a devcontainer-feature.json and the metadata of an image.
const MaxBytes = 1 << 20

const maxDepth = 100 // objects and arrays in one another

// document is a JSON text with comments.
type document struct {
	name  string
	text  []byte // for positions in errors
	root  hujson.Value
	notes []Note // found by check
}

// parse parses a text and refuses those that are too large or too deep. name is for errors.
func parse(name string, text []byte) (*document, error) {
	text = bytes.TrimPrefix(text, []byte("\ufeff"))
	if len(text) > MaxBytes {
		err := errors.Newf(errors.Exhausted, "%s: has more than %d bytes", name, MaxBytes)
		return nil, errors.Remedy(err, "make it smaller")
	}
	text = append(bytes.Clone(text), '\n') // which must end a comment in the last line
	d := &document{name: name, text: text}
	if at := tooDeep(text); at >= 0 {
		return nil, d.fail(at, "simplify it", "more than %d objects and arrays in one another", maxDepth)
	}
	root, err := hujson.Parse(bytes.Clone(text))
	if err != nil {
		said := strings.TrimPrefix(err.Error(), "hujson: ")
		err := errors.Newf(errors.Invalid, "%s: %.300s", name, said)
		return nil, errors.Remedy(err, "correct the syntax: it must be JSON, with comments and trailing commas allowed")
	}
	root.Standardize()
	d.root = root
	return d, nil
}

// fail returns an error about the byte at an offset.
func (d *document) fail(offset int, remedy, format string, args ...any) error {
	before := d.text[:offset]
	line, column := 1+bytes.Count(before, []byte("\n")), offset-bytes.LastIndexByte(before, '\n')
	problem := fmt.Sprintf(format, args...)
	err := errors.Newf(errors.Invalid, "%s: line %d, column %d: %s", d.name, line, column, problem)
	return errors.Remedy(err, "%s", remedy)
}

// tooDeep returns the offset of the first object or array that is nested too deep, or -1. The parser is recursive.
func tooDeep(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case c == '/' && bytes.HasPrefix(text[i:], []byte("//")):
			i += indexOr(text[i:], "\n")
		case c == '/' && bytes.HasPrefix(text[i:], []byte("/*")):
			i += 2 + indexOr(text[i+2:], "*/")
		case c == '{' || c == '[':
			if depth++; depth > maxDepth {
				return i
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return -1
}

// indexOr returns the index of mark in text, or the length of text.
func indexOr(text []byte, mark string) int {
	if i := bytes.Index(text, []byte(mark)); i >= 0 {
		return i
	}
	return len(text)
}

// decode decodes a checked value.
func decode(v hujson.Value, into any) error {
	v = v.Clone()
	v.Minimize()
	return errors.Wrapf(json.Unmarshal(v.Pack(), into), "decode checked JSON")
}

// pick returns an object with only the members of these names.
func pick(v hujson.Value, names []string) hujson.Value {
	v = v.Clone()
	if obj, ok := v.Value.(*hujson.Object); ok {
		obj.Members = slices.DeleteFunc(obj.Members, func(m hujson.ObjectMember) bool {
			return !slices.Contains(names, nameOf(m))
		})
	}
	return v
}

// nameOf returns the name of a member.
func nameOf(m hujson.ObjectMember) string {
	name, _ := m.Name.Value.(hujson.Literal)
	return name.String()
}
