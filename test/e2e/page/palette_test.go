package page

import (
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// chosen is an expression for the selected entry of the command palette.
const chosen = `document.querySelector('.palette [aria-selected=true]')?.firstChild.textContent`

// TestPagePalette checks that the command palette goes to sessions, views and lists by keyboard alone, that the page
// shows its keys, and that a person can choose the theme.
// mission: F2, 7.9
func TestPagePalette(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	first := begins(h, "/say first")
	b.sees(".sessions", "/say first")
	palette := func() {
		t.Helper()
		b.keys("k", input.ModifierCtrl)
		b.until(`document.activeElement?.getAttribute('role') === 'combobox'`)
	}
	palette()
	b.types("say fir")
	b.until(chosen + ` === '/say first'`)
	b.accessible("the command palette")
	b.picture("palette")
	b.types("\r")
	b.until(`!document.querySelector('dialog') && location.hash.startsWith('#/s/` + first + `')`)
	b.sees(".message.agent", "first")
	palette()
	b.types("view")
	b.until(chosen + ` === 'Conversation'`)
	b.keys(kb.ArrowDown)
	b.until(chosen + ` === 'Terminal'`)
	b.until(`document.activeElement.getAttribute('aria-activedescendant') ===
		document.querySelector('.palette [aria-selected=true]').id`)
	b.types("nosuch")
	b.sees(".palette [role=status]", "No matches.")
	b.types("\r")
	b.keys(kb.Escape)
	b.until(`!document.querySelector('dialog')`)

	// A question mark in a prompt is text.
	b.do(chromedp.Evaluate(`document.querySelector('.composer textarea').focus()`, nil))
	b.types("a?")
	b.until(`document.querySelector('.composer textarea').value === 'a?' && !document.querySelector('dialog')`)
	b.do(chromedp.Evaluate(`document.querySelector('main').focus()`, nil))
	b.types("?")
	b.sees("dialog td", "Send the prompt")
	b.accessible("the keys")
	b.click("dialog button", "Close")

	background := func(want string) {
		t.Helper()
		b.until(`getComputedStyle(document.body).backgroundColor === ` + quoted(want))
	}
	const light, dark = "rgb(255, 255, 255)", "rgb(21, 24, 22)"
	background(light)
	palette()
	b.types("theme dark")
	b.until(chosen + ` === 'Dark'`)
	b.types("\r")
	background(dark)
	b.do(chromedp.Reload())
	background(dark)
	b.until(`document.querySelector('.theme select').value === 'dark'`)
	b.run(`const s = document.querySelector('.theme select');
		s.value = '';
		s.dispatchEvent(new Event('change'))`)
	background(light)
	b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: "dark"}}))
	background(dark)
	b.do(emulation.SetEmulatedMedia())
	h.Must("end", "--discard", first)
	b.clean()
	b.leavesNoImages()
}

// TestPageSchedules checks that schedules can be created on the page, with an error in place, and deleted.
// mission: F2
func TestPageSchedules(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	b.do(chromedp.Evaluate(`location.hash = '#/schedules'`, nil))
	b.click("button", "New schedule")
	b.until(`document.activeElement === document.querySelector('dialog input')`)
	b.accessible("a new schedule")
	b.picture("new-schedule")
	b.fill("Name", "answer")
	b.fill("What", "run")
	b.fill("Command", "echo $((6 * 7))")
	b.fill("Image", "base")
	b.fill("When", "every now and then")
	b.click("dialog button", "Create")
	b.sees("dialog .problem", "is no schedule")
	b.fill("When", "@daily")
	b.fill("Time zone", "Europe/Berlin")
	b.click("dialog button", "Create")
	b.sees(".of-schedules td", "@daily Europe/Berlin")
	h.Has(t, "42", "schedule", "run", "answer")
	b.press("Runs of answer")
	b.sees(".of-schedules td", "succeeded")
	b.press("Pause: answer")
	b.sees(".of-schedules td", "paused")
	b.press("Delete answer")
	b.click("dialog button", "Delete it")
	b.until(`!document.querySelector('.of-schedules').textContent.includes('Europe/Berlin')`)

	b.click("button", "New schedule")
	b.fill("Name", "greet")
	b.fill("Prompt", "/say good morning")
	b.fill("Agent", "scripted")
	b.fill("When", "@daily")
	b.click("dialog button", "Create")
	b.sees(".of-schedules td", "greet")
	h.Has(t, "good morning", "schedule", "run", "greet")
	b.clean()
	b.leavesNoImages()
}
