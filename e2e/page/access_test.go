package page

import (
	"context"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/RelevanceAI/harvest/e2e/host"
	"github.com/RelevanceAI/harvest/internal/testenv"
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
// mission: 7.9, F2
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

// TestPageResumed checks that a resumed session has the name and the conversation of the one that it continues, and
// that heading, title and list show the name of the open session.
// mission: 7.8, 7.10
func TestPageResumed(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	_, b := started(t)
	first := b.creates()
	b.until(`document.title === 'New session · Harvest'`)
	b.send("/say the words of before\n/write kept.txt It is kept.")
	named := func() {
		t.Helper()
		b.until(`(([...all]) => all.every((t) => t.startsWith('/say the words of before')) && new Set(all).size === 1)([document.querySelector('h1')?.textContent ?? '', document.title.replace(' · Harvest', ''), document.querySelector('.sessions [aria-current] .title')?.textContent ?? ''])`)
	}
	b.sees(".message.agent", "the words of before")
	named()
	b.sees(".status", "Done")
	b.click(".top button", "End")
	b.click("dialog button", "End it")
	b.click(".ended .resume", "Continue with its files")
	b.until(`location.hash.startsWith('#/s/ses_') && !location.hash.includes(` + quoted(first) + `)`)
	b.sees(".start", "Sandbox ready in")
	b.sees(".message.user", "the words of before")
	b.sees(".message.agent", "the words of before")
	named()
	b.send("/say what came after")
	b.sees(".message.agent", "what came after")
	for range 2 {
		b.until(`(([...all]) => all.join('|').replace(/.*the words of before\|.*Continued.*what came after$/, 'ok') === 'ok')([...document.querySelectorAll('.items .message.agent, .items .note')].map((e) => e.textContent.trim()).filter((t) => t === 'the words of before' || t.startsWith('Continued') || t === 'what came after'))`)
		named()
		b.do(chromedp.Reload())
		b.sees(".message.agent", "what came after")
	}
	if links := b.value(`[...document.querySelectorAll('.top .what a')].map((a) => a.hash).join()`); !strings.HasSuffix(links, first) {
		t.Errorf("the earlier session is behind %s", links)
	}
	b.do(chromedp.Evaluate(`location.hash = '#/s/ses_01aaaaaaaaaaaaaaaaaaaaaaaa'`, nil))
	b.sees(".problem", "not found")
	b.until(`document.title === 'Session · Harvest'`)
	b.clean()
	b.leavesNoImages()
}

// TestPageResumedPast checks that a resumed session shows the earlier conversation as that session did: prompts, texts,
// tool calls with their results, changed files, questions with their answers, and the ends of turns. Tool calls are
// folded, and nothing can be answered or sent again. Without events, prompts and replies remain.
// mission: 7.5, 7.8, 7.10
func TestPageResumedPast(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	_, b := started(t)
	first := b.creates()
	b.send("/think a while\n/run echo from the past; echo more of it\n/write kept.txt It is kept.\n" +
		"/say the words of before")
	b.sees(".message.agent", "the words of before")
	b.sees(".status", "Done")
	b.send("/ask Which colour? | red | blue")
	b.sees("form.question legend", "Which colour?")
	b.do(chromedp.Evaluate(`document.querySelector('.composer textarea').focus()`, nil))
	b.types("green\r")
	b.sees(".question.settled", "Which colour? green")
	b.sees(".status", "Done")
	b.send("/ask And the size? | small | large")
	b.sees("form.question legend", "And the size?")
	b.click(".question button", "No answer")
	b.sees(".question.settled", "And the size? no answer")
	b.sees(".status", "Done")
	b.send("/run echo to no avail; exit 3")
	b.sees(".tool.failed .state", "exit 3")
	b.until(`document.querySelector('.items').lastElementChild.querySelector('.turn')`)
	b.send("/run until [ -e /tmp/go ]; do sleep 0.1; done")
	b.sees(".status", "Running a tool")
	b.send("/say never")
	b.press("Cancel: /say never")
	b.until(`document.querySelectorAll('.queue li').length === 0`)
	b.click(".composer button", "Stop")
	b.sees(".note", "Stopped")
	const parts = `[...document.querySelectorAll('.items > .item')].filter((e) => !e.querySelector('.start'))
		.map((e) => e.textContent)`
	live := b.value(`JSON.stringify(` + parts + `)`)
	b.send("/fail out of luck")
	b.sees(".problem button", "Send it again")
	b.click(".top button", "End")
	b.click("dialog button", "End it")
	b.click(".ended .resume", "Continue with its files")
	b.until(`location.hash.startsWith('#/s/ses_') && !location.hash.includes(` + quoted(first) + `)`)
	b.sees(".start", "Sandbox ready in")
	const past = `((all) => all.slice(0, all.findIndex((text) => text.startsWith('Continued'))))(` + parts + `)`
	for _, when := range []string{"at first", "after a reload"} {
		b.sees(".note", "Continued: the new session starts here")
		if got := b.value(`JSON.stringify(` + past + `.slice(0, -2))`); got != live {
			t.Errorf("%s, the past is %s, and was %s", when, got, live)
		}
		if got := b.value(past + `.slice(-2).join('; ')`); got != "/fail out of luck; out of luck" {
			t.Errorf("%s, the past ends with %q", when, got)
		}
		got := b.value(`document.querySelectorAll('.tool[open], .items form:not(.settled)').length + ' '
			+ [...document.querySelectorAll('.items button')].filter((e) => e.textContent === 'Send it again').length`)
		if got != "0 0" {
			t.Errorf("%s, open parts and buttons to send again: %s", when, got)
		}
		b.do(chromedp.Reload())
	}
	b.sees(".note", "Continued: the new session starts here")
	b.click(".tool summary", "from the past")
	b.sees(".tool[open] .output", "more of it")
	b.accessible("the past of a resumed session")
	b.picture("past")

	// The server removed the events. A turn that the agent has begun by itself is among the messages.
	b.do(chromedp.Evaluate(`window.through = window.fetch; window.fetch = async (to, o) => {
			if (String(to).includes(`+quoted(first)+`) && String(to).endsWith('/events')) return new Response(
				'id: 0\n\nevent: stream.pruned\ndata: {"after":0,"first":1000000}\n\n');
			const r = await window.through(to, o);
			if (!String(to).includes(`+quoted(first+"/messages")+`)) return r;
			const page = await r.json();
			page.data.push({ id: 'own', own: true, prompt: 'a timer', state: 'completed', reply: 'By itself.' });
			return Response.json(page);
		};
		window.here = location.hash; location.hash = '#/'`, nil))
	b.sees("button", "Create a sandbox")
	b.do(chromedp.Evaluate(`location.hash = window.here`, nil))
	b.sees(".note", "Continued: the new session starts here")
	b.sees(".message.user", "/ask Which colour?")
	b.sees(".message.agent", "the words of before")
	b.sees(".note", "The turn failed.")
	b.sees(".note", "Stopped.")
	b.sees(".note", "The agent continued by itself: a timer")
	b.sees(".message.agent", "By itself.")
	b.until(`document.querySelectorAll('.tool, .question').length === 0`)
	if got := b.value(`document.querySelector('.log').textContent.includes('/say never')`); got != "false" {
		t.Error("a prompt that was cancelled is in the conversation")
	}
	b.clean()
	b.leavesNoImages()
}
