// Package agenttest checks the decoders of agents with transcripts of the real programs, in testdata.
package agenttest

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/internal/session/agent"
)

var update = flag.Bool("update", false, "write the golden files anew")

// Decode returns the events of some lines.
func Decode(c agent.Conversation, lines ...string) []agent.Event {
	var all []agent.Event
	for _, line := range lines {
		all = append(all, c.Decode([]byte(line))...)
	}
	return all
}

// Transcripts compares the events of each transcript with the golden file beside it.
func Transcripts(t *testing.T, events func(t *testing.T, transcript []byte) []agent.Event) {
	for file, text := range transcripts(t) {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			t.Parallel()
			var got bytes.Buffer
			for _, e := range events(t, text) {
				out, err := json.Marshal(e)
				if err != nil {
					t.Fatal(err)
				}
				got.Write(append(out, '\n'))
			}
			golden := strings.TrimSuffix(file, ".jsonl") + ".golden"
			if *update {
				if err := os.WriteFile(golden, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// Fuzz checks that the decoder fails on no line, and that its events can be written as JSON. The seeds are the
// transcripts and more.
func Fuzz(f *testing.F, open func() agent.Conversation, more ...string) {
	for _, text := range transcripts(f) {
		f.Add(text)
	}
	for _, text := range more {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		c := open()
		for line := range bytes.Lines(text) {
			for _, e := range c.Decode(line) {
				if e.Type == "" {
					t.Fatalf("%q: an event without a type", line)
				}
				if _, err := json.Marshal(e); err != nil {
					t.Fatalf("%q: %v", line, err)
				}
			}
		}
	})
}

// transcripts returns the texts of the transcripts by their paths.
func transcripts(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/*.jsonl")
	if err != nil || len(files) == 0 {
		t.Fatalf("no transcripts: %v", err)
	}
	all := map[string][]byte{}
	for _, file := range files {
		if all[file], err = os.ReadFile(file); err != nil {
			t.Fatal(err)
		}
	}
	return all
}
