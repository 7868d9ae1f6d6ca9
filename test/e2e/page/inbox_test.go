package page

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// bell waits for the bell's label, and for the number of items before the title of the page ("" for none).
func (b *tab) bell(label, number string) {
	b.t.Helper()
	b.until(`document.querySelector('.bell')?.getAttribute('aria-label') === ` + quoted(label))
	b.until(`(/^\(\d+\) /.exec(document.title)?.[0] ?? '') === ` + quoted(number))
}

// notWaiting waits until the inbox is empty on the server, too.
func notWaiting(t *testing.T, h *host.Host) {
	t.Helper()
	testenv.Eventually(t, "an empty inbox", func() bool { return h.Must("inbox", "-o", "name") == "" })
}

// TestPageInbox checks that the bell shows what waits in other sessions as it happens, that a person can answer there,
// and that what is open on the page counts as seen.
// mission: 7.4, F2
func TestPageInbox(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	b.bell("Inbox", "")
	h.Must("agent", "-d", "--agent", "scripted", "--repo", "none", "--approval", "ask",
		"/agent explore /approve echo allowed >/tmp/it\n/ask Which colour? | red | blue\n/say it is done")
	id := h.Session()
	b.bell("Inbox: 1 waiting", "(1) ")
	b.do(chromedp.Evaluate(`document.querySelector('.bell').focus()`, nil))
	b.press("Inbox: 1 waiting")
	b.sees("dialog.waiting li", "sub-agent explore: approve echo allowed")
	b.sees("dialog.waiting form.question", "echo allowed >/tmp/it")
	b.until(`document.querySelector('dialog.waiting').contains(document.activeElement)`)
	b.accessible("inbox with an approval")
	b.picture("inbox")
	b.click("dialog.waiting form.question button", "Allow")
	b.sees("dialog.waiting form.question legend", "Which colour?")
	b.bell("Inbox: 1 waiting", "(1) ")
	b.until(`document.querySelectorAll('dialog.waiting form.question').length === 1`)
	b.picture("inbox-question")
	b.do(chromedp.Evaluate(`document.querySelector('dialog.waiting input[value=blue]').click()`, nil))
	b.click("dialog.waiting form.question button", "Answer")
	b.sees("dialog.waiting li", "it is done")
	if got := b.value(`document.querySelector('dialog.waiting li b').textContent`); got != "Done" {
		t.Errorf("a turn that has ended is shown as %s", got)
	}
	b.accessible("inbox with a result")
	b.click("dialog.waiting li button", "Seen")
	b.sees("dialog.waiting", "Nothing waits for you.")
	b.bell("Inbox", "")
	b.until(`document.querySelector('dialog.waiting').contains(document.activeElement)`)
	b.click("dialog.waiting button", "Close")
	b.until(`!document.querySelector('dialog') && document.activeElement === document.querySelector('.bell')`)
	notWaiting(t, h)
	h.Has(t, "allowed", "sandbox", "exec", h.Box(), "--", "cat", "/tmp/it")

	// The result of a session is seen when the session is opened, and while it is open.
	h.Must("send", "-d", id, "/say again")
	b.bell("Inbox: 1 waiting", "(1) ")
	b.press("Inbox: 1 waiting")
	b.click("dialog.waiting li a", "explore")
	b.sees(".message.agent", "again")
	b.bell("Inbox", "")
	notWaiting(t, h)
	h.Must("send", "-d", id, "/say once more")
	b.sees(".message.agent", "once more")
	b.bell("Inbox", "")
	notWaiting(t, h)

	// A question in view is no news, and one in another session is.
	h.Must("send", "-d", id, "/ask Which size? | small")
	b.bell("Inbox: 1 waiting", "")
	b.do(chromedp.Evaluate(`location.hash = '#/keys'`, nil))
	b.bell("Inbox: 1 waiting", "(1) ")
	b.sees("h1", "Keys")
	b.do(chromedp.Reload())
	b.bell("Inbox: 1 waiting", "(1) ")
	h.Must("end", "--discard", id)
	b.bell("Inbox", "")
	b.clean()
	b.leavesNoImages()
}

// TestPageInboxOnAPhone checks that the bell is within reach on a narrow page, and covers nothing.
// mission: 7.9
func TestPageInboxOnAPhone(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	b.do(chromedp.EmulateViewport(360, 640))
	h.Must("agent", "-d", "--agent", "scripted", "--repo", "none", "--approval", "ask",
		"/approve "+strings.Repeat("long ", 100))
	b.bell("Inbox: 1 waiting", "(1) ")
	if got := b.value(`(() => {
		const r = document.querySelector('.bell').getBoundingClientRect();
		const menu = document.querySelector('.menu').getBoundingClientRect();
		const top = document.elementFromPoint(r.x + r.width / 2, r.y + r.height / 2);
		return r.right <= menu.left && r.left >= 0 && r.height >= 24 && document.querySelector('.bell').contains(top);
	})()`); got != "true" {
		t.Error("the bell is covered, or covers the button of the list")
	}
	b.picture("phone-bell")
	b.press("Inbox: 1 waiting")
	b.sees("dialog.waiting form.question button", "Deny")
	if got := b.value(`document.querySelector('dialog.waiting').scrollWidth <= 360`); got != "true" {
		t.Error("the list of the inbox is wider than the page")
	}
	b.accessible("inbox on a phone")
	b.picture("phone-inbox")
	b.clean()
	b.leavesNoImages()
}
