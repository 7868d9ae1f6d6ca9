package cli

import (
	"cmp"
	"fmt"
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/RelevanceAI/harvest/client/api"
)

// Patience is how long an operation may take before the wait is reported.
const Patience = time.Second

// Waiting reports a long wait, unless the returned function is called first.
func (c *CLI) Waiting(what string) (done func()) {
	timer := time.AfterFunc(Patience, func() { c.Notef("%s…", what) })
	return func() { timer.Stop() }
}

// Building shows the progress of an image build: a bar on a terminal, otherwise a line for each step.
type Building struct {
	c     *CLI
	start time.Time
	tty   bool

	mu      sync.Mutex
	bar     *progressbar.ProgressBar // guarded by mu
	step    string                   // guarded by mu
	noted   time.Time                // guarded by mu; time of the last line
	last    api.Progress             // guarded by mu
	begun   time.Time                // guarded by mu; time of the first report with the message of last
	silence *time.Timer              // guarded by mu; calls silent; nil before the first report and at the end
	told    func()                   // guarded by mu; ends the wait for the queue to advance; nil without one
	logged  *packageLog              // guarded by mu; nil before the first line of the log
	Verbose bool                     // show each line of the log
}

// Building begins to show the progress of an image build.
func (c *CLI) Building() *Building {
	_, tty := Terminal(c.Err)
	return &Building{c: c, start: time.Now(), tty: tty && c.Env("TERM") != "dumb"}
}

const (
	barSteps  = 1000
	noteEvery = 15 * time.Second // between two lines of one step
)

// Update processes a progress report. Steps of less than a second are not shown.
func (b *Building) Update(p api.Progress) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.Step == api.StepQueue && !b.c.Quiet && b.told == nil {
		b.told = b.c.Waiting("the sandbox waits to start, " + p.Message)
	}
	if p.Step == api.StepQueue || b.c.Quiet {
		return
	}
	b.remember(p)
	if time.Since(b.start) < Patience {
		return
	}
	if !b.tty {
		if b.logged == nil && (p.Step != b.step || time.Since(b.noted) >= noteEvery) {
			b.step = p.Step
			b.note("building the image: " + status(p.Step, p.Done, time.Since(b.start)) + " in total")
		}
		return
	}
	if b.bar == nil {
		b.bar = progressbar.NewOptions(barSteps, progressbar.OptionSetWriter(b.c.Err),
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
func status(text string, done float64, took time.Duration) string {
	if done >= 0 {
		text += fmt.Sprintf(", %d %%", int(done*100))
	}
	return text + ", " + took.Round(time.Second).String()
}

// remember keeps a report for silent. b.mu is held.
func (b *Building) remember(p api.Progress) {
	if p.Message != b.last.Message {
		b.begun = time.Now()
	}
	b.last = p
	if b.silence == nil {
		b.silence = time.AfterFunc(noteEvery, b.silent)
	}
}

// silent reports the current step, its share of the build and its time so far, since nothing was printed for a while.
func (b *Building) silent() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.silence == nil {
		return
	}
	if b.tty && b.logged == nil { // the bar is there
		b.silence.Reset(noteEvery)
		return
	}
	text := fmt.Sprintf("%.60s", cmp.Or(b.last.Message, b.last.Step))
	b.note("building the image: " + status(text, b.last.Done, time.Since(b.begun)) + " in this step")
}

// note prints a line. b.mu is held.
func (b *Building) note(text string) {
	b.noted = time.Now()
	if b.silence != nil {
		b.silence.Reset(noteEvery)
	}
	if b.bar != nil {
		_ = b.bar.Clear()
	}
	b.c.Notef("%s", text)
}

// Line shows a line of a build's output. Lines that package managers print for each package are shortened to their
// number, unless b.Verbose is set.
func (b *Building) Line(text string) {
	if b.c.Quiet {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logged == nil {
		b.logged = &packageLog{print: b.note}
	}
	if b.Verbose {
		b.logged.print(text)
		return
	}
	b.logged.line(text)
}

// Done removes the bar.
func (b *Building) Done() {
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
	if b.silence != nil {
		b.silence.Stop()
		b.silence = nil
	}
}

// Hint prints a note beside the result, unless --quiet.
func (c *CLI) Hint(format string, args ...any) {
	if !c.Quiet {
		fmt.Fprintf(c.Err, format+"\n", args...)
	}
}
