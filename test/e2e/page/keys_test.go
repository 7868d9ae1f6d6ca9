package page

import (
	"strings"
	"testing"

	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// keys presses keys, one after the other.
func (b *tab) keys(keys string, with ...input.Modifier) {
	b.t.Helper()
	b.do(chromedp.KeyEvent(keys, chromedp.KeyModifiers(with...)))
}

// focused waits until an element of a selector has the focus.
func (b *tab) focused(selector string) {
	b.t.Helper()
	b.until(`document.activeElement?.matches(` + quoted(selector) + `)`)
}

// tabTo presses Tab until an element of a selector has the focus, visibly.
func (b *tab) tabTo(selector string) {
	b.t.Helper()
	for range 150 {
		b.keys(kb.Tab)
		if b.value(`Boolean(document.activeElement?.matches(`+quoted(selector)+`))`) == "true" {
			if b.value(`document.activeElement.closest('.xterm') !== null || getComputedStyle(document.activeElement).outlineStyle !== 'none'`) != "true" {
				b.t.Errorf("that %s has the focus cannot be seen", selector)
			}
			return
		}
	}
	b.t.Fatalf("Tab does not go to %s", selector)
}

// TestPageKeys checks that everything can be done with the keyboard alone: begin a session, answer, prompt, use the
// terminal and leave it, save a file, search, make a key, end the session and begin another one.
// mission: F2, 7.1, 7.3, 7.4, 7.8
func TestPageKeys(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Up()
	b := browser(t)
	b.signedIn(h)
	b.keys(kb.Tab)
	b.focused(".skip")
	b.keys(kb.Enter)
	b.focused("main")
	b.tabTo("[name=prompt]")
	b.types("/ask Which? | red | blue")
	b.keys(kb.Enter, input.ModifierCtrl)
	b.sees("form.question legend", "Which?")
	b.tabTo("form.question input[type=radio]")
	b.keys(" ")
	b.keys(kb.ArrowDown)
	b.until(`document.querySelector('form.question input[value=blue]').checked`)
	b.tabTo("form.question [type=submit]")
	b.keys(kb.Enter)
	b.sees(".message.agent", "The answer is blue.")
	b.sees(".status", "Done")
	b.tabTo(".composer textarea")
	b.types("note it\r")
	b.sees(".message.agent", "You said: note it")

	// The arrows move from view to view. In the terminal all keys go to the shell, Tab too, except for one.
	b.tabTo(".tabs [aria-selected=true]")
	b.keys(kb.ArrowRight)
	b.sees(".of-terminal [role=status]", "Connected")
	b.focused("[data-tab=terminal]")
	b.tabTo(".xterm-helper-textarea")
	b.command("echo $((6*7))")
	b.until(`[...document.querySelectorAll('.xterm-rows > div')].some((r) => r.textContent.trim() === '42')`)
	b.keys(kb.Tab)
	b.focused(".xterm-helper-textarea")
	b.keys(kb.F6, input.ModifierCtrl)
	b.focused("[data-tab=terminal]")
	b.keys(kb.ArrowRight)
	b.sees(".tree .name", "SCRIPTED-AGENT.md")
	b.tabTo(`.tree li:has([aria-label="Delete SCRIPTED-AGENT.md"]) .entry`)
	b.keys(kb.Enter)
	b.focused("textarea.code")
	b.types("by keys")
	b.keys("s", input.ModifierCtrl)
	b.sees(".of-files [role=status]", "Saved")
	if out := h.Must("sandbox", "exec", h.Box(), "--", "sh", "-c",
		"cat /workspace/*/SCRIPTED-AGENT.md"); !strings.Contains(out, "by keys") {
		t.Errorf("the file is %q", out)
	}

	b.tabTo(".top .row [aria-expanded]")
	b.keys(kb.Enter)
	b.focused(".find input")
	b.types("you said: note")
	b.sees(".find", "1 of 1")
	b.keys(kb.Escape)
	b.focused(".top .row [aria-expanded]")
	session := b.value(`location.hash.split('/')[2]`)
	b.tabTo(".more summary")
	b.keys(kb.Enter)
	b.tabTo(`.more a[href="#/keys"]`)
	b.keys(kb.Enter)
	b.sees(".list-view.of-keys button", "Create")
	b.tabTo(".list-view.of-keys input[type=text]")
	b.types("by-hand\r")
	b.sees(".of-keys .secret", "hv_")
	b.tabTo(".sessions a")
	b.keys(kb.Enter)
	b.sees(".top", session)

	// A dialog focuses its harmless button, Esc closes it, and the focus returns to the earlier element.
	b.tabTo(".top .row .danger")
	b.keys(kb.Enter)
	b.until(`document.activeElement.closest('dialog') && document.activeElement.textContent === 'Keep it'`)
	b.keys(kb.Escape)
	b.until(`!document.querySelector('dialog')`)
	b.focused(".top .row .danger")
	b.keys(kb.Enter)
	for _, question := range []string{"End the session?", "End the session and discard changes?"} {
		b.sees("dialog", question)
		b.until(`document.activeElement.closest('dialog') && document.activeElement.textContent === 'Keep it'`)
		b.keys(kb.Tab, input.ModifierShift)
		b.focused("dialog .danger")
		b.keys(kb.Enter)
	}
	b.sees(".ended", "Reason:")
	b.tabTo(".ended a.button")
	b.keys(kb.Enter)
	b.sees("button", "Create a sandbox")
	b.clean()
	b.leavesNoImages()
}
