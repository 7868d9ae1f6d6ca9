package main

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

func TestMain(m *testing.M) { os.Exit(testenv.MainByHand(m, main)) }

func TestByHand(t *testing.T) { testenv.ByHand(t) }

// TestKeeperIsSmall checks that the keeper stays small: each sandbox pays for the packages that are linked here.
func TestKeeperIsSmall(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	linked := strings.Fields(string(out))
	if !slices.Contains(linked, "gvisor.dev/gvisor/pkg/urpc") {
		t.Fatalf("this is no keeper: %.200s", out)
	}
	for _, large := range []string{"net/http", "crypto/tls", "encoding/gob", "gvisor.dev/gvisor/pkg/sentry/kernel",
		"github.com/RelevanceAI/harvest/internal/engine/gvisor/tool"} {
		if slices.Contains(linked, large) {
			t.Errorf("%s is linked", large)
		}
	}
}
