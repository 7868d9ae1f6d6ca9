package server_test

import (
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/logf"
)

func TestMain(m *testing.M) {
	logf.Setup(&logged, slog.LevelDebug, false) // everything is formatted, nothing disturbs
	os.Exit(m.Run())
}

// logged is the log of all servers here.
var logged tap

// tap drops a log, except for the lines that a test waits for.
type tap struct {
	mu   sync.Mutex
	want map[string]chan string // guarded by mu; by a text in them
}

// Write implements io.Writer. Each call is a line.
func (l *tap) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for text, to := range l.want {
		if strings.Contains(string(p), text) {
			to <- string(p)
		}
	}
	return len(p), nil
}

// lines returns the next lines with that text in them, of which there must not be more than some dozens.
func (l *tap) lines(t *testing.T, text string) <-chan string {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.want == nil {
		l.want = map[string]chan string{}
	}
	to := make(chan string, 100)
	l.want[text] = to
	t.Cleanup(func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.want, text)
	})
	return to
}
