package server_test

import (
	"io"
	"log/slog"
	"os"
	"testing"

	"github.com/RelevanceAI/harvest/logf"
)

func TestMain(m *testing.M) {
	logf.Setup(io.Discard, slog.LevelDebug, false) // everything is formatted, nothing disturbs
	os.Exit(m.Run())
}
