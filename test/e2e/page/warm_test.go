package page

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/rogpeppe/go-internal/testscript"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestPageAnnouncesLastForm checks that the last state of the form is announced, although the server takes only one
// announcement a second, from this and other tabs.
func TestPageAnnouncesLastForm(t *testing.T) {
	t.Parallel()
	_, b := started(t)
	b.do(chromedp.Evaluate(`window.announced = []; window.through = window.fetch; window.fetch = async (to, o) => {
		const r = await window.through(to, o);
		if (String(to).endsWith('/sessions/warm')) window.announced.push([r.status, JSON.parse(o.body).repo ?? '']);
		return r;
	}; document.querySelector('.new details').open = true`, nil))
	// Another tab announces right before, and the form changes three times at once.
	b.run(`await window.through('v1/sessions/warm',
		{ method: 'POST', headers: { 'Content-Type': 'application/json' }, body: '{}' })`)
	b.do(chromedp.Evaluate(`for (const name of ['b', 'c', 'd']) {
		const fields = [...document.querySelectorAll('label.field')];
		const field = fields.find((l) => l.firstChild.textContent === 'Repository');
		const i = field.querySelector('input');
		i.value = 'https://git.example/a/' + name; i.dispatchEvent(new Event('change', { bubbles: true }));
	}`, nil))
	b.until(`(([status, repo]) => status < 300 && repo === 'https://git.example/a/d')(window.announced.at(-1) ?? [])`)
	if got := b.value(`window.announced.filter(([, repo]) => repo.endsWith('/c')).length`); got != "0" {
		t.Error("each change is announced")
	}
	b.leavesNoImages()
}

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
	h.Must("end", "--discard", id)
}
