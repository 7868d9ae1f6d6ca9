package page

import (
	"strings"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/test/host"
)

// begins starts a session of the scripted agent that the page does not show.
func begins(h *host.Host, prompt string, flags ...string) string {
	h.T.Helper()
	h.Must(append([]string{"agent", "-d", "--agent", "scripted", "--repo", "none", prompt}, flags...)...)
	return strings.Fields(h.Must("sessions", "-o", "name"))[0]
}

// more chooses an action of the menu of the open session.
func (b *tab) more(action string) {
	b.t.Helper()
	b.click(".top button", "More")
	b.until(`document.querySelector('.actions').matches(':popover-open')`)
	b.click(".actions button", action)
	b.until(`!document.querySelector('.actions').matches(':popover-open')`)
}

// groups is an expression for the list of sessions: the names of its groups, with the titles in each.
const groups = `[...document.querySelectorAll('.sessions .group')].map((g) => g.firstChild.textContent + ': ' +
	[...g.querySelectorAll('.title')].map((e) => e.textContent).join()).join('; ')`

// titles is an expression for the titles in the list of sessions.
const titles = `[...document.querySelectorAll('.sessions .title')].map((e) => e.textContent).join()`

// TestPageLabels checks that sessions can be renamed, pinned and archived, that the list is by pins and on request by
// repository, and that its search finds prompts and archived sessions.
// mission: 7.4, F2
func TestPageLabels(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	first, second := begins(h, "/say The Übung is mended"), begins(h, "/say hello")
	b.until(titles + ` === '/say hello,/say The Übung is mended'`)
	b.do(chromedp.Evaluate(`location.hash = '#/s/`+first+`'`, nil))
	b.sees(".message.agent", "mended")

	b.more("Rename")
	b.until(`document.activeElement === document.querySelector('dialog input')`)
	b.accessible("rename")
	b.fill("Title", "<i>Mend</i> it")
	b.click("dialog button", "Rename")
	b.until(`!document.querySelector('dialog') && document.querySelector('h1').textContent === '<i>Mend</i> it'
		&& document.title.includes('<i>Mend</i> it')`)
	b.until(titles + ` === '/say hello,<i>Mend</i> it'`)
	h.Has(t, "<i>Mend</i> it", "sessions")
	h.Must("set", first, "--title", "From outside")
	b.until(`document.querySelector('h1').textContent === 'From outside'`)

	b.more("Pin")
	b.until(groups + ` === 'Pinned: From outside; Others: /say hello'`)
	b.accessible("a pinned session")
	b.picture("pinned")
	b.click("#side .choice", "By repository")
	b.until(groups + ` === 'Pinned: From outside; No repository: /say hello'`)
	b.run(`await fetch('v1/sessions', { method: 'POST', headers: { 'Content-Type': 'application/json' },
		body: JSON.stringify({ agent: 'scripted', repo: 'https://example.invalid/acme/shop.git' }) })`)
	b.until(groups + ` === 'Pinned: From outside; acme/shop: New session; No repository: /say hello'`)
	b.do(chromedp.Reload())
	b.until(groups + ` === 'Pinned: From outside; acme/shop: New session; No repository: /say hello'`)
	b.click("#side .choice", "By repository")

	b.click(".top button", "More")
	b.until(`document.querySelector('.actions').textContent === 'RenameUnpin'`)
	b.do(chromedp.KeyEvent("\x1b"))
	b.until(`!document.querySelector('.actions').matches(':popover-open')`)
	h.Must("end", "--discard", first)
	b.sees(".ended", "This session has ended")
	b.more("Archive")
	b.until(`!` + titles + `.includes('From outside')`)
	b.do(chromedp.Evaluate(`document.querySelector('#side input[type=search]').focus()`, nil))
	b.types("ÜBUNG")
	b.until(titles + ` === 'From outside'`)
	b.sees(".sessions", "archived")
	b.do(chromedp.Evaluate(`location.hash = '#/sessions'`, nil))
	b.sees(".of-sessions td", "/say hello")
	b.until(`!document.querySelector('.of-sessions').textContent.includes('From outside')`)
	b.click(".of-sessions .choice", "Only archived ones")
	b.until(`[...document.querySelectorAll('.of-sessions tbody tr a')].map((e) => e.textContent).join()
		=== 'From outside'`)

	b.do(chromedp.EmulateViewport(360, 640))
	b.do(chromedp.Evaluate(`location.hash = '#/s/`+first+`'`, nil))
	b.sees("h1", "From outside")
	b.click(".top button", "More")
	b.until(`((r) => r.width > 0 && r.left >= 0 && r.right <= 360)(
		document.querySelector('.actions').getBoundingClientRect())`)
	b.picture("phone-actions")
	b.click(".actions button", "Take out of the archive")
	b.do(emulation.ClearDeviceMetricsOverride())
	b.run(`const i = document.querySelector('#side input[type=search]');
		i.value = '';
		i.dispatchEvent(new Event('input'))`)
	b.until(groups + `.startsWith('Pinned: From outside; ')`)
	h.Must("end", "--discard", second)
	b.clean()
	b.leavesNoImages()
}

// TestPageNotifies checks that what waits is seen without the page: by the icon of its tab, in the list of sessions,
// and, if the person wants them, by notifications of the browser.
// mission: 7.4, F2
func TestPageNotifies(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	icon := func(name string) {
		t.Helper()
		b.until(`document.querySelector('link[rel=icon]').href.endsWith('/` + name + `.svg')`)
	}
	may := func(setting cdpbrowser.PermissionSetting) {
		t.Helper()
		b.do(cdpbrowser.SetPermission(&cdpbrowser.PermissionDescriptor{Name: "notifications"}, setting))
	}
	icon("icon")
	first := begins(h, "/say done")
	icon("icon-done")
	b.until(`document.querySelector('.sessions .waits .title')?.textContent === '/say done'`)
	b.do(chromedp.Evaluate(`location.hash = '#/s/`+first+`'`, nil))
	b.sees(".message.agent", "done")
	icon("icon")
	b.until(`document.querySelector('.sessions .waits') === null`)

	b.run(`window.told = [];
		const real = window.Notification;
		window.Notification = class extends real {
			constructor(title, more) {
				super(title, more);
				window.told.push([title, more.body].join(': '));
				window.last = this;
			}
		}`)
	b.press("Inbox")
	may(cdpbrowser.PermissionSettingDenied)
	b.click("dialog label", "Notify me in this browser")
	b.sees("dialog [role=status]", "The browser does not allow notifications of this page.")
	may(cdpbrowser.PermissionSettingGranted)
	b.click("dialog label", "Notify me in this browser")
	b.until(`window.told.length === 1 && document.querySelector('dialog .choice input').checked`)
	b.accessible("an inbox with notifications")
	b.click("dialog button", "Close")

	second := begins(h, "/ask Which colour? | red | blue", "--approval", "ask")
	icon("icon-waiting")
	b.until(`window.told.at(-1).includes('Which colour?')`)
	h.Must("send", "-d", first, "/say in view")
	b.sees(".message.agent", "in view")
	b.do(chromedp.Evaluate(`window.last.onclick()`, nil))
	b.until(`location.hash.startsWith('#/s/` + second + `')`)
	b.sees("form.question", "Which colour?")
	icon("icon-waiting") // until there is an answer
	b.press("Inbox: 1 waiting")
	b.click("dialog label", "Notify me in this browser") // no more
	b.click("dialog button", "Close")
	h.Must("send", "-d", first, "/say again")
	b.bell("Inbox: 2 waiting", "(1) ")
	if got := b.value(`window.told.length`); got != "2" {
		t.Errorf("%s notifications: %s", got, b.value(`window.told.join('\n')`))
	}
	h.Must("end", "--discard", first)
	h.Must("end", "--discard", second)
	icon("icon")
	b.clean()
	b.leavesNoImages()
}
