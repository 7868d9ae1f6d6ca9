package page

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// saying passes requests on to a server, and inserts the events from the channel into the stream of the session that
// the page shows: not into that of its inbox, for example.
func saying(t *testing.T, to string, events <-chan string) string {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&httputil.ReverseProxy{FlushInterval: -1, Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(u)
		r.Out.Host = r.In.Host
	}, ModifyResponse: func(resp *http.Response) error {
		if resp.Request.URL.Query().Has("attended") {
			resp.Body = mixed(resp.Body, events)
		}
		return nil
	}})
	t.Cleanup(server.Close)
	return server.URL
}

type mixedBody struct {
	io.Reader
	close func() error
}

func (m mixedBody) Close() error { return m.close() }

func mixed(from io.ReadCloser, more <-chan string) io.ReadCloser {
	r, w := io.Pipe()
	done := make(chan struct{})
	go func() {
		_, err := io.Copy(w, from)
		_ = w.CloseWithError(err)
	}()
	go func() {
		for {
			select {
			case text := <-more:
				_, _ = io.WriteString(w, text) // it fails only when the reader is gone
			case <-done:
				return
			}
		}
	}()
	return mixedBody{r, func() error {
		close(done)
		_ = r.Close()
		return from.Close()
	}}
}

// tool returns the events of a tool call that took a number of milliseconds.
func tool(id string, took float64) string {
	return fmt.Sprintf("event: tool.started\ndata: {\"id\":%q,\"tool\":\"Read\"}\n\n", id) +
		fmt.Sprintf("event: tool.completed\ndata: {\"id\":%q,\"took_ms\":%g}\n\n", id, took)
}

// TestPageCards checks that a tool call and a message show their details: the duration, the output folded and in full,
// and code that can be copied. The line above the prompt shows that the agent thinks, for how long, and that it may
// hang. A hang takes five minutes, so the test inserts the server's event into the stream.
// mission: F2, 7.5, 7.6
func TestPageCards(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	root := h.Up()
	events := make(chan string)
	through := saying(t, root, events)
	b := browser(t) // it ends before the proxy of its streams
	b.signIn(strings.Replace(h.Must("key", "link"), root, through, 1))
	b.creates()
	b.click(".start summary", "Sandbox ready in")
	b.sees(".start li", "Repository")
	if got := b.value(`document.querySelector('.start ol').innerText`); b.value(`document.querySelectorAll('.start .problem').length`) != "0" || b.value(`[...document.querySelectorAll('.start .time')].every((e) => /^[\d.]+ (ms|s)$/.test(e.textContent))`) != "true" {
		t.Errorf("the start says %q", b.value(`document.querySelector('.start').innerText`)+got)
	}

	b.send("/run sleep 1; seq 1 30")
	b.until(`/^exit 0 · [\d.]+ m?s$/.test(document.querySelector('.tool .state')?.textContent)`)
	b.until(`/^[\d.]+ m?s/.test(document.querySelector('.note.turn')?.textContent)`)
	lines := func() string {
		return b.value(`document.querySelector('.tool .output').textContent.split('\n').length`)
	}
	b.sees(".tool button", "Show all 30 lines")
	if got := lines(); got != "12" {
		t.Errorf("of the output %s lines are shown", got)
	}
	b.click(".tool button", "Show all 30 lines")
	b.sees(".tool button", "Show the end only")
	if got := lines(); got != "30" {
		t.Errorf("of the whole output %s lines are shown", got)
	}

	// Code is copied, and selected if the browser forbids copying.
	const code = "func main() {\n\tfmt.Println(\"hello\") // greets\n}"
	b.send(answer)
	b.sees(".codehead .copy", "Copy")
	b.do(cdpbrowser.SetPermission(&cdpbrowser.PermissionDescriptor{Name: "clipboard-read"},
		cdpbrowser.PermissionSettingGranted),
		cdpbrowser.SetPermission(&cdpbrowser.PermissionDescriptor{Name: "clipboard-write"},
			cdpbrowser.PermissionSettingGranted))
	// The button shows the result for a moment only.
	b.do(chromedp.Evaluate(`window.copies = []; new MutationObserver(() => copies.push(document.querySelector('.codehead .copy')?.textContent)).observe(document.body, { childList: true, subtree: true, characterData: true })`, nil))
	b.do(chromedp.Click(`.codehead .copy`, chromedp.ByQuery))
	b.until(`copies.includes('Copied')`)
	if got := strings.TrimSpace(b.run(`return navigator.clipboard.readText()`)); got != code {
		t.Errorf("what was copied is %q", got)
	}
	b.sees(".codehead .copy", "Copy")
	b.do(chromedp.Evaluate(`navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed'))`, nil))
	b.do(chromedp.Click(`.codehead .copy`, chromedp.ByQuery))
	b.until(`copies.includes('Selected')`)
	if got := strings.TrimSpace(b.value(`getSelection().toString()`)); got != code {
		t.Errorf("what was selected is %q", got)
	}

	// A question needs an answer, either free text or an offered one. Without one, the page reports that it is missing.
	b.send("/ask Why? | because")
	b.click("form.question button", "Answer")
	b.sees("form.question [role=alert]", "Choose or write an answer")
	b.do(chromedp.SendKeys(`form.question input[type=text]`, "to see it", chromedp.ByQuery))
	b.click("form.question button", "Answer")
	b.sees(".message.agent", "The answer is to see it.")
	b.send("/ask And why? | because")
	b.click("form.question button", "No answer")
	b.sees(".message.agent", "No answer: the person gave no answer")

	// What an event means happens also if it cannot be shown, and a part that cannot be shown stops no other.
	events <- "event: agent.asked\ndata: {\"id\":\"x\",\"questions\":[{\"text\":\"Lost?\",\"options\":[null]}]}\n\n"
	b.sees(".note", "An event (agent.asked) could not be shown")
	b.until(`[...document.querySelectorAll('.news p')].some((e) => e.textContent === 'The agent asks: Lost?')`)
	events <- "event: message.completed\ndata: {\"id\":\"y\",\"text\":7}\n\n" +
		"event: message.completed\ndata: {\"id\":\"z\",\"text\":\"after it\"}\n\n"
	b.sees(".note", "A part of the conversation could not be shown")
	b.sees(".message.agent", "after it")

	// Settings of a repository that are not used are named.
	events <- "event: agent.overridden\n" +
		"data: {\"text\":\"<b>.claude/settings.json</b> sets model: it is not used\"}\n\n"
	b.sees(".note", "<b>.claude/settings.json</b> sets model: it is not used")

	// Commands of a dev container in the background have a card each, which ends with its stage, or with a failure.
	say := func(name, text string) string {
		return fmt.Sprintf("event: session.output\ndata: {\"id\":%q,\"text\":%q}\n\n", name, text)
	}
	events <- say("postCreateCommand", "one\n") + say("postStartCommand", "three\n") +
		say("postCreateCommand", "two\n") +
		"event: session.stage\ndata: {\"stage\":{\"name\":\"postCreateCommand\",\"ms\":1500}}\n\n"
	b.until(`[...document.querySelectorAll('.tool')].slice(-2).map((e) => [e.querySelector('b').textContent,
		e.querySelector('.output').textContent.trim(), e.querySelector('.state').textContent].join()).join('|')
		=== 'postCreateCommand,one\ntwo,done · 1.5 s|postStartCommand,three,running'`)
	events <- "event: session.notice\ndata: {\"reason\":\"command\",\"text\":\"postStartCommand failed\"}\n\n"
	b.sees(".note", "postStartCommand failed")
	b.until(`[...document.querySelectorAll('.tool .state')].at(-1).textContent === 'failed'`)

	// The plan is above the prompt, and how full the context is beside the cost.
	events <- "event: agent.plan\ndata: {\"plan\":[{\"text\":\"<b>look</b>\",\"status\":\"completed\"}," +
		"{\"text\":\"mend\",\"status\":\"in_progress\"},{\"text\":\"test\",\"status\":\"pending\"}]}\n\n"
	b.until(`document.querySelector('.plan summary').textContent === 'Plan: 1 of 3 · mend'`)
	b.click(".plan summary", "Plan")
	b.until(`[...document.querySelectorAll('.plan li')].map((e) => e.textContent).join() ===
		'✓ <b>look</b>, done,▸ mend, in work,○ test, open'`)
	b.accessible("a plan")
	b.picture("plan")
	events <- "event: agent.plan\ndata: {\"plan\":[]}\n\n"
	b.until(`!document.querySelector('.plan').checkVisibility()`)
	events <- "event: done\ndata: {\"message\":{\"id\":\"c\",\"prompt\":\"c\"}," +
		"\"context\":{\"used\":50000,\"size\":200000}}\n\n"
	b.until(`document.querySelector('.costs').textContent.endsWith(' · context 25 %')`)

	// The server reads the lines of the agent together: the duration of a short call is not exact.
	events <- tool("s", 0.004) + tool("m", 99.9) + tool("l", 250)
	b.until(`[...document.querySelectorAll('.tool .state')].slice(-3).map((e) => e.textContent).join()
		=== 'done · under 0.1 s,done · under 0.1 s,done · 250 ms'`)

	b.send("/sleep 600")
	b.until(`/^Thinking · \d+ s$/.test(document.querySelector('.status').textContent)`)
	events <- "event: session.status_changed\ndata: {\"status\":\"hung\",\"reason\":\"nothing was heard of the agent for 5m0s\"}\n\n"
	b.sees(".status", "it may hang")
	if got := b.value(`document.querySelector('.status').title`); !strings.Contains(got, "5m0s") {
		t.Errorf("why it may hang is said as %q", got)
	}
	b.accessible("an agent that may hang")
	b.click(".composer button", "Stop")
	b.sees(".note", "Stopped")

	// Prompts that the server cancels stay readable. The end offers those after which the person sent no other one.
	for _, prompt := range []string{"one", "two"} {
		b.send("/say before " + prompt)
		b.sees(".message.agent", "before "+prompt)
		events <- "event: message.cancelled\ndata: {\"reason\":\"the limit\",\"message\":{\"id\":\"" + prompt +
			"\",\"prompt\":\"cancelled " + prompt + "\"}}\n\n"
		b.sees(".note", "Not sent: cancelled "+prompt+" (the limit)")
	}
	b.ends()
	b.until(unsentPrompts + ` === 'cancelled two'`)
	b.clean()
	b.leavesNoImages()
}
