package dockerfile

import (
	"bytes"
	"strings"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/image"
)

const (
	tailLines = 20   // output lines of a failed command in its error
	maxLine   = 4096 // bytes of a line of output
)

// buildLog reports the progress of a build. It masks the values of secrets.
type buildLog struct {
	mu       sync.Mutex
	say      func(string)         // guarded by mu
	progress func(image.Progress) // guarded by mu
	done     int                  // guarded by mu; steps
	total    int
	secrets  *strings.Replacer
}

func newLog(opts image.BuildOptions, steps int) *buildLog {
	l := &buildLog{say: opts.Log, progress: opts.Progress, total: steps + 1} // packing
	var hidden []string
	for _, value := range opts.Secrets {
		for _, line := range strings.Split(string(value), "\n") {
			if line = strings.TrimSpace(line); len(line) >= 4 { // masking shorter ones would hide half of the log
				hidden = append(hidden, line)
			}
			hidden = append(hidden, logf.Forms(line)...)
		}
		hidden = append(hidden, logf.Forms(string(value))...) // encoded as a whole, a value includes its line breaks
	}
	l.secrets = logf.Hiding(hidden)
	return l
}

// step reports the start of a step.
func (l *buildLog) step(kind, title string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	title = l.secrets.Replace(title)
	l.progress(image.Progress{Step: kind, Done: float64(l.done) / float64(l.total), Message: title})
	l.done++
	l.say(title)
}

// ended reports the end of a step that took a second or more.
func (l *buildLog) ended(title string, took time.Duration) {
	if took = took.Round(time.Second); took > 0 {
		l.line(prefix(title) + "done in " + took.String())
	}
}

// prefix returns the beginning of a title that identifies the step, such as "[build 2/5] ".
func prefix(title string) string {
	name, _, _ := strings.Cut(title, "] ")
	return name + "] "
}

func (l *buildLog) line(text string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.say(text)
}

// output receives the output of a command and keeps its last lines.
type output struct {
	log    *buildLog
	prefix string

	mu   sync.Mutex
	part []byte   // guarded by mu; an incomplete line
	tail []string // guarded by mu
}

func (l *buildLog) output(prefix string) *output { return &output{log: l, prefix: prefix} }

// Write implements io.Writer. It is safe for both output streams of a command at the same time.
func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := len(p)
	for len(p) > 0 {
		line, rest, ended := bytes.Cut(p, []byte("\n"))
		o.part = append(o.part, line...)
		p = rest
		if ended || len(o.part) > maxLine {
			o.flush()
		}
	}
	return n, nil
}

// flush ends a line. o.mu is held. Of a line that a progress bar overwrites, it keeps the last
// version.
func (o *output) flush() {
	text := strings.TrimRight(string(o.part), "\r")
	if i := strings.LastIndexByte(text, '\r'); i >= 0 {
		text = text[i+1:]
	}
	o.part = o.part[:0]
	text = o.log.secrets.Replace(strings.ToValidUTF8(text, "\uFFFD"))
	if len(o.tail) == tailLines {
		o.tail = append(o.tail[:0], o.tail[1:]...)
	}
	o.tail = append(o.tail, text)
	o.log.line(o.prefix + text)
}

// last ends the output and returns its last lines.
func (o *output) last() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.part) > 0 {
		o.flush()
	}
	return strings.Join(o.tail, "\n")
}
