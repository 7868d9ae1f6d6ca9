package page

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/test/host"
)

// TestPageStart checks that the start of a session names its steps, also the current one, and that it shows the time
// since the session was created, also after a reload. Meanwhile status, list and button show that the sandbox is
// being made, and a prompt waits for it.
// mission: 7.2, 7.3
func TestPageStart(t *testing.T) {
	t.Parallel()
	_, b := started(t)
	g := host.NewGit(t, "")
	g.Commit("sample", map[string]string{"README.md": "one\n"})
	held := make(chan struct{})
	release := sync.OnceFunc(func() { close(held) })
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		<-held
		g.Server.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(slow.Close)
	t.Cleanup(release)
	_, port, _ := strings.Cut(strings.TrimPrefix(slow.URL, "http://"), ":")

	b.do(chromedp.Evaluate(`document.querySelector('.new details').open = true`, nil))
	b.fill("Repository", "http://10.0.2.2:"+port+"/sample.git")
	b.fill("Network", "allow")
	b.fill("Allowed hosts", strings.TrimPrefix(slow.URL, "http://"))
	// As if it was the first session of all, for which the image is built.
	b.do(chromedp.Evaluate(noted("steps", ".start li.now > :first-child")+`{
		const real = window.fetch;
		window.fetch = (to, o) => (String(to).endsWith('v1/images?limit=1')
			? Promise.resolve(Response.json({ data: [] })) : real(to, o));
	}`, nil))
	b.click("button", "Create a sandbox")
	const seconds = `Number(/ · ([\d.]+) s$/.exec(document.querySelector('.start summary')?.textContent)?.[1] ?? NaN)`
	named := func() {
		t.Helper()
		b.until(`[...document.querySelectorAll('.start li')].map((e) => e.firstChild.textContent).join()
			=== 'Sandbox,Directories,Repository'`)
		b.sees(".start li.now", "Repository")
	}
	named()
	if got := b.value(`window.steps.join('; ')`); !strings.HasSuffix(got,
		"Sandbox, and its image, which is built only once; Directories; Repository") {
		t.Errorf("the current steps were %s", got)
	}
	b.until(`/^Creating the sandbox · \d+ s$/.test(document.querySelector('.status').textContent)`)
	b.until(`document.querySelector('.sessions [aria-current] .meta').textContent.startsWith('creating · ')`)
	b.until(`document.querySelector('.composer [type=submit]').textContent === 'Queue'`)
	b.send("/say the first of all")
	b.sees(".queue li", "/say the first of all")
	b.until(seconds + ` >= 3`)
	b.do(chromedp.Evaluate(`sessionStorage.setItem('before', String(`+seconds+`))`, nil), chromedp.Reload())
	b.until(seconds + ` >= 0`)
	if got := b.run(`const before = Number(sessionStorage.getItem('before')); const shown = ` + seconds + `;
		const { data: [{ created_at: created }] } = await (await fetch('v1/sessions')).json();
		return shown >= before && shown <= (Date.now() - Date.parse(created)) / 1000 + 0.05 ? 'ok'
			: [before, shown, created, new Date().toISOString()].join();`); got != "ok" {
		t.Errorf("before and after the reload the start took: %s", got)
	}
	named()
	// The clock of the browser may differ from that of the server.
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(
			`{ const real = Date.now; Date.now = () => real() + 3 * 3600e3; }`).Do(ctx)
		return err
	}), chromedp.Reload())
	b.until(seconds + ` >= Number(sessionStorage.getItem('before'))`)
	named()
	release()
	b.sees(".start", "Sandbox ready in")
	b.sees(".message.agent", "the first of all")
	b.until(`document.querySelector('.status').textContent === 'Done'`)
	b.until(`document.querySelector('.sessions [aria-current] .meta').textContent.startsWith('done · ')`)
	b.until(`document.querySelector('.composer [type=submit]').textContent === 'Send'`)
	b.clean()
	b.leavesNoImages()
}
