package kill

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestSparesAndSIGKILL kills the server while it makes a session ahead, and before and after one is taken. The next
// server has either no session or the whole session, with its sandbox and its prompt, and nothing is left of the
// others.
func TestSparesAndSIGKILL(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := faultHost(t, map[string]string{"HARVEST_AGENTS_SPARES": "1"})
	h.Must("run", "--", "true") // builds the base image
	for _, c := range []struct {
		point    string
		sessions int // that exist afterwards
	}{{"spare.recorded", 1}, {"spare.fresh", 1}, {"spare.taken", 2}} {
		if !t.Run(c.point, func(t *testing.T) { killWithSpare(t, h, c.point, c.sessions) }) {
			t.Fatal(h.Log())
		}
	}
}

func killWithSpare(t *testing.T, h *host.Host, point string, sessions int) {
	h.Must("down")
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	create := func(prompt string) {
		cmd := h.Command(ctx, "agent", "--agent", "scripted", "--repo", "none", "-d", prompt)
		cmd.Env, cmd.Dir = append(cmd.Env, "HARVEST_FAULT="+point), h.Data
		_ = cmd.Run() // it may fail: the server is killed
	}
	killed := func() bool { return strings.HasSuffix(strings.TrimSpace(h.Log()), "killed at "+point) }
	create("/say first")
	if point != "spare.recorded" {
		testenv.Eventually(t, "a session waits", func() bool { return h.Server().Spares == 1 })
		create("/say second")
	}
	testenv.Eventually(t, "the server is killed at "+point, killed)
	h.Must("volume", "ls") // starts the next one
	var all []api.Session
	testenv.Eventually(t, "each session has answered", func() bool {
		if err := json.Unmarshal([]byte(h.Must("sessions", "-o", "json")), &all); err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if s.Status != "done" {
				return false
			}
		}
		return len(all) == sessions
	})
	if s := h.Server(); s.Spares != 0 || s.Sandboxes != sessions {
		t.Errorf("%d sessions wait, and there are %d sandboxes for %d sessions", s.Spares, s.Sandboxes, sessions)
	}
	for _, s := range all {
		h.Has(t, s.SandboxID, "sandbox", "ls")
		h.Must("end", "--discard", s.ID)
	}
}
