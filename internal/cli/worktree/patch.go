package worktree

import (
	"bufio"
	"io"
	"regexp"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/internal/base/pattern"
)

// hunk matches the beginning of a hunk, with the numbers of its lines before and after.
var hunk = pattern.New(`^@@ -\d+(?:,(\d+))? \+\d+(?:,(\d+))? @@`)

// PatchSize counts the files and lines of a patch.
func PatchSize(r io.Reader) (files, added, removed int, err error) {
	in := bufio.NewReaderSize(r, 64<<10)
	before, after := 0, 0 // lines of the hunk that are still to come
	for {
		line, prefix, err := in.ReadLine()
		if err == io.EOF {
			return files, added, removed, nil
		} else if err != nil {
			return files, added, removed, err
		}
		switch m := hunkSize(hunk(), line); {
		case before <= 0 && after <= 0:
			if strings.HasPrefix(string(line), "diff --git ") {
				files++
			} else if m != nil {
				before, after = m[0], m[1]
			}
		case len(line) > 0 && line[0] == '+':
			added, after = added+1, after-1
		case len(line) > 0 && line[0] == '-':
			removed, before = removed+1, before-1
		case len(line) == 0 || line[0] == ' ':
			before, after = before-1, after-1
		}
		for prefix && err == nil { // the rest of a long line
			_, prefix, err = in.ReadLine()
		}
	}
}

// hunkSize returns the numbers of lines of a hunk that begins with this line, or nil.
func hunkSize(hunk *regexp.Regexp, line []byte) []int {
	m := hunk.FindSubmatch(line)
	if m == nil {
		return nil
	}
	sizes := []int{1, 1}
	for i, text := range m[1:] {
		if n, err := strconv.Atoi(string(text)); err == nil {
			sizes[i] = n
		}
	}
	return sizes
}
