package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestSuggestions checks that an unknown command suggests the first similar one in the tree.
func TestSuggestions(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"pu":           "did you mean: harvest run\n",
		"sandbox copt": "did you mean: harvest sandbox cp\n",
		"nothing":      "see: harvest --help\n",
	} {
		var out, stderr bytes.Buffer
		code := run(t.Context(), append([]string{"harvest"}, strings.Fields(line)...), nil, &out, &stderr, nil)
		if code != 2 || !strings.HasSuffix(stderr.String(), want) {
			t.Errorf("harvest %s: %d, %q, want %q", line, code, stderr.String(), want)
		}
	}
}
