package chat

import "strconv"

// Count returns a number of things: "1 file", "2 files".
func Count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}
