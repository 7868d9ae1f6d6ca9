package cli

import (
	"fmt"
	"strings"
	"time"
)

// summaryEvery is the time between two summaries while a package manager works.
const summaryEvery = 10 * time.Second

// packageLines are the beginnings of lines that apt, dpkg and npm print for each package. A line with a name is
// counted under it.
var packageLines = []struct{ prefix, Args string }{
	{"Get:", "downloaded"}, {"Unpacking ", "unpacked"}, {"Setting up ", "set up"},
	{"npm http fetch GET 200 ", "requests of npm"}, {"npm http cache ", ""}, {"npm http fetch GET 304 ", ""},
	{"Hit:", ""}, {"Ign:", ""}, {"Selecting previously unselected package ", ""}, {"(Reading database ", ""},
	{"Preparing to unpack ", ""}, {"Processing triggers for ", ""}, {"Reading package lists", ""},
	{"Building dependency tree", ""}, {"Reading state information", ""}, {"update-alternatives: ", ""},
	{"The following ", ""}, {"  ", ""}, {"Created symlink ", ""}, {"Fetched ", ""}, {"Need to get ", ""},
	{"After this operation, ", ""}, {"debconf: delaying package configuration", ""},
}

// packageLog shortens the log of a build: instead of the lines of apt, dpkg and npm, it prints how much they have done
// so far.
type packageLog struct {
	print  func(line string)
	prefix string // of the step whose lines are counted, such as "[3/12] "
	counts map[string]int
	since  time.Time // of the last summary
}

// line handles a line of the log.
func (l *packageLog) line(text string) {
	prefix, rest := stepPrefix(text)
	if prefix != l.prefix {
		l.flush()
	}
	for _, p := range packageLines {
		if !strings.HasPrefix(rest, p.prefix) || p.prefix == "  " && len(l.counts) == 0 {
			continue
		}
		if len(l.counts) == 0 {
			l.prefix, l.counts, l.since = prefix, map[string]int{}, time.Now()
		}
		l.counts[p.Args]++
		if time.Since(l.since) >= summaryEvery {
			l.summary()
			l.since = time.Now()
		}
		return
	}
	l.flush()
	l.print(text)
}

// flush ends a series of lines of a package manager.
func (l *packageLog) flush() {
	l.summary()
	l.counts = nil
}

func (l *packageLog) summary() {
	var parts []string
	for _, p := range packageLines {
		if p.Args != "" && l.counts[p.Args] > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", l.counts[p.Args], p.Args))
		}
	}
	if len(parts) > 0 {
		l.print(l.prefix + "packages: " + strings.Join(parts, ", "))
	}
}

// stepPrefix splits "[3/12] text" after the bracket.
func stepPrefix(line string) (prefix, rest string) {
	if strings.HasPrefix(line, "[") {
		if i := strings.Index(line, "] "); i > 0 {
			return line[:i+2], line[i+2:]
		}
	}
	return "", line
}
