package page

import (
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/e2e/host"
	"github.com/RelevanceAI/harvest/internal/testenv"
)

// TestPageAnnouncesSession checks that a session is made ahead while a person types the first prompt, and that the form
// then gets that session.
func TestPageAnnouncesSession(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	testenv.Root(t)
	ordinary := host.GVisor(t)
	h := host.New(t, "gvisor", func(env *testscript.Env) error {
		err := ordinary(env)
		env.Setenv("HARVEST_AGENTS_SPARES", "1")
		return err
	})
	h.Up()
	h.Must("run", "--", "true") // builds the base image
	b := browser(t)
	b.signedIn(h)
	if n := h.Server().Spares; n != 0 {
		t.Fatalf("%d sessions wait before a person types", n)
	}
	b.fill("First prompt", "/say made ahead of this")
	testenv.Eventually(t, "a session waits", func() bool { return h.Server().Spares == 1 })
	if listed := h.Must("sessions", "--all", "-o", "name"); listed != "" {
		t.Errorf("it is listed: %s", listed)
	}
	ahead := h.Server().Sandboxes
	b.click("button", "Create a sandbox")
	b.sees(".message.agent", "made ahead of this")
	id := h.Must("sessions", "-o", "name")
	server := client.New(h.Data)
	defer server.Close()
	taken := false
	for e, err := range server.Events(t.Context(), client.Follow{Stream: id}) {
		if err != nil {
			t.Fatal(err)
		}
		taken = taken || e.Type == "session.stage" && strings.Contains(string(e.Data), `"made ahead"`)
		if e.Type == "done" {
			break
		}
	}
	if !taken {
		t.Errorf("%s was not made ahead", id)
	}
	if ahead != 1 {
		t.Errorf("%d sandboxes were made for it", ahead)
	}
	b.clean()
	h.Must("end", id)
}
