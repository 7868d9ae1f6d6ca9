package lint

import (
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// markers are phrases that plain technical English rarely needs: free relatives, passives of telling, and negatives
// that read as translated.
var markers = regexp.MustCompile(`(?i)\b(is told|are told|was told|tells that|is said|is none|are none|that is ` +
	`none|any more|who has|who have|whoever|whatever it|` +
	`what is|what was|what has|what they|what it|which is told|has it|have it|nobody|goes on|it is good|is good ` +
	`for|as it should|of ours|of others|of its own accord|` +
	`at times|is asked for|comes of it|lets .* go|is gone through)\b`)

// proseCeilings are the maximum percentages of marked lines in each area. They only decrease. The aim is 2
// everywhere.
var proseCeilings = map[string]float64{
	"readme": 2, "docs": 2, "decisions": 2, "comments": 2, "strings": 2, "tests": 2, "web": 2,
}

// proseCount is the number of lines of prose in an area, and the number of marked ones.
type proseCount struct{ lines, marked int }

func (c proseCount) percent() float64 { return 100 * float64(c.marked) / float64(max(c.lines, 1)) }

var (
	longText   = regexp.MustCompile("\"(?:[^\"\\\\\n]|\\\\.)*\"|`[^`\n]*`")
	inlineCode = regexp.MustCompile("`[^`]*`")
)

// countProse counts the lines of prose of each area: Markdown outside code blocks, comments, and string
// literals of at least three words. Lines of multi-line literals count only in packages of commands, where they are
// help texts; elsewhere most are scripts, SQL or HTML.
func countProse(tree fs.FS) (map[string]proseCount, error) {
	counts := map[string]proseCount{}
	err := fs.WalkDir(tree, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") ||
			slices.Contains([]string{"testdata", "vendor", "test-results", "bin"}, d.Name())):
			return fs.SkipDir
		case d.IsDir() || name == "tools/lint/prose.go":
			return nil
		}
		ext := path.Ext(name)
		if ext != ".md" && ext != ".go" && ext != ".js" {
			return nil
		}
		data, err := fs.ReadFile(tree, name)
		if err != nil {
			return errors.Wrapf(err, "count prose")
		}
		for area, lines := range proseOf(name, string(data)) {
			c := counts[area]
			for _, line := range lines {
				c.lines++
				if markers.MatchString(line) {
					c.marked++
				}
			}
			counts[area] = c
		}
		return nil
	})
	return counts, err
}

// holdsHelp reports whether a file belongs to the command line.
func holdsHelp(name string) bool {
	return slices.ContainsFunc(commands, func(p string) bool { return fits(p, short(name)) })
}

// proseOf returns the lines of prose of a file by area.
func proseOf(name, text string) map[string][]string {
	lines := map[string][]string{}
	if path.Ext(name) == ".md" {
		area := "readme"
		switch {
		case strings.HasPrefix(name, "docs/decisions/"):
			area = "decisions"
		case strings.HasPrefix(name, "docs/"):
			area = "docs"
		}
		code := false
		for line := range strings.Lines(text) {
			line = strings.TrimSpace(line)
			if strings.HasPrefix(line, "```") {
				code = !code
			}
			if !code && len(strings.Fields(line)) >= 3 {
				lines[area] = append(lines[area], inlineCode.ReplaceAllString(line, ""))
			}
		}
		return lines
	}
	comments, texts := "comments", "strings"
	switch {
	case strings.HasPrefix(name, "web/"):
		comments, texts = "web", ""
	case strings.HasSuffix(name, "_test.go"):
		comments, texts = "tests", ""
	}
	long := false // within a multi-line raw string
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		opens := strings.Contains(longText.ReplaceAllString(line, ""), "`")
		if texts != "" && holdsHelp(name) && (long || opens && !strings.HasPrefix(line, "//")) {
			// The rest of the line that closes a literal is code, and counts as such.
			before, after, quoted := strings.Cut(line, "`")
			closes := long && quoted
			switch {
			case !quoted:
				after = line
			case closes:
				after, line = before, after
			}
			long = long != quoted
			if len(strings.Fields(after)) >= 3 {
				lines[texts] = append(lines[texts], after)
			}
			if !closes {
				continue
			}
		}
		if comment, ok := strings.CutPrefix(line, "//"); ok {
			if len(strings.Fields(comment)) >= 3 && !strings.HasPrefix(comment, "go:") {
				lines[comments] = append(lines[comments], comment)
			}
			continue
		}
		for _, literal := range longText.FindAllString(line, -1) {
			if texts != "" && len(strings.Fields(literal)) >= 3 {
				lines[texts] = append(lines[texts], literal)
			}
		}
	}
	return lines
}
