package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/RelevanceAI/harvest/api"
)

// patience is how long an operation may take before the wait is reported.
const patience = time.Second

// waiting reports a long wait, unless the returned function is called first.
func (c *cli) waiting(what string) (done func()) {
	timer := time.AfterFunc(patience, func() { c.notef("%s…", what) })
	return func() { timer.Stop() }
}

// building shows the progress of an image build: a bar on a terminal, otherwise a line for each step.
type building struct {
	c     *cli
	start time.Time
	tty   bool

	mu      sync.Mutex
	bar     *progressbar.ProgressBar // guarded by mu
	step    string                   // guarded by mu
	noted   time.Time                // guarded by mu; time of the last line
	told    func()                   // guarded by mu; ends the wait for the queue to advance; nil without one
	logged  *packageLog              // guarded by mu; nil before the first line of the log
	verbose bool                     // show each line of the log
}

func (c *cli) building() *building {
	_, tty := terminal(c.err)
	return &building{c: c, start: time.Now(), tty: tty && c.env("TERM") != "dumb"}
}

const (
	barSteps  = 1000
	noteEvery = 15 * time.Second // between two lines of one step
)

// update processes a progress report. Steps of less than a second are not shown.
func (b *building) update(p api.Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.Step == api.StepQueue && !b.c.quiet && b.told == nil {
		b.told = b.c.waiting("the sandbox waits to start, " + p.Message)
	}
	if p.Step == api.StepQueue || b.c.quiet || time.Since(b.start) < patience {
		return
	}
	if !b.tty {
		if b.logged == nil && (p.Step != b.step || time.Since(b.noted) >= noteEvery) {
			b.step, b.noted = p.Step, time.Now()
			b.c.notef("building the image: %s", b.status(p))
		}
		return
	}
	if b.bar == nil {
		b.bar = progressbar.NewOptions(barSteps, progressbar.OptionSetWriter(b.c.err),
			progressbar.OptionClearOnFinish(),
			progressbar.OptionSetWidth(30), progressbar.OptionUseANSICodes(false),
			progressbar.OptionSetPredictTime(false))
	}
	b.bar.Describe(fmt.Sprintf("building the image: %-10.10s %-22.22s", p.Step, p.Message))
	if p.Done >= 0 {
		// Best effort: a bar that cannot be drawn must not fail the build.
		_ = b.bar.Set(min(int(p.Done*barSteps), barSteps-1))
	}
}

// status describes the progress of a build in a few words: "install, 18 %, 12s".
func (b *building) status(p api.Progress) string {
	text := p.Step
	if p.Done >= 0 {
		text += fmt.Sprintf(", %d %%", int(p.Done*100))
	}
	return text + ", " + time.Since(b.start).Round(time.Second).String()
}

// line shows a line of a build's output. Lines that package managers print for each package are shortened to their
// number, unless b.verbose is set.
func (b *building) line(text string) {
	if b.c.quiet {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logged == nil {
		b.logged = &packageLog{print: func(line string) {
			if b.bar != nil {
				_ = b.bar.Clear()
			}
			b.c.notef("%s", line)
		}}
	}
	if b.verbose {
		b.logged.print(text)
		return
	}
	b.logged.line(text)
}

// done removes the bar.
func (b *building) done() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.told != nil {
		b.told()
	}
	if b.logged != nil {
		b.logged.flush()
	}
	if b.bar != nil {
		_ = b.bar.Clear()
		b.bar = nil
	}
}

// hint prints a note beside the result, unless --quiet.
func (c *cli) hint(format string, args ...any) {
	if !c.quiet {
		fmt.Fprintf(c.err, format+"\n", args...)
	}
}
