package page

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestPageHoldsQueue checks that Stop ends the turn first and holds the queued prompts on the server: another browser
// has them, and can send or cancel each, or send all of them; they outlive a restart of the server.
// mission: 7.4, F2
func TestPageHoldsQueue(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	port := testenv.FreePort(t)
	stop := h.UpUntil("--listen", "127.0.0.1:"+port)
	b := browser(t)
	b.do(chromedp.Navigate(h.Must("key", "link")))
	b.sees("button", "Sign in")
	b.accessible("sign in")
	b.picture("link")
	button := b.value(`getComputedStyle(document.querySelector('#sign-in')).backgroundColor`)
	b.loads("#sign-in")
	b.sees("button", "Create a sandbox")
	if want := b.value(`getComputedStyle(document.querySelector('form .primary')).backgroundColor`); button != want {
		t.Errorf("the button that signs in has the colour %s, and those of the page %s", button, want)
	}
	spinner := `(() => {
		const p = document.body.appendChild(document.createElement('p'));
		const s = p.appendChild(document.createElement('span'));
		s.className = 'spinner';
		s.style.animation = 'none';
		const { width, height } = s.getBoundingClientRect();
		p.remove();
		return width > 8 && width === height; })()`
	if b.value(spinner) == "false" {
		t.Error("the spinner in a text is not round")
	}
	id := b.creates()
	b.send("/run sleep 600")
	b.sees(".status", "Running a tool")
	for _, prompt := range []string{"/say one", "/say two", "/say three", "/say four"} {
		b.send(prompt)
		b.sees(".queue", prompt)
	}
	// Cancelling fails: the stop does not depend on it.
	b.do(chromedp.Evaluate(`{ window.asked = []; const real = window.real = window.fetch; window.fetch = (to, o) => {
		const at = String(to).replace(/.*ses_\w+/, '');
		if (at !== String(to) && o?.method !== undefined && o.method !== 'GET') window.asked.push(o.method + ' ' + at);
		return o?.method === 'DELETE' ? Promise.reject(new TypeError('no connection')) : real(to, o); }; }`, nil))
	b.click(".composer button", "Stop")
	b.sees(".note", "Stopped")
	b.until(heldPrompts + ` === '/say one | /say two | /say three | /say four'`)
	b.do(chromedp.Evaluate(`window.fetch = window.real`, nil))
	if got := b.value(`window.asked.join()`); got != "POST /stop?hold=true" {
		t.Errorf("the requests of Stop are %s", got)
	}
	b.sees(".status", "Done")
	b.accessible("held prompts")
	b.picture("held")
	var listed []struct{ ID, State, Prompt string }
	if err := json.Unmarshal([]byte(h.Must("queue", "ls", id, "-o", "json")), &listed); err != nil {
		t.Fatal(err)
	}
	if len(listed) != 4 || listed[1].State != "held" || listed[1].Prompt != "/say two" {
		t.Errorf("harvest queue ls: %+v", listed)
	}

	stop()
	defer h.UpUntil("--listen", "127.0.0.1:"+port)()
	other := b.another()
	other.signedIn(h)
	other.do(chromedp.Evaluate(`location.hash = '#/s/`+id+`'`, nil))
	other.until(heldPrompts + ` === '/say one | /say two | /say three | /say four'`)
	other.press("Cancel: /say one")
	b.until(heldPrompts + ` === '/say two | /say three | /say four'`)
	other.press("Send next: /say three")
	b.sees(".message.agent", "three")
	b.until(heldPrompts + ` === '/say two | /say four'`)
	other.click(".queue button", "Send all 2 held prompts")
	b.sees(".message.agent", "four")
	b.until(`document.querySelector('.queue').children.length === 0`)
	said := `[...document.querySelectorAll('.message.agent .text')].map((e) => e.textContent.trim()).join()`
	if got := b.value(said); got != "three,two,four" {
		t.Errorf("the agent said %s", got)
	}
	if out := h.Must("queue", "ls", id, "-o", "name"); out != "" {
		t.Errorf("the queue still has %s", out)
	}
	other.clean()
	b.leavesNoImages()
}

// TestPageAnswersGoToTheirQuestions checks that each answer goes to its question, typed into its field or into the
// prompt, that a question shows when the agent decides it itself, and that typed words decide no approval.
// mission: 7.4
func TestPageAnswersGoToTheirQuestions(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	b.creates()
	b.send("/ask Which colour? | red | blue || Which size? | small | large")
	b.sees("form.question legend", "Which size?")
	b.until(`/^Without an answer in (\d+ min )?[\d.]+ s, the agent decides itself\.$/.test(
		document.querySelector('.question .deadline').textContent)`)
	b.until(`document.title.startsWith('Waiting for you: ')`)
	b.accessible("two questions")
	b.picture("two-questions")
	fields := `document.querySelectorAll('form.question input[type=text]')`
	b.do(chromedp.Evaluate(fields+`[0].focus()`, nil))
	b.types("green\r")
	b.sees("form.question [role=alert]", "each question")
	b.until(`document.activeElement === ` + fields + `[1]`)
	b.types("huge\r")
	b.sees(".message.agent", "The answer is green, then huge.")

	b.send("/ask First? | a || Second? || Third?")
	b.until(`document.querySelectorAll('form.question:not(.settled) fieldset').length === 3`)
	for i, words := range []string{"one", "two", "three"} {
		b.until(`document.querySelector('.composer textarea').placeholder === 'Your answer to: ` +
			[]string{"First?", "Second?", "Third?"}[i] + `'`)
		b.do(chromedp.Evaluate(`document.querySelector('.composer textarea').focus()`, nil))
		b.types(words + "\r")
	}
	b.sees(".message.agent", "The answer is one, then two, then three.")
	b.sees(".question.settled", "Third? three")

	turn := b.value(`[...document.querySelectorAll('link[rel=modulepreload], script[src]')]
		.map((e) => e.href || e.src).find((a) => a.endsWith('/app.js')).replace('app.js', 'turn.js')`)
	input := b.run(`const { Tool } = await import('` + turn + `');
		return new Tool({ tool: 'Odd', input: { dir: 'C:\\x', deep: { n: 1 } } }).el.querySelector('pre').textContent;`)
	if input != "dir: C:\\x\ndeep: {\"n\":1}" {
		t.Errorf("the input of a tool is shown as %q", input)
	}
	b.run(`const { question } = await import('` + turn + `');
		window.form = question('ses_none', { id: 'q', tool: 'Bash', input: { command: 'ls' } });
		document.querySelector('.foot').prepend(window.form);
		window.sent = [];
		const real = window.fetch;
		window.fetch = async (to, o) => {
			if (!String(to).includes('/answers/')) return real(to, o);
			window.sent.push(o.body);
			return new Response(null, { status: 204 });
		};`)
	for _, words := range []string{"Yes, go ahead", "yes", "no"} {
		if took := b.run(`return window.form.say(` + quoted(words) + `)`); took != "false" {
			t.Errorf("%q is taken as an answer", words)
		}
	}
	b.sees("form.question:not(.settled) [role=alert]", "Nothing is decided yet: press Allow or Deny.")
	b.picture("approval-undecided")
	b.do(chromedp.Evaluate(`window.form.querySelector('input').value = 'not on main'`, nil))
	b.click("form.question:not(.settled) button", "Deny")
	if got := b.value(`window.sent.join()`); got != `{"allow":false,"message":"not on main"}` {
		t.Errorf("sent: %s", got)
	}
	b.do(chromedp.Reload())
	b.sees(".status", "Done")
	h.Must("end", "--discard", strings.TrimPrefix(b.value(`location.hash`), "#/s/"))
	b.clean()
	b.leavesNoImages()
}

// TestPageShowsState checks that the page shows the recorded state of a session while its events load, a stopped
// command as stopped, the failure of a clone as one, and the state in the title.
// mission: 7.5, 7.7, 7.8, 7.10
func TestPageShowsState(t *testing.T) {
	t.Parallel()
	_, b := started(t)
	id := b.creates()
	b.until(`document.title === 'New session · Harvest'`)
	b.do(chromedp.Evaluate(`location.hash = '#/sandboxes'`, nil))
	b.click(".of-sandboxes button.danger", "End")
	b.sees("dialog", "Its files are kept as a snapshot.")
	b.click("dialog button", "Keep it")
	b.do(chromedp.Evaluate(`location.hash = '#/s/`+id+`'`, nil))
	b.sees(".status", "Ready")
	b.send("  indented\n/run sleep 600")
	b.sees(".status", "Running a tool")
	b.until(`document.title.startsWith('Working: ')`)
	b.until(`document.querySelector('.message.user .text').textContent === '  indented\n/run sleep 600'`)
	b.picture("working")
	b.click(".composer button", "Stop")
	b.sees(".tool .state", "stopped")
	b.until(`document.title.startsWith('Done: ') && !document.querySelector('.tool.failed')`)
	b.ends()
	b.until(`document.title.startsWith('Ended: ')`)

	// The events come late: until then, the page has only the record.
	b.do(chromedp.Evaluate(`location.hash = '#/'`, nil))
	b.sees("button", "Create a sandbox")
	b.do(chromedp.Evaluate(`{ window.states = [];
		const real = window.fetch;
		window.fetch = (to, o) => (String(to).includes('attended=true')
			? new Promise((done) => { window.go = () => { window.fetch = real; done(real(to, o)); }; }) : real(to, o));
		new MutationObserver(() => {
			for (const e of document.querySelectorAll('.status, .start summary')) window.states.push(e.textContent);
		}).observe(document.body, { childList: true, subtree: true, characterData: true });
		location.hash = '#/s/`+id+`'; }`, nil))
	b.until(`window.go`)
	b.sees(".status", "Ended")
	b.picture("loading")
	b.do(chromedp.Evaluate(`window.go()`, nil))
	b.sees(".ended", "This session has ended")
	b.sees(".start", "Sandbox ready in")
	others := `[...new Set(window.states)].filter(
		(s) => !/^(Ended|Start of the sandbox|Sandbox ready in .*)$/.test(s)).join()`
	if got := b.value(others); got != "" {
		t.Errorf("while the events load, the page shows %s", got)
	}

	b.click(".ended a.button", "New session")
	b.fill("Repository", "http://10.0.2.2:1/nosuch.git")
	b.click("button", "Create a sandbox")
	b.sees(".start .problem", "")
	b.sees(".start summary", "The repository could not be cloned")
	b.sees(".ended", "The repository could not be cloned.")
	b.until(`document.title.startsWith('Failed: ')`)
	b.picture("no-clone")
	b.clean()
	b.leavesNoImages()
}
