package page

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

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
		b.until(`(([...all]) => all.every((t) => t.startsWith('/say the words of before')) && new Set(all).size === 1)([
			document.querySelector('h1')?.textContent ?? '', document.title.replace(/^Done: /, '').replace(' · Harvest', ''),
			document.querySelector('.sessions [aria-current] .title')?.textContent ?? ''])`)
	}
	b.sees(".message.agent", "the words of before")
	named()
	b.sees(".status", "Done")
	b.click(".top button", "End")
	b.confirmsEnd()
	b.click(".ended .resume", "Continue with its files")
	b.until(`location.hash.startsWith('#/s/ses_') && !location.hash.includes(` + quoted(first) + `)`)
	b.sees(".start", "Sandbox ready in")
	b.sees(".message.user", "the words of before")
	b.sees(".message.agent", "the words of before")
	named()
	b.send("/say what came after")
	b.sees(".message.agent", "what came after")
	for range 2 {
		b.until(`(([...all]) => all.join('|').replace(
			/.*the words of before\|.*Continued.*what came after$/, 'ok') === 'ok')(
			[...document.querySelectorAll('.items .message.agent, .items .note')].map((e) => e.textContent.trim())
			.filter((t) => t === 'the words of before' || t.startsWith('Continued') || t === 'what came after'))`)
		named()
		b.do(chromedp.Reload())
		b.sees(".message.agent", "what came after")
	}
	links := b.value(`[...document.querySelectorAll('.top .what a')].map((a) => a.hash).join()`)
	if !strings.HasSuffix(links, first) {
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
// folded, and nothing can be answered or sent again. Without events, prompts and replies remain. Events that cannot be
// shown, and an earlier session that cannot be loaded, are reported in their place.
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
	b.confirmsEnd()
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

	// An event of the past that cannot be shown, and a past that cannot be loaded, stop nothing else.
	again := func(what, answers string) {
		t.Helper()
		b.do(chromedp.Evaluate(`window.fetch = async (to, o) => { const path = String(to); `+answers+`
			return window.through(to, o); }; location.hash = '#/'`, nil))
		b.sees("button", "Create a sandbox")
		b.do(chromedp.Evaluate(`location.hash = window.here`, nil))
		b.sees(".note", what)
		b.sees(".start", "Sandbox ready in")
	}
	again("An event (repo.synced) could not be shown", `
		if (path.endsWith(`+quoted(first+"/events?tail=0")+`)) return new Response('id: 3\n\n');
		if (path.endsWith(`+quoted(first+"/events")+`)) return new Response(
			'id: 0\n\nid: 1\nevent: repo.synced\ndata: {}\n\n'
			+ 'id: 2\nevent: message.sent\ndata: {"message":{"id":"m","prompt":"after it"}}\n\n'
			+ 'id: 3\nevent: done\ndata: {"message":{"id":"m"}}\n\n');`)
	b.sees(".message.user", "after it")
	b.sees(".note", "Continued: the new session starts here")
	again("The earlier conversation could not be loaded: it is gone", `
		if (path.endsWith(`+quoted(first)+`)) return Response.json({ detail: 'it is gone' }, { status: 404 });`)
	b.send("/say it continues")
	b.sees(".message.agent", "it continues")
	b.clean()
	b.leavesNoImages()
}
