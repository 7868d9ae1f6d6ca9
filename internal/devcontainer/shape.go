package devcontainer

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// shape is the expected form of a JSON value. Checking it before decoding yields errors with a position.
type shape struct {
	form  string // for errors, such as "a string"
	kinds string // kinds of values, as hujson has them
	// valid, if set, checks a string that has no variables, or a number.
	valid   func(string) bool
	each    *shape           // of all elements or members
	members map[string]shape // of an object; other members are ignored
	names   func(string) bool
	or      []shape // alternatives of other kinds
}

var (
	text    = shape{form: "a string", kinds: `"`}
	flag    = shape{form: "a boolean", kinds: "tf"}
	integer = shape{form: "an integer", kinds: "0", valid: regexp.MustCompile(`^\d{1,9}$`).MatchString}
	object  = shape{form: "an object", kinds: "{"}
)

// list is an array with elements of a form.
func list(of shape, plural string) shape {
	return shape{form: "an array of " + plural, kinds: "[", each: &of}
}

// table is an object whose members have any name that names accepts.
func table(of shape, names func(string) bool) shape {
	return shape{form: "an object", kinds: "{", each: &of, names: names}
}

// record is an object with known members.
func record(members map[string]shape) shape {
	return shape{form: "an object", kinds: "{", members: members}
}

// word is a string out of a list.
func word(words ...string) shape {
	return shape{form: `one of "` + strings.Join(words, `", "`) + `"`, kinds: `"`,
		valid: func(s string) bool { return slices.Contains(words, s) }}
}

// matching is a string of a pattern.
func matching(form, pattern string) shape {
	return shape{form: form, kinds: `"`, valid: regexp.MustCompile(pattern).MatchString}
}

// either is a value of one of several forms that differ in kind.
func either(all ...shape) shape {
	s := shape{or: all}
	for i, a := range all {
		switch i {
		case 0:
		case len(all) - 1:
			s.form += " or "
		default:
			s.form += ", "
		}
		s.form += a.form
		s.kinds += a.kinds
	}
	return s
}

// check checks the form of the document. It removes members that have no meaning, and all but the last of several with
// the same name, and notes that.
func (d *document) check(s shape) error { return d.visit(s, &d.root, "") }

func (d *document) visit(s shape, v *hujson.Value, at string) error {
	kind := byte(v.Value.Kind())
	if !strings.ContainsRune(s.kinds, rune(kind)) {
		return d.wrong(s, v, at)
	}
	for _, alternative := range s.or {
		if strings.ContainsRune(alternative.kinds, rune(kind)) {
			return d.visit(alternative, v, at)
		}
	}
	switch x := v.Value.(type) {
	case hujson.Literal:
		if s.valid == nil {
			return nil
		}
		content := string(x)
		if kind == '"' {
			content = x.String()
		}
		if !s.valid(content) && (kind != '"' || !variable.MatchString(content)) {
			return d.wrong(s, v, at)
		}
	case *hujson.Array:
		if s.each == nil {
			return nil
		}
		for i := range x.Elements {
			if err := d.visit(*s.each, &x.Elements[i], fmt.Sprintf("%s[%d]", at, i)); err != nil {
				return err
			}
		}
	case *hujson.Object:
		return d.visitObject(s, x, at)
	}
	return nil
}

func (d *document) visitObject(s shape, obj *hujson.Object, at string) error {
	last, count := map[string]int{}, map[string]int{}
	for i, m := range obj.Members {
		last[nameOf(m)] = i
		count[nameOf(m)]++
	}
	kept := obj.Members[:0]
	for i, m := range obj.Members {
		name := nameOf(m)
		full := strings.TrimPrefix(at+"."+name, ".")
		of, known := s.members[name]
		switch {
		case last[name] != i:
			continue
		case s.members != nil && known && m.Value.Value.Kind() == 'n' && !strings.Contains(of.kinds, "n"):
			continue // null is as absent
		case s.members != nil && !known:
			d.note(full, ignoredBecause(full))
			continue
		case s.names != nil && !s.names(name):
			return d.fail(m.Name.StartOffset, "correct the name", "%.200q: invalid name", full)
		case s.each != nil:
			of = *s.each
		}
		if s.members != nil || s.each != nil {
			if err := d.visit(of, &m.Value, full); err != nil {
				return err
			}
		}
		if count[name] > 1 {
			d.note(full, "is written more than once: the last one counts")
		}
		kept = append(kept, m)
	}
	obj.Members = kept
	return nil
}

// note records that a property has no effect.
func (d *document) note(property, text string) {
	d.notes = append(d.notes, Note{Property: property, Text: fmt.Sprintf("%.200s %s", property, text)})
}

// wrong returns the error for a value that has another form.
func (d *document) wrong(s shape, v *hujson.Value, at string) error {
	has := map[hujson.Kind]string{'{': "an object", '[': "an array"}[v.Value.Kind()]
	if literal, ok := v.Value.(hujson.Literal); ok {
		has = fmt.Sprintf("%.100s", string(literal))
	}
	if at == "" {
		return d.fail(v.StartOffset, "begin the file with {", "the file must be %s, not %s", s.form, has)
	}
	remedy := fmt.Sprintf("correct the value of %.200s", at)
	return d.fail(v.StartOffset, remedy, "%.200q must be %s, not %s", at, s.form, has)
}
