package page

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// pictures names the variable with a directory for screenshots; docs/ui.md has them.
const pictures = "HARVEST_TEST_PICTURES"

// tab is a tab of a real browser.
type tab struct {
	t       *testing.T
	ctx     context.Context
	front   *atomic.Pointer[tab] // the browser's tab that is seen
	dialogs atomic.Int32         // that scripts have opened

	mu     sync.Mutex
	errors []string // guarded by mu: uncaught errors of scripts
}

// browser starts Chromium with one tab.
func browser(t *testing.T, more ...chromedp.ExecAllocatorOption) *tab {
	t.Helper()
	program := testenv.RequireTool(t, "chromium", "chromium")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program),
		chromedp.UserDataDir(t.TempDir()), chromedp.WindowSize(1280, 800),
		chromedp.WSURLReadTimeout(2*time.Minute), chromedp.Flag("disable-background-networking", true))
	options = append(options, more...)
	if os.Geteuid() == 0 {
		options = append(options, chromedp.NoSandbox)
	}
	ctx, cancel := chromedp.NewExecAllocator(context.WithoutCancel(t.Context()), options...)
	t.Cleanup(cancel)
	return newTab(t, ctx, new(atomic.Pointer[tab]),
		chromedp.WithErrorf(func(string, ...any) {})) // it reports unknown events of newer browsers
}

func newTab(t *testing.T, parent context.Context, front *atomic.Pointer[tab], options ...chromedp.ContextOption) *tab {
	t.Helper()
	ctx, cancel := chromedp.NewContext(parent, options...)
	t.Cleanup(func() {
		if err := chromedp.Cancel(ctx); err != nil {
			t.Logf("end the browser: %v", err)
		}
		cancel()
	})
	b := &tab{t: t, ctx: ctx, front: front}
	chromedp.ListenTarget(ctx, func(e any) {
		switch e := e.(type) {
		case *page.EventJavascriptDialogOpening:
			if e.Type == page.DialogTypeBeforeunload { // the page asks before unsaved changes are lost: leave
				go func() {
					_ = chromedp.Run(ctx,
						page.HandleJavaScriptDialog(true))
				}() // it fails when the tab has closed
				return
			}
			b.dialogs.Add(1)
		case *runtime.EventExceptionThrown:
			b.mu.Lock()
			defer b.mu.Unlock()
			b.errors = append(b.errors, e.ExceptionDetails.Error())
		}
	})
	if err := chromedp.Run(ctx); err != nil { // the context of the first run is the tab's
		t.Fatal(err)
	}
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := page.AddScriptToEvaluateOnNewDocument(`window.refused = []; addEventListener('securitypolicyviolation', (e) => window.refused.push(e.violatedDirective + ' ' + e.blockedURI + ' ' + e.sample));`).Do(ctx)
		return err
	}))
	return b
}

// another opens another tab of the same browser.
func (b *tab) another() *tab {
	b.t.Helper()
	return newTab(b.t, b.ctx, b.front)
}

// do performs actions, with a limit of two minutes. The tab comes to the front first: a hidden tab draws no frames, and
// its input waits for one.
func (b *tab) do(actions ...chromedp.Action) {
	b.t.Helper()
	if b.front != nil && b.front.Swap(b) != b {
		actions = append([]chromedp.Action{page.BringToFront()}, actions...)
	}
	ctx, cancel := context.WithTimeout(b.ctx, 2*time.Minute)
	defer cancel()
	if err := chromedp.Run(ctx, actions...); err != nil {
		seen, stop := context.WithTimeout(b.ctx, 10*time.Second)
		defer stop()
		text := ""
		_ = chromedp.Run(seen, chromedp.Evaluate(`document.body.innerText.slice(-3000)`, &text))
		b.t.Fatalf("%v; the page says:\n%s", err, text)
	}
}

// until waits for an expression to be true.
func (b *tab) until(expression string) {
	b.t.Helper()
	b.do(evaluated{chromedp.Poll(expression, nil, chromedp.WithPollingInterval(50*time.Millisecond),
		chromedp.WithPollingTimeout(0))})
}

// evaluated is an action that evaluates one expression. It starts again if the page was replaced before the browser
// began to evaluate: the protocol names the page by a number, which is then stale.
type evaluated struct{ chromedp.Action }

// Do implements chromedp.Action.
func (e evaluated) Do(ctx context.Context) error {
	for {
		err := e.Action.Do(ctx)
		if err == nil || !strings.Contains(err.Error(), "Cannot find context with specified id") {
			return err
		}
		if err := chromedp.Sleep(50 * time.Millisecond).Do(ctx); err != nil {
			return err
		}
	}
}

// sees waits for a text in the elements of a selector.
func (b *tab) sees(selector, text string) {
	b.t.Helper()
	b.until(`[...document.querySelectorAll(` + quoted(selector) + `)].some((e) => e.checkVisibility() && e.textContent.includes(` + quoted(text) + `))`)
}

// confirmsEnd ends the session in its dialog, and discards the changes that are not taken, if the page asks.
func (b *tab) confirmsEnd() {
	b.t.Helper()
	b.click("dialog button", "End it")
	b.until(`(([...document.querySelectorAll('dialog button')].find((e) => e.textContent === 'End and discard them' &&
		!e.disabled)?.click()), !!document.querySelector('.ended'))`)
}

// click waits for an element of a selector with a text, and clicks it before the page can be redrawn.
func (b *tab) click(selector, text string) {
	b.t.Helper()
	b.until(`((e) => e ? (e.click(), true) : false)([...document.querySelectorAll(` + quoted(selector) + `)].find((e) => e.checkVisibility() && !e.disabled && e.textContent.includes(` + quoted(text) + `)))`)
}

// press is click for a button that has a label instead of a text.
func (b *tab) press(label string) {
	b.t.Helper()
	b.until(`((e) => e ? (e.click(), true) : false)([...document.querySelectorAll('[aria-label]')].find((e) => !e.disabled && e.getAttribute('aria-label') === ` + quoted(label) + `))`)
}

func (b *tab) value(expression string) string {
	b.t.Helper()
	text := ""
	b.do(evaluated{chromedp.Evaluate(`String(`+expression+`)`, &text)})
	return text
}

// signIn opens a sign-in link, presses its button, and waits for the page behind it.
func (b *tab) signIn(link string) {
	b.t.Helper()
	b.do(chromedp.Navigate(link))
	b.loads("#sign-in")
}

// loads clicks an element, and waits for the page that this loads.
func (b *tab) loads(selector string) {
	b.t.Helper()
	b.do(chromedp.ActionFunc(func(ctx context.Context) error {
		_, err := chromedp.RunResponse(ctx, chromedp.Click(selector, chromedp.ByQuery))
		return err
	}))
}

// send writes a prompt and submits it.
func (b *tab) send(prompt string) {
	b.t.Helper()
	b.until(`document.querySelector('.composer textarea').value === '' && !document.querySelector('.composer [type=submit]').disabled`)
	b.do(chromedp.Evaluate(`{ const e = document.querySelector('.composer textarea'); e.focus(); e.value = `+quoted(prompt)+`; e.form.requestSubmit(); }`, nil))
}

// picture keeps a screenshot, if configured.
func (b *tab) picture(name string) {
	b.t.Helper()
	dir := os.Getenv(pictures)
	if dir == "" {
		return
	}
	var data []byte
	b.do(chromedp.CaptureScreenshot(&data))
	data, err := small(data)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), data, 0o600); err != nil {
		b.t.Fatal(err)
	}
}

func quoted(text string) string {
	data, _ := json.Marshal(text) // which cannot fail
	return string(data)
}

// run evaluates a function body that may wait, and returns its result as text.
func (b *tab) run(body string) string {
	b.t.Helper()
	text := ""
	b.do(chromedp.Evaluate(`(async () => { `+body+` })().then((v) => String(v))`, &text,
		func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return text
}

// clean is harmless, and also requires that the policy blocked nothing. The policy also reports the sanitiser's
// findings in hostile texts.
func (b *tab) clean() {
	b.t.Helper()
	b.harmless()
	if got := b.value(`window.refused.join('\n')`); got != "" {
		b.t.Errorf("the page did what its policy refuses: %s", got)
	}
}

// harmless fails the test if a forbidden script ran, or if one of our scripts failed.
func (b *tab) harmless() {
	b.t.Helper()
	if got := b.value(`window.pwned`); got != "undefined" || b.dialogs.Load() != 0 {
		b.t.Errorf("a script ran: %s, %d dialogs", got, b.dialogs.Load())
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.errors) > 0 {
		b.t.Errorf("scripts failed: %s", strings.Join(b.errors, "\n"))
	}
}

// accessible fails the test if axe-core (https://github.com/dequelabs/axe-core) finds anything serious in the current
// page, in the light or the dark scheme.
func (b *tab) accessible(view string) {
	b.t.Helper()
	script, err := os.ReadFile("testdata/axe/axe.js")
	if err != nil {
		b.t.Fatal(err)
	}
	if b.value(`typeof axe`) == "undefined" {
		b.do(chromedp.Evaluate(string(script)+`;0`, nil))
	}
	for _, scheme := range []string{"light", "dark"} {
		b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme",
			Value: scheme}}))
		found := b.run(`const r = await axe.run({ exclude: [['iframe'], ['.xterm']] }, { resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'best-practice'] });
			return r.violations.filter((v) => ['serious', 'critical'].includes(v.impact)).map((v) => v.id + ': ' + v.help + ' ' + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 200) + ' ' + (n.any[0]?.message ?? '')).join(' | ')).join('\n');`)
		if found != "" {
			b.t.Errorf("%s, %s: %s", view, scheme, found)
		}
	}
	b.do(emulation.SetEmulatedMedia())
}

// signedIn opens a link that signs in.
func (b *tab) signedIn(h *host.Host) {
	b.t.Helper()
	b.signIn(h.Must("key", "link"))
	b.sees("button", "Create a sandbox")
}

// creates submits the session form unchanged, and returns the session's id.
func (b *tab) creates() string {
	b.t.Helper()
	b.click("button", "Create a sandbox")
	b.sees(".start", "Sandbox ready in")
	return strings.TrimPrefix(b.value(`location.hash`), "#/s/")
}

// fill writes into a field of a label.
func (b *tab) fill(label, text string) {
	b.t.Helper()
	b.until(`[...document.querySelectorAll('label.field')].some((l) => l.checkVisibility() && l.firstChild.textContent === ` + quoted(label) + `)`)
	b.do(chromedp.Evaluate(`{ const l = [...document.querySelectorAll('label.field')].find((l) => l.checkVisibility() && l.firstChild.textContent === `+quoted(label)+`); const i = l.querySelector('input, select, textarea');
		i.value = `+quoted(text)+`; i.dispatchEvent(new Event('input', { bubbles: true })); i.dispatchEvent(new Event('change', { bubbles: true })); }`, nil))
}

// types types into the focused element, one key after the other, as a person does: a browser derives the character from
// the key.
func (b *tab) types(text string) {
	b.t.Helper()
	for _, r := range text {
		key := string(r)
		if r == '\r' {
			key = "Enter"
		}
		down := input.DispatchKeyEvent(input.KeyDown).WithKey(key).WithText(string(r))
		up := input.DispatchKeyEvent(input.KeyUp).WithKey(key)
		if r == '\r' {
			down, up = down.WithWindowsVirtualKeyCode(13), up.WithWindowsVirtualKeyCode(13)
		}
		b.do(down, up)
	}
}

// view opens a view beside a conversation.
func (b *tab) view(name string) {
	b.t.Helper()
	b.click(".tabs button", name)
	b.until(`[...document.querySelectorAll('.tabs button')].some((e) => e.textContent === ` + quoted(name) + ` && e.getAttribute('aria-selected') === 'true')`)
}

func shellQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// leavesNoImages ends everything, and removes the snapshots of it from the images, which other tests share.
func (b *tab) leavesNoImages() {
	b.t.Helper()
	b.run(`const all = async (path) => (await (await fetch(path + '?all=true&limit=1000')).json()).data;
		for (const s of await all('v1/sessions')) await fetch('v1/sessions/' + s.id, { method: 'DELETE' });
		const boxes = new Set();
		for (const s of await all('v1/sandboxes')) {
			boxes.add(s.id);
			if (!s.ended_at) await fetch('v1/sandboxes/' + s.id, { method: 'DELETE' });
		}
		for (const i of await all('v1/images')) if (i.snapshot && boxes.has(i.snapshot.lineage.at(-1).sandbox)) await fetch('v1/images/' + i.id, { method: 'DELETE' });`)
}
