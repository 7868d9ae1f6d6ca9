package page

import (
	"context"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// noted is a script that collects every text that the elements of a selector get, in a list of that name.
func noted(list, selector string) string {
	return `window.` + list + ` = []; new MutationObserver(() => { for (const e of document.querySelectorAll(` + quoted(selector) + `)) if (e.textContent !== window.` + list + `.at(-1)) window.` + list + `.push(e.textContent); })
		.observe(document.body, { childList: true, subtree: true, characterData: true });`
}

// TestPageAnnounces checks what screen readers read out: the state when it changes and not its duration, new messages
// and questions, and nothing of the past.
// mission: 7.5, 7.10, F2
func TestPageAnnounces(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	_, b := started(t)
	b.creates()
	b.do(chromedp.Evaluate(noted("states", ".bar [role=status]:not(.link)"), nil))
	b.send("/sleep 600")
	b.until(`/^Thinking · [3-9] s$/.test(document.querySelector('.status').textContent)`)
	b.click(".composer button", "Stop")
	b.sees(".note", "Stopped")
	if got := b.value(`window.states.filter((s) => /\d/.test(s)).join()`); got != "" {
		t.Errorf("the seconds are read out: %s", got)
	}
	if got := b.value(`window.states.includes('Thinking')`); got != "true" {
		t.Errorf("the states that are read out are %s", b.value(`window.states.join()`))
	}

	const news = `[...document.querySelectorAll('.news[aria-live=polite] p')].map((p) => p.textContent)`
	b.send("/say Read **this** out.")
	b.until(news + `.some((p) => p.startsWith('Agent: Read'))`)
	b.send("/ask Which colour? | red | blue")
	b.until(news + `.some((p) => p.includes('The agent asks: Which colour?'))`)
	if got := b.value(`document.querySelector('.log').getAttribute('aria-live')`); got != "off" {
		t.Errorf("the conversation itself, which changes with each token, is read out: %s", got)
	}
	// A question takes no focus, and its answer returns it to the prompt.
	b.tabTo("form.question input[type=radio]")
	b.keys(" ")
	b.tabTo("form.question [type=submit]")
	b.keys(kb.Enter)
	b.sees(".question.settled", "red")
	b.focused(".composer textarea")

	b.do(chromedp.Reload())
	b.sees(".message.agent", "The answer is red.")
	b.until(`document.querySelector('.status').textContent === 'Done'`)
	b.send("/say And this.")
	b.until(news + `.some((p) => p === 'Agent: And this.')`)
	if got := b.value(news + `.filter((p) => /Read|colour|new messages/.test(p)).join()`); got != "" {
		t.Errorf("after a reload the past is read out: %s", got)
	}
	b.clean()
	b.leavesNoImages()
}

// TestPageTabs checks that each tab controls a panel that it names, that the arrow keys, Home and End move between
// tabs, and that the selected one is in sight on a phone.
// mission: F2
func TestPageTabs(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, b := started(t)
	id := b.creates()
	const wrong = `[...document.querySelectorAll('[role=tab]')].filter((tab) => document.getElementById(tab.getAttribute('aria-controls'))?.getAttribute('role') !== 'tabpanel').map((tab) => tab.id).join()`
	const inSight = `(([row, tab]) => tab.left >= row.left - 1 && tab.right <= row.right + 1)(['[role=tablist]', '[role=tablist] [aria-selected=true]'].map((s) => document.querySelector(s).getBoundingClientRect()))`
	panel := func(label string) {
		t.Helper()
		b.until(`document.querySelector('[role=tablist] [aria-selected=true]').textContent === ` + quoted(label))
		if got := b.value(wrong); got != "" {
			t.Errorf("tabs without a panel: %s", got)
		}
		if got := b.value(`document.getElementById(document.getElementById(document.querySelector('[role=tablist] [aria-selected=true]').getAttribute('aria-controls')).getAttribute('aria-labelledby')).textContent`); got != label {
			t.Errorf("the panel of %s is called %s", label, got)
		}
		b.until(inSight)
	}
	panel("Conversation")
	b.tabTo("[role=tablist] [aria-selected=true]")
	b.keys(kb.End)
	panel("Usage")
	b.keys(kb.ArrowRight)
	panel("Conversation")
	b.keys(kb.ArrowLeft)
	panel("Usage")
	b.keys(kb.Home)
	panel("Conversation")
	b.accessible("tabs")

	b.do(emulation.SetDeviceMetricsOverride(390, 844, 1, true))
	for _, address := range []string{"#/s/" + id + "/usage", "#/b/" + h.Box() + "/usage"} {
		b.do(chromedp.Evaluate(`location.hash = `+quoted(address), nil))
		panel("Usage")
		b.do(chromedp.Reload())
		b.until(`document.querySelector('[role=tablist]')`)
		panel("Usage")
	}
	b.clean()
	b.leavesNoImages()
}

// TestPageFocus checks that the focus moves on purpose: to the heading of a new view, to the menu and back, and to a
// neighbour if the control that had it disappears.
// mission: F2
func TestPageFocus(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.New(t, "fake", host.GVisor(t))
	h.Up()
	for _, name := range []string{"one", "two", "three"} {
		h.Must("volume", "create", name)
	}
	b := browser(t)
	b.signedIn(h)
	b.focused("body") // a page that is opened moves no focus
	b.tabTo(".more summary")
	b.keys(kb.Enter)
	b.tabTo(`.more a[href="#/volumes"]`)
	b.keys(kb.Enter)
	b.sees("td", "two")
	b.focused("main h1")
	b.tabTo(`[aria-label="Delete two"]`)
	b.keys(kb.Enter)
	b.until(`document.activeElement.textContent === 'Keep it'`)
	b.keys(kb.Escape)
	b.focused(`[aria-label="Delete two"]`)
	b.keys(kb.Enter)
	b.until(`document.activeElement.textContent === 'Keep it'`)
	b.keys(kb.Tab, input.ModifierShift)
	b.keys(kb.Enter)
	b.until(`document.querySelectorAll('tbody tr').length === 2`)
	if got := b.value(`document.activeElement.closest('.list-view') !== null`); got != "true" {
		t.Errorf("after the row is gone, the focus is at %s", b.value(`document.activeElement.tagName`))
	}
	// The control that opened a dialog may disappear before the dialog closes.
	b.tabTo(`[aria-label="Delete three"]`)
	b.keys(kb.Enter)
	b.until(`document.activeElement.textContent === 'Keep it'`)
	b.do(chromedp.Evaluate(`document.querySelector('[aria-label="Delete three"]').remove()`, nil))
	b.keys(kb.Escape)
	b.focused("main h1")
	b.tabTo(`a.button[href="#/"]`)
	b.keys(kb.Enter)
	b.focused("[name=prompt]")
	b.do(chromedp.Evaluate(`history.back()`, nil))
	b.sees("td", "three")
	b.focused("main h1")

	// On a phone, the list covers the view, which then takes no focus and no clicks.
	b.do(emulation.SetDeviceMetricsOverride(390, 844, 1, true))
	b.do(chromedp.Evaluate(`document.querySelector('.menu').focus()`, nil))
	b.keys(kb.Enter)
	b.focused("#side a")
	for range 30 {
		b.keys(kb.Tab)
		if got := b.value(`document.activeElement.closest('main') === null`); got != "true" {
			t.Fatal("the view behind the list has the focus")
		}
	}
	b.do(chromedp.Evaluate(`document.querySelector('#side a').focus()`, nil))
	b.keys(kb.Escape)
	b.focused(".menu")
	b.keys(kb.Enter)
	b.focused("#side a")
	b.do(chromedp.MouseClickXY(375, 600))
	b.until(`!document.querySelector('#side').classList.contains('open')`)
	b.do(emulation.ClearDeviceMetricsOverride())
	b.clean()
}

// TestPageForcedColours checks that states that are otherwise shown by a colour can be seen with a forced palette, too.
// mission: F2
func TestPageForcedColours(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	_, b := started(t)
	b.creates()
	b.send("/say seen")
	b.sees(".message.agent", "seen")
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "forced-colors", Value: "active"}}))
	b.until(`matchMedia('(forced-colors: active)').matches`)
	for what, differs := range map[string]string{
		"the selected tab":  `getComputedStyle(document.querySelector('.tabs [aria-selected=true]')).borderBottomColor !== getComputedStyle(document.querySelector('.tabs [aria-selected=false]')).borderBottomColor`,
		"the open session":  `getComputedStyle(document.querySelector('.sessions [aria-current]')).outlineStyle === 'solid'`,
		"the state's dot":   `getComputedStyle(document.querySelector('.status'), '::before').borderTopStyle === 'solid'`,
		"the user's prompt": `getComputedStyle(document.querySelector('.message.user .text')).borderTopStyle === 'solid'`,
	} {
		if b.value(differs) != "true" {
			t.Errorf("%s cannot be seen", what)
		}
	}
	b.picture("forced-colours")
	b.clean()
	b.leavesNoImages()
}

// TestPagePolls checks that a poll waits for the answer before it asks again, that the page's files are compressed, and
// that views have no style of something else with the same name.
// mission: F2
func TestPagePolls(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.New(t, "fake", host.GVisor(t))
	h.Up()
	h.Must("sandbox", "create", "--name", "polled")
	box := h.Sandbox("polled").ID
	b := browser(t)
	b.signedIn(h)
	// Time runs faster, and answers are held back.
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(`{
			for (const name of ['setInterval', 'setTimeout']) { const real = window[name]; window[name] = (f, time, ...rest) => real(f, time >= 1000 && time < 30000 ? time / 50 : time, ...rest); }
			const real = window.fetch; const open = new Map(); window.most = new Map(); window.held = [];
			window.fetch = async (to, o) => {
				const name = new URL(to, location.href).pathname;
				if ((o?.method ?? 'GET') !== 'GET' || o?.headers?.Accept) return real(to, o);
				open.set(name, (open.get(name) ?? 0) + 1);
				window.most.set(name, Math.max(window.most.get(name) ?? 0, open.get(name)));
				if (window.holds) await new Promise((done) => window.held.push(done));
				try { return await real(to, { ...o, signal: undefined }); } finally { open.set(name, open.get(name) - 1); }
			};
		}`).Do(ctx)
		return err
	}), chromedp.Evaluate(`location.hash = '#/b/`+box+`/network'`, nil), chromedp.Reload())
	b.sees("h3", "Refused connections")
	b.until(`document.title === 'polled · Harvest'`)
	b.sees(".sessions", "No sessions yet.")
	b.run(`window.most.clear(); window.holds = true; let ticks = 0; await new Promise((done) => { const t = setInterval(() => { if (window.held.length >= 2 && ++ticks > 40) { clearInterval(t); done(); } }, 20); });`)
	for _, name := range []string{"/v1/sessions", "/v1/sandboxes/" + box} {
		if got := b.value(`window.most.get(` + quoted(name) + `)`); got != "1" {
			t.Errorf("%s requests for %s at once", got, name)
		}
	}
	b.run(`window.holds = false; for (const done of window.held) done();`)
	if got := b.value(`performance.getEntriesByType('resource').filter((e) => /\/ui\/.*\.(js|css)$/.test(e.name)
		&& !(e.encodedBodySize < e.decodedBodySize)).map((e) => e.name).join()`); got != "" {
		t.Errorf("files that came without compression: %s", got)
	}

	styles := map[string]bool{}
	for _, id := range []string{"sandboxes", "sessions", "images", "volumes", "secrets", "schedules", "keys",
		"costs", "audit"} {
		b.do(chromedp.Evaluate(`location.hash = '#/`+id+`'`, nil))
		b.until(`document.title.startsWith(document.querySelector('main h1')?.textContent) && document.querySelector('.more [aria-current]')?.hash === '#/` + id + `' && document.querySelector('.list-view')`)
		styles[b.value(`((s) => ['overflow', 'flexGrow', 'whiteSpace', 'maxHeight', 'rowGap', 'listStyleType', 'paddingLeft', 'display'].map((k) => s[k]).join(' '))(getComputedStyle(document.querySelector('.list-view')))`)] = true
	}
	if len(styles) != 1 {
		t.Errorf("the lists have different styles: %v", styles)
	}
	b.clean()
}
