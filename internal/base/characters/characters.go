// Package characters finds the characters of UTF-8 in data that comes in pieces.
package characters

import "unicode/utf8"

// Partial returns the number of bytes at the end of data that begin an incomplete character.
func Partial(data []byte) int {
	for n := 1; n < utf8.UTFMax && n <= len(data); n++ {
		if tail := data[len(data)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
