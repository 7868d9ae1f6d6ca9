package cli

import (
	"sync"
	"time"

	"github.com/schollz/progressbar/v3"
)

// Sending shows the progress of an upload: a bar on a terminal, otherwise a line from time to time. It shows nothing of
// an upload that takes less than Patience.
type Sending struct {
	c    *CLI
	what string
	tty  bool

	mu    sync.Mutex
	bar   *progressbar.ProgressBar // guarded by mu
	noted time.Time                // guarded by mu; time of the last line, at first of the start
	wait  time.Duration            // guarded by mu; until the next line
}

// Sending begins to show the progress of an upload.
func (c *CLI) Sending(what string) *Sending {
	_, tty := Terminal(c.Err)
	return &Sending{c: c, what: what, tty: tty && c.Env("TERM") != "dumb", noted: time.Now(), wait: Patience}
}

// Update reports how many bytes were sent, and about how many there are.
func (s *Sending) Update(sent, of int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.c.Quiet || s.bar == nil && time.Since(s.noted) < s.wait:
	case !s.tty:
		s.noted, s.wait = time.Now(), noteEvery
		s.c.Notef("%s: %s of about %s…", s.what, Size(sent), Size(of))
	default:
		if s.bar == nil || s.bar.GetMax64() != of {
			s.clear()
			s.bar = progressbar.NewOptions64(of, progressbar.OptionSetWriter(s.c.Err),
				progressbar.OptionShowBytes(true), progressbar.OptionClearOnFinish(), progressbar.OptionSetWidth(30),
				progressbar.OptionUseANSICodes(false),
				progressbar.OptionSetDescription(s.what), progressbar.OptionThrottle(100*time.Millisecond))
		}
		_ = s.bar.Set64(sent) // best effort: a bar that cannot be drawn must not fail the upload
	}
}

// clear removes the bar. s.mu is held.
func (s *Sending) clear() {
	if s.bar != nil {
		_ = s.bar.Clear()
		s.bar = nil
	}
}

// Done removes the bar.
func (s *Sending) Done() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.clear()
}
