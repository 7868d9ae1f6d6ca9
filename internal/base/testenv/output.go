package testenv

import (
	"strings"
	"sync"
	"testing"
	"time"
)

// Output collects what several goroutines write, and can be read meanwhile. The zero value is ready to use.
type Output struct {
	mu   sync.Mutex
	text []byte        // guarded by mu
	more chan struct{} // guarded by mu; closed by the next Write
}

// Write implements io.Writer.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	if o.more != nil {
		close(o.more)
		o.more = nil
	}
	return len(p), nil
}

// String returns everything so far.
func (o *Output) String() string {
	text, _ := o.Change()
	return text
}

// Change returns everything so far, and a channel that is closed when more arrives.
func (o *Output) Change() (string, <-chan struct{}) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.more == nil {
		o.more = make(chan struct{})
	}
	return string(o.text), o.more
}

// Until waits until the output contains text, and returns everything so far. It fails the test after two minutes.
func (o *Output) Until(t testing.TB, text string) string {
	t.Helper()
	late := time.After(Limit)
	for {
		have, more := o.Change()
		if strings.Contains(have, text) {
			return have
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("not within %s: the output contains %q; it is %.2000q", Limit, text, have)
		}
	}
}
