package page

import (
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

const (
	heldPrompts   = `[...document.querySelectorAll('.queue .held .prompt')].map((e) => e.textContent).join(' | ')`
	unsentPrompts = `[...document.querySelectorAll('.unsent li')].map((e) => e.textContent).join(' | ')`
	typedPrompt   = `document.querySelector('.composer:not([hidden]) textarea')?.value`
	firstPrompt   = `document.querySelector('textarea[name=prompt]')?.value`
)

// reloads checks an expression now and after a reload.
func (b *tab) reloads(expression string) {
	b.t.Helper()
	b.until(expression)
	b.do(chromedp.Reload())
	b.until(expression)
}

// ends ends the open session.
func (b *tab) ends() {
	b.t.Helper()
	b.click(".top button", "End")
	b.confirmsEnd()
	b.sees(".ended", "This session has ended")
}

// TestPageKeepsUnsent checks that the next session offers the prompts that a session could not send before it ended or
// because its start failed: the queued ones, those that were held back, and the half-typed one. The reason of a failed
// start is shown once.
// mission: 7.4, 7.8, F2
func TestPageKeepsUnsent(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	_, b := started(t)
	first := b.creates()
	b.send("/run until [ -e /tmp/go ]; do sleep 0.1; done")
	b.sees(".status", "Running a tool")
	for _, prompt := range []string{"/say one\n/say of two lines", "/say two"} {
		b.send(prompt)
		b.sees(".queue", prompt)
	}
	b.do(chromedp.Evaluate(`document.querySelector('.composer textarea').focus()`, nil))
	b.types("half a thought")
	b.ends()
	b.reloads(unsentPrompts + ` === '/say one\n/say of two lines | /say two | half a thought'`)
	b.sees(".note", "Not sent: /say one\n/say of two lines")
	b.accessible("the end with prompts that were not sent")
	b.picture("unsent")

	// The session that continues it has them, and it no longer has them itself.
	b.click(".ended .resume", "Continue with its files")
	b.until(`location.hash.startsWith('#/s/ses_') && !location.hash.includes(` + quoted(first) + `)`)
	b.reloads(heldPrompts + ` === '/say one\n/say of two lines | /say two' && ` + typedPrompt + ` === 'half a thought'`)
	b.sees(".start", "Sandbox ready in")
	b.click(".queue button", "Send next")
	b.sees(".message.agent", "of two lines")
	second := b.value(`location.hash`)
	b.do(chromedp.Evaluate(`location.hash = '#/s/`+first+`'`, nil))
	b.until(`document.querySelector('.ended') && ` + unsentPrompts + ` === ''`)
	b.do(chromedp.Evaluate(`location.hash = `+quoted(second), nil))
	b.sees(".status", "Done")
	b.ends()
	b.until(unsentPrompts + ` === '/say two | half a thought'`)
	b.click(".ended button", "New session, same agent")
	b.reloads(firstPrompt + ` === '/say two' && ` + unsentPrompts + ` === 'half a thought'`)
	b.accessible("a new session with prompts of the one before")
	b.creates()
	b.sees(".message.user", "/say two")
	b.reloads(typedPrompt + ` === 'half a thought' && ` + heldPrompts + ` === ''`)

	// A form that has a prompt keeps it, and the prompts that it lists can be discarded.
	b.ends()
	b.do(chromedp.Evaluate(`location.hash = '#/'`, nil))
	b.fill("First prompt", "/say mine")
	b.do(chromedp.Evaluate(`history.back()`, nil))
	b.click(".ended a.button", "New session")
	b.until(firstPrompt + ` === '/say mine' && ` + unsentPrompts + ` === 'half a thought'`)
	b.click("button", "Discard these prompts")
	b.reloads(firstPrompt + ` === '/say mine' && ` + unsentPrompts + ` === ''`)

	b.fill("Repository", "http://10.0.2.2:1/nosuch.git")
	b.click("button", "Create a sandbox")
	b.sees(".start .problem", "")
	b.sees(".ended", "The repository could not be cloned.")
	for range 2 {
		if got := b.run(`const { data: [{ reason }] } = await (await fetch('v1/sessions?all=true')).json();
			return document.querySelector('main').textContent.split(reason).length - 1;`); got != "1" {
			t.Errorf("the reason of the failed start is shown %s times: %s", got,
				b.value(`document.querySelector('main').innerText`))
		}
		b.until(unsentPrompts + ` === '/say mine'`)
		b.do(chromedp.Reload())
		b.sees(".ended", "The repository could not be cloned.")
	}
	b.click(".ended a.button", "New session")
	b.until(firstPrompt + ` === '/say mine'`)
	b.clean()
	b.leavesNoImages()
}
