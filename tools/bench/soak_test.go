package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/imagetest"
)

// TestSoakInShort checks that a short soak test on real sandboxes has no failures, and no growth that is visible in so
// short a time. HARVEST_TEST_SOAK is the duration of the traffic, such as 20m. The pauses in between are half a minute
// and more.
// mission: A8
func TestSoakInShort(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	long := 20 * time.Second
	if text := os.Getenv("HARVEST_TEST_SOAK"); text != "" {
		var err error
		if long, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	library := imagetest.Library(t)
	images := filepath.Dir(filepath.Dir(library.Root(imagetest.Base(t, library))))
	var out strings.Builder
	err := soak(t.Context(), &lab{dir: testenv.DataDir(t), opts: options{images: images}},
		testenv.Binary(t), long, &out)
	if err != nil || strings.Count(out.String(), "flat\n") != 5 {
		t.Errorf("%v\n%s", err, out.String())
	}
}
