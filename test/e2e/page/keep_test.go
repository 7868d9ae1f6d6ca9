package page

import (
	"os"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// started returns a server of its own and a browser that is signed in to it.
func started(t *testing.T) (*host.Host, *tab) {
	t.Helper()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Up()
	b := browser(t)
	b.signedIn(h)
	return h, b
}

// edits replaces the text in the editor, as typing does.
func (b *tab) edits(text string) {
	b.t.Helper()
	b.do(chromedp.Evaluate(`{ const e = document.querySelector('textarea.code'); e.focus(); e.value = `+quoted(text)+`; e.dispatchEvent(new Event('input', { bubbles: true })); }`, nil))
}

// opens shows the files of a sandbox and opens one of them.
func (b *tab) opens(name string) {
	b.t.Helper()
	if b.value(`document.querySelector('.panel .tree') === null`) == "true" {
		b.view("Files")
	}
	b.click(".tree .entry", name)
	b.until(`document.querySelector('.opened code')?.textContent.endsWith(` + quoted("/"+name) + `)`)
}

// file returns a file's bytes, quoted as JSON, and its tag.
func (b *tab) file(box, path string) (text, tag string) {
	b.t.Helper()
	got := b.run(`const r = await fetch('v1/sandboxes/` + box + `/files?path=` + path + `'); return JSON.stringify(new TextDecoder('utf-8', { ignoreBOM: true }).decode(await r.arrayBuffer())) + ' ' + r.headers.get('ETag');`)
	at := strings.LastIndexByte(got, ' ')
	return got[:at], got[at+1:]
}

// TestPageKeepsFiles checks that the editor of files writes only a person's changes, asks before it replaces other
// changes, and keeps unsaved ones.
// mission: F2
func TestPageKeepsFiles(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	b.creates()
	box := h.Must("sandbox", "ls", "-o", "name")
	sh := func(script string) { t.Helper(); h.Must("sandbox", "exec", box, "--", "sh", "-c", script) }
	dir := b.run(`return (await (await fetch('v1/sessions')).json()).data[0].dir`)
	sh(`cd ` + dir + ` && printf '\357\273\277one\r\ntwo\nthree\r\nfour' > mixed.txt && printf 'a\nb\n' > plain.txt`)

	// Line endings, byte order mark and the end of the file stay; nothing is written without a change.
	b.opens("mixed.txt")
	_, before := b.file(box, dir+"/mixed.txt")
	b.click("button", "Save")
	b.sees(".opened [role=status]", "There is nothing to save.")
	if _, tag := b.file(box, dir+"/mixed.txt"); tag != before {
		t.Errorf("a file that nobody changed was written: %s, before %s", tag, before)
	}
	b.edits("one\ntwo\nbetween\nthree\nfour")
	b.click("button", "Save")
	b.sees(".opened [role=status]", "Saved")
	if text, _ := b.file(box, dir+"/mixed.txt"); text != quoted("\ufeffone\r\ntwo\nbetween\r\nthree\r\nfour") {
		t.Errorf("the file is %s", text)
	}

	b.edits("ONE\ntwo\nbetween\nthree\nFOUR")
	b.click("button", "Save")
	b.sees(".opened [role=status]", "Saved")
	if text, _ := b.file(box, dir+"/mixed.txt"); text != quoted("\ufeffONE\r\ntwo\nbetween\r\nthree\r\nFOUR") {
		t.Errorf("after two edits, the file is %s", text)
	}

	// Another version can be compared, overwritten or loaded.
	b.edits("mine")
	sh(`cd ` + dir + ` && echo theirs > mixed.txt`)
	b.click("button", "Save")
	b.sees("dialog", "The file has changed")
	b.click("dialog button", "Compare")
	b.until(`document.querySelector('dialog .diff')?.textContent === '-theirs\n+mine\n'`)
	b.accessible("a conflict")
	b.picture("conflict")
	b.click("dialog button", "Keep editing")
	b.click("button", "Save")
	b.sees("dialog", "The file has changed")
	// Replace means the version that the dialog has shown, and none that comes after it.
	sh(`cd ` + dir + ` && echo later > mixed.txt`)
	b.click("dialog button", "Replace")
	b.sees("dialog", "The file has changed")
	b.click("dialog button", "Compare")
	b.until(`document.querySelector('dialog .diff')?.textContent === '-later\n+mine\n'`)
	b.click("dialog button", "Replace")
	b.until(`!document.querySelector('dialog')`)
	b.sees(".opened [role=status]", "Saved")
	if text, _ := b.file(box, dir+"/mixed.txt"); text != quoted("\ufeffmine") {
		t.Errorf("after Replace: %s", text)
	}
	b.edits("again")
	sh(`cd ` + dir + ` && echo others > mixed.txt`)
	b.click("button", "Save")
	b.click("dialog button", "Discard changes")
	b.until(`document.querySelector('textarea.code').value === 'others\n'`)

	// Unsaved changes survive other views and a reload, and the page asks before it is left.
	b.edits("unsaved, too")
	b.opens("plain.txt")
	b.edits("a\nb\nunsaved\n")
	b.do(chromedp.Evaluate(`document.querySelector('textarea.code').blur()`, nil))
	if b.value(`(() => { const e = new Event('beforeunload', { cancelable: true }); dispatchEvent(e); return e.defaultPrevented; })()`) != "true" {
		t.Error("the page can be left with unsaved changes, unasked")
	}
	b.view("Start")
	b.do(chromedp.Reload())
	b.view("Files")
	b.until(`[...document.querySelectorAll('.tree li')].filter(
		(e) => e.textContent.includes('unsaved changes')).length === 2`)
	b.opens("mixed.txt")
	b.until(`document.querySelector('textarea.code').value === 'unsaved, too'`)
	b.click("button", "Discard changes")
	b.until(`document.querySelector('textarea.code').value === 'others\n'`)
	b.opens("plain.txt")
	b.sees(".opened [role=status]", "unsaved changes")
	b.until(`document.querySelector('textarea.code').value === 'a\nb\nunsaved\n'`)
	b.click("button", "Discard changes")
	b.until(`document.querySelector('textarea.code').value === 'a\nb\n'`)
	b.discardsOld(dir, sh)
	if b.value(`(() => { const e = new Event('beforeunload', { cancelable: true }); dispatchEvent(e); return e.defaultPrevented; })()`) != "false" {
		t.Error("the page asks although nothing is unsaved")
	}

	// An existing file is replaced only after the person confirms: by a new file, and by an upload.
	b.click("button", "New file")
	b.fill("Name", "plain.txt")
	b.click("dialog button", "Create it")
	b.until(`document.querySelector('textarea.code').value === ''`)
	b.edits("new")
	b.click("button", "Save")
	b.sees("dialog", "The file exists already")
	b.click("dialog button", "Keep editing")
	const drop = `{ const data = new DataTransfer(); data.items.add(new File(['sent'], 'plain.txt')); data.items.add(new File(['fresh'], 'fresh.txt'));
		document.querySelector('.drop').dispatchEvent(new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })); }`
	b.do(chromedp.Evaluate(drop, nil))
	b.sees("dialog", "These exist already: plain.txt.")
	if text, _ := b.file(box, dir+"/plain.txt"); text != quoted("a\nb\n") {
		t.Errorf("before Replace: %s", text)
	}
	b.click("dialog button", "Replace")
	testenv.Eventually(t, "the upload replaces the file",
		func() bool { text, _ := b.file(box, dir+"/plain.txt"); return text == quoted("sent") })
	if text, _ := b.file(box, dir+"/fresh.txt"); text != quoted("fresh") {
		t.Errorf("the other file: %s", text)
	}

	// The end of the session names edits that it would lose, and then they are gone.
	b.opens("mixed.txt")
	b.edits("never saved")
	b.do(chromedp.Evaluate(`document.querySelector('textarea.code').blur()`, nil))
	b.click("header button", "End")
	b.sees("dialog", "Your unsaved changes are discarded: "+dir+"/plain.txt, "+dir+"/mixed.txt.")
	b.confirmsEnd()
	b.sees(".ended", "This session has ended")
	b.until(`(() => { const e = new Event('beforeunload', { cancelable: true }); dispatchEvent(e);
		return !e.defaultPrevented; })()`)
	b.clean()
	b.leavesNoImages()
}

// discardsOld checks that the text of the file is shown when edits are discarded that are older than it.
func (b *tab) discardsOld(dir string, sh func(string)) {
	b.t.Helper()
	b.edits("old edits")
	b.do(chromedp.Evaluate(`document.querySelector('textarea.code').blur()`, nil))
	sh(`cd ` + dir + ` && printf newer > plain.txt`)
	b.opens("mixed.txt")
	b.opens("plain.txt")
	b.sees(".opened [role=status]", "The file has changed since you edited it.")
	b.until(`document.querySelector('textarea.code').value === 'old edits'`)
	b.click("button", "Discard changes")
	b.until(`document.querySelector('textarea.code').value === 'newer'`)
	b.edits("newer and mine") // what is saved now replaces the newer text, without a question
	b.click("button", "Save")
	b.sees(".opened [role=status]", "Saved")
	sh(`cd ` + dir + ` && printf 'a\nb\n' > plain.txt`)
	b.opens("mixed.txt")
	b.opens("plain.txt")
}

// TestPageKeepsForms checks that a form keeps its text when another action succeeds, that a variable of a secret is
// replaced only after the person confirms, and that a prompt that the server refuses stays.
// mission: F2
func TestPageKeepsForms(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	h.Must("volume", "create", "old")
	b.do(chromedp.Evaluate(`location.hash = '#/volumes'`, nil))
	b.sees(".of-volumes td", "old")
	b.fill("New volume", "half a na")
	b.press("Delete old")
	b.click("dialog button", "Delete it")
	b.sees(".of-volumes", "There is no volume.")
	b.until(`document.querySelector('.of-volumes form input').value === 'half a na'`)
	b.fill("New volume", "new")
	b.click(".of-volumes button", "Create")
	b.sees(".of-volumes td", "new")
	b.until(`document.querySelector('.of-volumes form input').value === ''`)

	b.do(chromedp.Evaluate(`location.hash = '#/secrets'`, nil))
	set := func(variable, value string) {
		t.Helper()
		b.fill("Secret", "keys")
		b.fill("Variable", variable)
		b.fill("Value", value)
		b.click(".of-secrets button", "Set")
	}
	set("KEY", "first")
	b.sees(".of-secrets td", "KEY")
	value := func() string { t.Helper(); return h.Must("run", "--secret", "keys", "--", "sh", "-c", "echo $KEY") }
	set("KEY", "second")
	b.sees("dialog", "Replace KEY of keys?")
	b.accessible("a variable to replace")
	b.click("dialog button", "Keep it")
	b.until(`!document.querySelector('dialog')`)
	if got := value(); got != "first" {
		t.Errorf("the value is %q, before the person agreed", got)
	}
	b.until(`document.querySelector('.of-secrets [type=password]').value === 'second'`)
	b.click(".of-secrets button", "Set")
	b.click("dialog button", "Replace it")
	b.until(`document.querySelector('.of-secrets [type=password]').value === ''`)
	if got := value(); got != "second" {
		t.Errorf("the value is %q", got)
	}
	set("OTHER", "third") // another variable needs no question
	b.sees(".of-secrets td", "OTHER")

	b.do(chromedp.Evaluate(`location.hash = '#/'`, nil))
	b.creates()
	b.do(chromedp.Evaluate(`{ const e = document.querySelector('.composer textarea');
		e.value = 'x'.repeat(1100000); e.form.requestSubmit(); }`, nil))
	b.sees(".composer .problem", "more than the maximum")
	b.until(`document.querySelector('.composer textarea').value.length === 1100000`)
	b.clean()
	b.leavesNoImages()
}

// TestPageKeepsPrompts checks that unsent prompts are kept for each session and for the next one, and that a prompt or
// session that is submitted twice exists once.
// mission: 7.4, F2
func TestPageKeepsPrompts(t *testing.T) {
	t.Parallel()
	_, b := started(t)
	sessions := func() string { return b.run(`return (await (await fetch('v1/sessions?all=true')).json()).data.length`) }

	b.do(chromedp.Evaluate(`document.querySelector('.new details').open = true`, nil))
	b.fill("First prompt", "/say the first prompt")
	b.fill("Lifetime, hours", "2")
	b.click("label.choice", "Upload the files at the end")
	const form = `(({ prompt, hours, init, sync }) => [prompt.value, hours.value, init.checked, sync.checked,
		hours.checkVisibility()].join())(document.querySelector('form.new')?.elements ?? {})`
	const filled = `document.querySelector('form.new') && ` + form + ` === '/say the first prompt,2,true,false,true'`
	b.do(chromedp.Evaluate(`location.hash = '#/secrets'`, nil))
	b.sees("main", "Secrets")
	b.do(chromedp.Evaluate(`location.hash = '#/'`, nil))
	b.reloads(filled)

	// The answers to the request are lost on the way; then it is submitted twice more.
	b.do(chromedp.Evaluate(`window.through = window.fetch; window.fetch = async (to, o) => {
		const r = await window.through(to, o);
		if (o?.method === 'POST' && String(to).endsWith('/sessions')) throw new TypeError('lost');
		return r;
	}`, nil))
	b.click("button", "Create a sandbox")
	b.sees(".problem", "cannot be reached")
	b.sees("button", "Create a sandbox")
	b.reloads(filled)
	b.do(chromedp.Evaluate(`{ const f = document.querySelector('form.new');
		f.requestSubmit(); f.requestSubmit(); }`, nil))
	b.sees(".message.agent", "the first prompt")
	if n := sessions(); n != "1" {
		t.Errorf("%s sessions were made", n)
	}

	b.do(chromedp.Evaluate(`document.querySelector('.composer textarea').focus()`, nil))
	b.types("half a thought")
	session := b.value(`location.hash`)
	b.do(chromedp.Evaluate(`location.hash = '#/'`, nil))
	b.until(`document.querySelector('form.new') && ` + form + ` === ',,true,true,false'`)
	b.do(chromedp.Evaluate(`location.hash = `+quoted(session), nil))
	b.until(`document.querySelector('.composer textarea')?.value === 'half a thought'`)
	b.do(chromedp.Reload())
	b.until(`document.querySelector('.composer textarea')?.value === 'half a thought'`)

	b.do(chromedp.Evaluate(`window.through = window.fetch; window.fetch = async (to, o) => {
		const r = await window.through(to, o);
		if (o?.method === 'POST' && String(to).endsWith('/messages')) throw new TypeError('lost');
		return r;
	}; { const e = document.querySelector('.composer textarea'); e.value = '/say once only'; e.form.requestSubmit(); }`, nil))
	b.sees(".composer .problem", "cannot be reached")
	b.until(`document.querySelector('.composer textarea').value === '/say once only'`)
	b.do(chromedp.Evaluate(`window.fetch = window.through; document.querySelector('.composer').requestSubmit()`, nil))
	b.until(`document.querySelector('.composer textarea').value === ''`)
	b.sees(".message.agent", "once only")
	b.send("/say the end")
	b.sees(".message.agent", "the end")
	if got := b.value(`[...document.querySelectorAll('.message.user')].filter((e) => e.textContent.includes('once only')).length`); got != "1" {
		t.Errorf("the prompt was sent %s times", got)
	}
	b.clean()
	b.leavesNoImages()
}

// One event, one long line or one large change does not stop the page, and outputs have their colours.
// mission: 7.4, 7.6, F2
func TestPageBearsMuch(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	_, b := started(t)
	b.creates()

	got := b.run(`const { follow } = await import(new URL('api.js', document.querySelector('script[type=module]').src));
		const real = window.fetch;
		const pieces = ['id: 1\nevent: a\ndata: {}\n\nid: 2\nevent: bad\ndata: {}\n\nid: 3\nevent: bad\ndata: no json\n\n',
			'id: 3\nevent: a\ndata: {}\n\nid: 4\nevent: z\ndata: {}\n\n'];
		window.fetch = (to, o) => (String(to).endsWith('/broken') ? (seen.push('after ' + o.headers['Last-Event-ID']),
			Promise.resolve(new Response(pieces.shift()))) : real(to, o));
		const seen = [];
		await new Promise((done) => {
			const stop = follow('broken', { event: (name) => { if (name === 'bad') throw new Error('out of order'); seen.push(name); if (name === 'z') { stop(); done(); } },
				state: () => {}, problem: () => {}, broken: (name, err) => seen.push(name + ' ' + err.message.split(' ')[0]) });
		});
		window.fetch = real;
		return seen.join(', ');`)
	if got != "after undefined, a, bad out, bad Unexpected, after 3, z" {
		t.Errorf("the stream went on with %s", got)
	}

	b.send("/run printf '\\033[1;31mred\\033[0m plain \\033[38;5;46mgreen\\033[0m\\rover it\\n'; printf 'p 1%%\\rp 100%%\\n'; head -c 30000 /dev/zero | tr '\\0' x; echo; head -c 100000 /dev/zero | tr '\\0' y > long.txt; seq 140000 > many.txt; seq 5000")
	b.sees(".status", "Done")
	b.click(".tool button", "Show all")
	b.sees(".tool .output", "over it")
	b.sees(".tool .output", "p 100%")
	if got := b.value(`document.querySelector('.tool .output').textContent.includes('p 1%')`); got != "false" {
		t.Error("the text before a carriage return is shown")
	}
	b.sees(".tool .output button", "more characters")
	b.click(".tool .output button", "Show")
	b.until(`document.querySelectorAll('.tool .output > span').length > 2000`)
	b.send("/run printf '\\033[1;31mred\\033[0m \\033[38;2;1;2;3mown\\033[0m\\n'")
	b.sees(".tool .output .ansi-red.ansi-bold", "red")
	b.until(`[...document.querySelectorAll('.tool .output span')].some((e) => e.textContent === 'own' && e.style.color === 'rgb(1, 2, 3)')`)

	b.do(chromedp.Evaluate(`window.until = async (find) => { const begun = performance.now(); while (!find()) await new Promise(requestAnimationFrame); return Math.round(performance.now() - begun); }`, nil))
	if took := b.run(`document.querySelector('[data-tab=changes]').click(); return until(() => document.querySelector('.of-changes .diff span'))`); os.Getenv(measure) != "" {
		t.Logf("Changes opens with 140,000 lines in %s ms, of which the request takes %s ms", took,
			b.value(`Math.round(performance.getEntriesByType('resource').filter((e) => e.name.endsWith('/diff')).at(-1).duration)`))
	}
	b.sees(".of-changes summary", "many.txt")
	b.sees(".of-changes .diff button", "more of 139,")
	if n := b.value(`document.querySelectorAll('.of-changes .diff span').length`); len(n) > 4 {
		t.Errorf("%s lines of a diff are in the page", n)
	}
	b.sees(".of-changes .diff button", "98,001 more characters")
	if wide := b.value(`document.documentElement.scrollWidth - innerWidth`); wide != "0" {
		t.Errorf("with a long line, the page is %s pixels too wide", wide)
	}
	b.click(".of-changes .diff button", "more characters")
	b.until(`[...document.querySelectorAll('.of-changes .diff .added')].some(
		(e) => e.textContent === '+' + 'y'.repeat(100000) + '\n')`)
	b.click(".of-changes .diff button", "Show")
	b.until(`document.querySelectorAll('.of-changes .diff span').length > 2000`)
	b.picture("large-change")
	b.click(".top button", "End")
	b.click("dialog .danger", "End")
	b.sees("dialog", "End the session and discard changes?")
	if took := b.run(`document.querySelector('dialog .danger').click(); return until(() => document.querySelector('.ended summary'))`); os.Getenv(measure) != "" {
		t.Logf("End shows its notice in %s ms", took)
	}
	b.sees(".ended", "This session has ended")
	b.sees(".ended summary", "The agent's changes")
	b.clean()
	b.leavesNoImages()
}

// TestPageAnswers checks that text typed while a question is open answers it, that questions stay in the history with
// their answers, and that a stop holds the queued prompts.
// mission: 7.4, 7.5, 7.10
func TestPageAnswers(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	_, b := started(t)
	b.creates()

	b.send("/ask Which colour? | red | blue")
	b.sees("form.question legend", "Which colour?")
	b.sees(".composer [type=submit]", "Answer")
	b.do(chromedp.Evaluate(`document.querySelector('.composer textarea').focus()`, nil))
	b.types("green\r")
	b.sees(".message.agent", "The answer is green.")
	b.sees(".question.settled", "Which colour? green")
	b.send("/ask And the size? | small | large")
	b.sees("form.question legend", "And the size?")
	b.click(".question button", "No answer")
	b.sees(".question.settled", "And the size? no answer")
	b.do(chromedp.Reload())
	b.until(`[...document.querySelectorAll('.question.settled')].map((e) => e.textContent).join('; ').startsWith('Which colour? green; And the size? no answer')`)
	b.accessible("answers")

	b.sees(".status", "Done")
	b.send("/run until [ -e /tmp/go ]; do sleep 0.1; done")
	b.sees(".status", "Running a tool")
	for _, prompt := range []string{"/say held one", "/say held two"} {
		b.send(prompt)
		b.sees(".queue", prompt)
	}
	b.click(".composer button", "Stop")
	b.sees(".note", "Stopped")
	b.until(`document.querySelectorAll('.queue .held').length === 2`)
	b.picture("held")
	b.do(chromedp.Reload())
	b.until(`document.querySelectorAll('.queue .held').length === 2`)
	b.press("Cancel: /say held two")
	b.until(`document.querySelectorAll('.queue .held').length === 1`)
	// A prompt that the server refuses stays.
	b.do(chromedp.Evaluate(`window.through = window.fetch; window.fetch = async (to, o) => (
		o?.method === 'POST' && String(to).includes('/release')
			? Response.json({ detail: 'refused for a test' }, { status: 400 }) : window.through(to, o))`, nil))
	b.click(".queue button", "Send next")
	b.sees(".composer .problem", "refused for a test")
	b.do(chromedp.Evaluate(`window.fetch = window.through`, nil))
	b.until(heldPrompts + ` === '/say held one'`)
	b.click(".queue button", "Send next")
	b.sees(".message.agent", "held one")
	b.until(`document.querySelectorAll('.queue li').length === 0`)
	if got := b.value(`document.querySelector('.log').textContent.includes('held two')`); got != "false" {
		t.Error("a prompt that was discarded is in the conversation")
	}

	b.send("Headings:\n\n# One\n\n## Two\n\n### Three\n\n#### Four\n\n" +
		"A list:\n\n- [x] done\n- [ ] open\n\n| left | right |\n|---|--:|\n| a | 1 |\n\nשלום עולם")
	b.sees(".message.agent li", "☑ done")
	b.sees(".message.agent li", "☐ open")
	b.until(`[...document.querySelectorAll('.message.agent td')].some((e) => e.textContent === '1' && getComputedStyle(e).textAlign.endsWith('right'))`)
	b.until(`[...document.querySelectorAll('.message.agent p')].some((e) => e.textContent.includes('שלום') && getComputedStyle(e).direction === 'rtl')`)
	b.until(`['h1', 'h2', 'h3', 'h4', 'p'].map((tag) => [...document.querySelectorAll('.message.agent ' + tag)].at(-1))
		.map((e) => parseFloat(getComputedStyle(e).fontSize)).every((size, i, all) => i === 0 || size < all[i - 1])`)
	b.clean()
	b.leavesNoImages()
}

// TestPageAddresses checks that Back returns from view to view, and that an address opened before the sign-in is shown
// after it.
// mission: F2
func TestPageAddresses(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, b := started(t)
	id := b.creates()
	b.view("Files")
	b.view("Changes")
	b.do(chromedp.Evaluate(`window.here = document.querySelector('.log')`, nil))
	for _, want := range []string{"Files", "Conversation"} {
		b.do(chromedp.Evaluate(`history.back()`, nil))
		b.until(`document.querySelector('.tabs [aria-selected=true]').textContent === ` + quoted(want))
	}
	if b.value(`window.here === document.querySelector('.log')`) != "true" {
		t.Error("the conversation was made anew")
	}
	b.do(chromedp.Evaluate(`history.forward()`, nil))
	b.until(`document.querySelector('.tabs [aria-selected=true]').textContent === 'Files'`)
	b.send("/say a title for it")
	b.until(`document.title === 'Done: /say a title for it · Harvest'`)

	// The views of a sandbox without a conversation are addresses, too.
	b.do(chromedp.Evaluate(`location.hash = '#/b/`+h.Box()+`'`, nil))
	b.until(`document.querySelector('[aria-label="Views of the sandbox"]')`)
	for _, view := range []string{"Files", "Usage"} {
		b.click("[role=tab]", view)
		b.until(`document.querySelector('.tabs [aria-selected=true]').textContent === ` + quoted(view))
	}
	for _, want := range []string{"Files", "Start"} {
		b.do(chromedp.Evaluate(`history.back()`, nil))
		b.until(`document.querySelector('.tabs [aria-selected=true]').textContent === ` + quoted(want) +
			` && location.hash.startsWith('#/b/')`)
	}

	b.click("button", "Sign out")
	b.sees("main", "You are not signed in")
	b.do(chromedp.Evaluate(`location.hash = '#/s/`+id+`/usage'`, nil), chromedp.Reload())
	b.sees("main", "You are not signed in")
	b.signIn(h.Must("key", "link"))
	b.until(`document.querySelector('.tabs [aria-selected=true]')?.textContent === 'Usage'`)
	b.do(chromedp.Evaluate(`location.hash = '#/s/ses_01aaaaaaaaaaaaaaaaaaaaaaaa'`, nil))
	b.sees(".problem", "not found")
	b.click(".problem a", "New session")
	b.sees("button", "Create a sandbox")
	b.until(`document.title === 'New session · Harvest'`)
	b.do(chromedp.Evaluate(`location.hash = '#/b/unknown'`, nil))
	b.sees(".top .problem", "not found")
	b.until(`document.title === 'unknown · Harvest'`)
	b.clean()
	b.leavesNoImages()
}
