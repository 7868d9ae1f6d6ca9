package chat

import (
	"strings"
	"unicode/utf8"
)

// key is a key press or typed text: a name such as "enter" or "ctrl+c", or a text.
type key struct {
	name string // "" for text
	text string
}

// Sequences that terminals put around a paste.
const (
	pasteBegin = "\x1b[200~"
	pasteEnd   = "\x1b[201~"
)

// sequences maps the escape sequences of keys, without their ESC.
var sequences = map[string]string{
	"[A": "up", "[B": "down", "[C": "right", "[D": "left", "OA": "up", "OB": "down", "OC": "right", "OD": "left",
	"[H": "home", "[F": "end", "OH": "home", "OF": "end", "[1~": "home", "[4~": "end", "[7~": "home", "[8~": "end",
	"[3~": "delete", "[1;5C": "word right", "[1;5D": "word left", "[1;3C": "word right", "[1;3D": "word left",
	"f": "word right", "b": "word left", "\r": "newline", "\n": "newline", "\x7f": "delete word", "\b": "delete word",
	"[13;2u": "newline", "[27;2;13~": "newline", "OM": "enter",
}

// controls are keys of one byte.
var controls = map[byte]string{
	0x01: "home", 0x02: "left", 0x03: "ctrl+c", 0x04: "ctrl+d", 0x05: "end", 0x06: "right", 0x08: "backspace",
	0x0a: "newline", 0x0b: "delete to end", 0x0c: "redraw", 0x0d: "enter", 0x0e: "down", 0x10: "up",
	0x15: "delete to start", 0x17: "delete word", 0x1a: "suspend", 0x7f: "backspace",
}

// decoder converts the bytes of a terminal to keys.
type decoder struct{ rest string }

// decode decodes more bytes. An incomplete sequence waits for more bytes or for flush.
func (d *decoder) decode(data []byte) []key {
	d.rest += string(data)
	var keys []key
	for d.rest != "" {
		k, n := next(d.rest)
		if n == 0 {
			break
		}
		d.rest = d.rest[n:]
		if k != (key{}) {
			keys = append(keys, k)
		}
	}
	return keys
}

// waits reports whether an incomplete sequence is left, such as a lone ESC.
func (d *decoder) waits() bool {
	return strings.HasPrefix(d.rest, "\x1b") && !strings.HasPrefix(d.rest, pasteBegin)
}

// flush ends the wait for the rest of a sequence: a lone ESC is the Escape key, and anything else is dropped.
func (d *decoder) flush() []key {
	lone := d.rest == "\x1b"
	d.rest = ""
	if lone {
		return []key{{name: "esc"}}
	}
	return nil
}

// next returns the first key of text and its length; 0 if more bytes are needed.
func next(text string) (key, int) {
	switch c := text[0]; {
	case strings.HasPrefix(text, pasteBegin):
		end := strings.Index(text, pasteEnd)
		if end < 0 {
			return key{}, 0
		}
		pasted := strings.ReplaceAll(strings.ReplaceAll(text[len(pasteBegin):end], "\r\n", "\n"), "\r", "\n")
		return key{text: Plain(pasted)}, end + len(pasteEnd)
	case c == 0x1b:
		return sequence(text)
	case c < ' ' || c == 0x7f:
		return key{name: controls[c]}, 1
	}
	end := 0
	for end < len(text) && text[end] >= ' ' && text[end] != 0x7f {
		if !utf8.FullRuneInString(text[end:]) {
			break
		}
		_, n := utf8.DecodeRuneInString(text[end:])
		end += n
	}
	return key{text: Plain(text[:end])}, end
}

// sequence is next for text that begins with ESC. It skips unknown sequences.
func sequence(text string) (key, int) {
	if len(text) == 1 {
		return key{}, 0
	}
	switch text[1] {
	case 0x1b: // the first ESC was a key
		return key{name: "esc"}, 1
	case '[':
		for i := 2; i < len(text); i++ {
			if c := text[i]; c >= 0x40 && c <= 0x7e {
				return key{name: sequences[text[1:i+1]]}, i + 1
			}
		}
		return key{}, 0
	case 'O':
		if len(text) < 3 {
			return key{}, 0
		}
		return key{name: sequences[text[1:3]]}, 3
	}
	return key{name: sequences[text[1:2]]}, 2
}
