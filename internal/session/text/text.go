// Package text shortens texts of people and agents.
package text

import "strings"

// MaxTitle is the maximum length of a title, in bytes.
const MaxTitle = 80

// Title returns the beginning of a prompt, on one line.
func Title(prompt string) string {
	text := strings.Join(strings.Fields(prompt), " ")
	if len(text) <= MaxTitle {
		return text
	}
	cut := strings.ToValidUTF8(text[:MaxTitle], "")
	if i := strings.LastIndexByte(cut, ' '); i > MaxTitle/2 {
		cut = cut[:i]
	}
	return cut + "…"
}

// Cut shortens a text to most bytes and says so.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	return strings.ToValidUTF8(text[:most], "") + "\n\n[the rest is left out]"
}
