package page

import (
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// below serves a server's root below a path.
func below(t *testing.T, prefix, to string) string {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	proxy := &httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(u)
		r.Out.Host = r.In.Host
	}}
	server := httptest.NewServer(http.StripPrefix(prefix, proxy))
	t.Cleanup(server.Close)
	return server.URL + prefix
}

// hostile are texts that would run a script if they were inserted as HTML.
var hostile = []string{
	`<script>window.pwned=1</script>`, `<img src=x onerror="window.pwned=1">`, `<svg onload="window.pwned=1">`,
	`<svg><script>window.pwned=1</script></svg>`,
	`<iframe srcdoc="<script>parent.pwned=1</script>"></iframe>`, `[click](javascript:window.pwned=1)`,
	`<a href="jav&#x09;ascript:window.pwned=1">x</a>`,
	`![x](javascript:window.pwned=1)`, `![x" onerror="window.pwned=1](x)`,
	`<math><mi//xlink:href="data:x,<script>window.pwned=1</script>">`,
	`<form action="/v1/sign-out" method=post><button id=send>Send</button></form>`,
	`<details open ontoggle="window.pwned=1">x</details>`,
	`<style>*{background:url(x)}</style>`, `<base href="//evil.example/">`,
	`<div style="position:fixed;inset:0" class="ended primary">x</div>`,
	`<noscript><p title="</noscript><img src=x onerror=window.pwned=1>">`, "`<img src=x onerror=window.pwned=1>`",
	`<a href="data:text/html,<script>window.pwned=1</script>">x</a>`,
	`<input autofocus onfocus=window.pwned=1>`, `<img name=getElementById><a id=main>x</a>`,
}

const answer = "Here is a table, and some code:\n\n| file | lines |\n|---|---|\n| main.go | 12 |\n\n```go\nfunc main() {\n\tfmt.Println(\"hello\") // greets\n}\n```\n\nThat is *all*."

// A person creates a sandbox on the page, talks with the agent, and sees everything, in a real browser.
// mission: 7.1, 7.2, 7.3, 7.4, 7.5, 7.6, 7.7, 7.8, 7.10
func TestPage(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	port := testenv.FreePort(t)
	stop := h.UpUntil("--listen", "127.0.0.1:"+port)
	root := "http://127.0.0.1:" + port
	b := browser(t)

	b.do(chromedp.Navigate(root + "/"))
	b.sees("main", "You are not signed in")
	b.until(`document.title === 'Sign in · Harvest'`)
	b.sees("pre", "harvest key link")
	b.accessible("signed out")
	b.picture("signed-out")
	const steps = `[...document.querySelectorAll('main :is(a, button, pre)')].map((e) => e.textContent).join()`
	if got := b.value(steps); got != "harvest key link" {
		t.Errorf("the next steps are %s", got)
	}
	// With an identity provider, the one step is to sign in there.
	b.do(chromedp.Evaluate(`sessionStorage.setItem('oidc', 'yes')`, nil),
		chromedp.ActionFunc(func(ctx context.Context) error {
			_, err := page.AddScriptToEvaluateOnNewDocument(`{ const real = window.fetch; window.fetch = (to, o) => (
				String(to).endsWith('v1/openapi.json') && sessionStorage.getItem('oidc')
					? Promise.resolve(Response.json({ paths: { '/sign-in/oidc': {} } })) : real(to, o)); }`).Do(ctx)
			return err
		}), chromedp.Reload())
	b.sees("main a", "Sign in")
	if got := b.value(steps); got != "Sign in" {
		t.Errorf("with an identity provider, the next steps are %s", got)
	}
	b.do(chromedp.Evaluate(`sessionStorage.clear()`, nil))
	b.signIn(h.Must("key", "link"))

	// mission: 7.1, 7.2, 7.3
	b.sees("button", "Create a sandbox")
	b.sees(".hint", "No model key is set")
	b.picture("new")
	b.do(chromedp.Evaluate(`new MutationObserver(() => { if (document.querySelector('.start[aria-busy=true] .spinner')) window.wasBusy = true; }).observe(document.body, { childList: true, subtree: true })`, nil))
	b.click("button", "Create a sandbox")
	b.sees(".start", "Sandbox ready in")
	if b.value(`window.wasBusy`) != "true" {
		t.Error("nothing showed that the sandbox was being made")
	}
	if text := b.value(`document.querySelector('.start ol').textContent`); !regexp.MustCompile(`^Sandbox.*\d (ms|s)`).MatchString(text) {
		t.Errorf("the stages are %q", text)
	}
	if got := b.value(`document.querySelectorAll('.start .problem').length`); got != "0" {
		t.Error("a start that went well shows a problem")
	}
	b.until(`document.querySelector('.composer textarea').checkVisibility()`)
	id := strings.TrimPrefix(b.value(`location.hash`), "#/s/")

	// The agent's text appears before its turn ends. Prompts wait, and can be cancelled.
	// mission: 7.4, 7.5
	b.send("/say I look at **the files** first.\n/run ls /; until [ -e /tmp/go ]; do sleep 0.1; done; exit 3\n/say Now I have seen them.")
	b.sees(".message.user", "I look at")
	b.sees(".message.agent strong", "the files")
	b.sees(".status", "Running a tool")
	b.sees(".tool .output", "proc")
	b.do(chromedp.Evaluate(`document.querySelector('.composer textarea').focus()`, nil))
	b.types("/say never\r")
	b.sees(".queue", "never")
	b.picture("working")
	b.click(".queue button", "Cancel")
	b.until(`document.querySelector('.queue').children.length === 0`)
	box := h.Must("sandbox", "ls", "-o", "name")
	h.Must("sandbox", "exec", box, "--", "touch", "/tmp/go")
	b.sees(".message.agent", "Now I have seen them.")
	b.sees(".tool.failed .state", "exit 3")

	// mission: 7.6
	b.send(answer)
	b.sees(".message.agent .codehead", "go")
	b.sees(".message.agent td", "main.go")
	b.sees(".message.agent .hljs-string", "hello")
	b.send("/write notes/plan.md Look first.")
	b.until(`[...document.querySelectorAll('.tool .diff .added')].some((e) => e.textContent === '+Look first.\n')`)
	b.picture("chat")

	b.clean()

	// No message and no output becomes a script or loads anything.
	var orders []string
	for _, text := range hostile {
		orders = append(orders, "/say "+text, "/think "+text, "/run printf '%s' "+shellQuoted(text),
			"/write "+strings.ReplaceAll(text, "/", "")+" "+text)
	}
	b.send(strings.Join(orders, "\n"))
	b.send(strings.Join(hostile, "\n\n"))
	b.send("/say the end of it")
	b.until(`[...document.querySelectorAll('.message.agent')].some((e) => e.textContent.trim() === 'the end of it')`)
	b.do(chromedp.Evaluate(`for (const d of document.querySelectorAll('.log details')) d.open = true; for (const a of document.querySelectorAll('.log a')) a.dispatchEvent(new MouseEvent('mouseover'));`, nil))
	b.harmless()
	if got := b.value(`document.querySelectorAll('.items :is(img, script, style, iframe, svg, form, input, base, math, [id], [style], [name], .ended)').length + ' ' +
		[...document.querySelectorAll('.items *')].filter((e) => e.getAttributeNames().some((n) => n.startsWith('on'))).length + ' ' +
		[...document.querySelectorAll('.log a[href]')].filter((a) => !/^(https?|mailto):/.test(a.getAttribute('href'))).length`); got != "0 0 0" {
		t.Errorf("what may not be in a message: %s", got)
	}

	hostileViews(b)

	// mission: 7.7
	b.send("/fail out of luck")
	b.sees(".problem", "out of luck")
	b.sees(".problem", "send the prompt again")
	b.sees(".problem button", "Send it again")
	b.send("/fail the credit balance is too low") // the same prompt would fail again
	b.sees(".problem", "Buy credit")
	if n := b.value(`document.querySelectorAll('.items .problem button').length`); n != "1" {
		t.Errorf("%s failures offer to send the prompt again", n)
	}

	// Another browser, behind a proxy that serves the server below a path, sees the same, and both continue after a
	// restart of the server.
	other := b.another()
	other.signIn(strings.Replace(h.Must("key", "link"), root, below(t, "/harvest", root), 1))
	other.click(".sessions a", "I look at")
	other.sees(".log", "the end of it")
	b.send("/ask Which colour? | red | blue")
	other.sees("form.question legend", "Which colour?")
	other.picture("question")
	other.do(chromedp.Evaluate(`document.querySelector('.question input[value=blue]').click(); document.querySelector('form.question').requestSubmit()`, nil))
	b.sees(".message.agent", "The answer is blue.")
	b.until(`!document.querySelector('form.question:not(.settled)')`)
	stop()
	b.sees(".link", "Connection lost")
	stop = h.UpUntil("--listen", "127.0.0.1:"+port)
	defer stop()
	b.until(`document.querySelector('.link').textContent === ''`)
	b.send("/say after the restart")
	const said = `[...document.querySelectorAll('.log :is(.message.agent, .message.user .text)')].map((e) => e.textContent.trim()).join('\n')`
	for _, each := range []*tab{b, other} {
		each.until(`[...document.querySelectorAll('.message.agent')].some((e) => e.textContent.trim() === 'after the restart')`)
	}
	first, second := "", ""
	testenv.Try(t, func() error { // the last text may appear before the page is complete
		first, second = b.value(said), other.value(said)
		if first != second || strings.Count(first, "after the restart") != 2 ||
			strings.Count(first, "The answer is blue.") != 1 {
			return errors.Errorf("the browsers show\n%s\nand\n%s", first, second)
		}
		return nil
	})

	// mission: 7.10
	history := b.value(said)
	b.do(chromedp.Reload())
	b.until(`[...document.querySelectorAll('.message.agent')].some((e) => e.textContent.trim() === 'after the restart')`)
	testenv.Try(t, func() error {
		if again := b.value(said); again != history {
			return errors.Errorf("after a reload the page shows\n%s\nbefore\n%s", again, history)
		}
		return nil
	})
	b.do(emulation.SetDeviceMetricsOverride(390, 844, 2, true),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme",
			Value: "dark"}}))
	b.until(`document.documentElement.scrollWidth <= innerWidth`)
	b.send(answer)
	b.until(`[...document.querySelectorAll('.message.user')].pop().textContent.includes('That is') && document.querySelector('.items').lastElementChild.querySelector('.turn')`)
	b.picture("phone")
	b.do(emulation.ClearDeviceMetricsOverride())

	// mission: 7.8
	b.click(".top button", "End")
	b.confirmsEnd()
	b.sees(".ended", "This session has ended")
	b.sees(".ended button", "New session, same agent and repository")
	b.picture("ended")
	other.sees(".ended", "Reason:")
	other.sees(".ended summary", "Files with changes of the agent")
	other.until(`document.querySelector('.ended ul')?.textContent.includes('notes/plan.md')`)
	other.click(".ended a", "New session")
	other.sees("button", "Create a sandbox")
	other.do(chromedp.Evaluate(`document.querySelector('#side input[type=search]').focus()`, nil))
	other.types("nosuch")
	other.sees(".sessions", "No matches.")
	if out := h.Must("sessions", "--all", "-o", "name"); out != id {
		t.Errorf("the sessions are %q, the page showed %q", out, id)
	}
	b.harmless()
	other.harmless()
	b.leavesNoImages()
}
