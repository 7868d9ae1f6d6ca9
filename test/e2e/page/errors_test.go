package page

import (
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestPageErrors checks that the addresses that a person can open and that lead nowhere show a page with the reason and
// one next step: a link to sign in that was used, an address that does not exist, a port without a server, and a
// withdrawn link to a port. The page of the port goes away by itself once a server listens.
// mission: 7.7
func TestPageErrors(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, b := started(t)
	// Pages that lead to others, or reload, end scripts.
	shows := func(heading, text string) {
		t.Helper()
		testenv.Eventually(t, "the page says "+heading, func() bool {
			got := ""
			err := chromedp.Run(b.ctx, chromedp.Evaluate(
				`(document.querySelector('h1')?.textContent ?? '') + document.body.innerText`, &got))
			return err == nil && strings.HasPrefix(got, heading) && strings.Contains(got, text)
		})
	}
	root := b.value(`location.href.split('#')[0]`)
	b.creates()
	link := h.Must("key", "link")
	b.do(chromedp.Navigate(link))
	shows("Sign this browser in to Harvest?", "")
	b.accessible("a link to sign in")
	b.loads("#sign-in")
	b.sees("button", "Create a sandbox")
	b.do(chromedp.Navigate(link))
	shows("this link was used already", "Next: ")
	b.accessible("a used link")
	b.loads("main a")
	b.sees("button", "Create a sandbox")

	b.do(chromedp.Navigate(root + "nosuch/place"))
	shows("", "nosuch/place")
	shows("", "Next: ")
	b.accessible("an unknown address")
	b.do(chromedp.Navigate(root))
	b.sees("button", "Create a sandbox")

	box := h.Box()
	id, withdrawn := b.shares(box, "8000")
	b.run(`await fetch('v1/sandboxes/` + box + `/links/` + id + `', { method: 'DELETE' })`)
	_, shared := b.shares(box, "8000")
	b.do(chromedp.Navigate(withdrawn))
	shows("this link is not known, or has ended", "Next: ")
	b.accessible("a withdrawn link")
	b.do(chromedp.Navigate(shared))
	shows("nothing listens on port 8000", "This page tries again by itself.")
	b.accessible("a dead port")
	h.Must("sandbox", "exec", box, "--", "sh", "-c",
		"mkdir /tmp/site && echo '<h1>Served inside</h1>' >/tmp/site/index.html && cd /tmp/site && "+
			"(setsid python3 -m http.server 8000 >/dev/null 2>&1 &)")
	shows("Served inside", "")
	b.do(chromedp.Navigate(root))
	b.sees("button", "Create a sandbox")
	b.clean()
	b.leavesNoImages()
}

// shares creates a link to a port of a sandbox.
func (b *tab) shares(box, port string) (id, url string) {
	b.t.Helper()
	made := b.run(`const r = await fetch('v1/sandboxes/` + box + `/links', { method: 'POST',
		headers: { 'Content-Type': 'application/json' },
		body: JSON.stringify({ port: ` + port + `, expires_in_seconds: 600 }) });
		const l = await r.json();
		return l.id + ' ' + l.url;`)
	id, url, _ = strings.Cut(made, " ")
	return id, url
}
