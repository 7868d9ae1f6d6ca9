package page

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
	"github.com/RelevanceAI/harvest/test/stubs/modeltest"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// TestPageEnd checks that the options work, that a turn can be stopped, and that the end reports the state of the
// files: those in S3, the kept ones, and the changes. A session can be resumed with them.
// mission: 7.7, 7.8, 7.10, D2, D3
func TestPageEnd(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	s3 := host.NewS3(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Env.Setenv("HARVEST_S3_ENDPOINT", "http://"+s3.Address)
	h.Env.Setenv("HARVEST_S3_PATH_STYLE", "true")
	h.Up()
	h.Must("secret", "set", "aws", "AWS_ACCESS_KEY_ID="+s3test.AccessKey, "AWS_SECRET_ACCESS_KEY="+s3test.SecretKey,
		"AWS_REGION=us-east-1")
	if err := os.MkdirAll(filepath.Join(s3.Dir, "work"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s3.Dir, "work", "in.txt"), []byte("from the bucket"), 0o644); err != nil {
		t.Fatal(err)
	}
	b := browser(t)
	b.signedIn(h)
	b.do(chromedp.Evaluate(`document.querySelector('.new details').open = true`, nil))
	b.fill("Directory", "relative")
	b.fill("Bucket", s3.Bucket)
	b.click("button", "Create a sandbox")
	b.sees(".problem", "invalid mount point \"relative\"")
	b.click(".ended button", "New session, same agent")
	b.sees("button", "Create a sandbox")
	b.do(chromedp.Evaluate(`document.querySelector('.new details').open = true`, nil))
	b.fill("Bucket", s3.Bucket)
	for label, value := range map[string]string{"Directory": "/data", "Prefix": "work", "Cores": "0.5",
		"Memory, GiB": "0.5", "Lifetime, hours": "2", "Turns at most": "3", "Network": "none"} {
		b.fill(label, value)
	}
	b.do(chromedp.Evaluate(`document.querySelector('[name=volume]').value = 'notes'; document.querySelector('[name=volumePath]').value = '/notes'`, nil))
	id := b.creates()
	var box struct {
		Limits  struct{ CPU float64 }
		Network struct{ Mode string }
		Volumes []struct{ Name, Path string }
	}
	if err := json.Unmarshal([]byte(h.Must("sandbox", "get", h.Box(), "-o", "json")), &box); err != nil {
		t.Fatal(err)
	}
	if box.Limits.CPU != 0.5 || box.Network.Mode != "none" || !strings.Contains(fmt.Sprint(box.Volumes),
		"{notes /notes}") {
		t.Errorf("the sandbox is %+v", box)
	}
	b.send("/run echo made >/data/out.txt; echo noted >/notes/n.txt; cat /data/in.txt; sleep 600") // the visible output comes last: the turn is stopped then
	b.sees(".tool .output", "from the bucket")
	b.sees(".status", "Running a tool")
	b.click(".composer button", "Stop")
	b.sees(".note", "Stopped")
	b.send("/write kept.txt It is kept.\n/say the words that are searched for")
	b.sees(".message.agent", "searched for")
	b.click(".top button", "Search")
	b.do(chromedp.Evaluate(`{ const i = document.querySelector('.find input'); i.value = 'SEARCHED'; i.dispatchEvent(new Event('input')); }`, nil))
	b.sees(".find", "2 of 2")
	b.sees(".item.found", "searched for")

	// The end asks again before it loses a commit that is not handed back.
	b.send("/run git commit -q --allow-empty -m Base; git switch -q -c aside; " +
		"git commit -q --allow-empty -m Aside; git switch -q -; echo aside it is")
	b.sees(".tool .output", "aside it is")
	b.sees(".status", "Done")
	b.click(".top button", "End")
	b.click("dialog button", "End it")
	b.sees("dialog", "discard changes?")
	b.sees("dialog", "branch aside")
	b.accessible("the end that loses changes")
	b.click("dialog button", "End and discard them")
	b.sees(".ended", "Reason:")
	b.sees(".ended .s3", "s3://"+s3.Bucket+"/work")
	b.until(`/: \d+ files?, \d+ B; unchanged: 1 file\.$/.test(document.querySelector('.ended .s3').textContent)`)
	b.sees(".ended summary", "The agent's changes")
	b.do(chromedp.Evaluate(`document.querySelector('.ended details').open = true`, nil))
	b.sees(".ended .added", "It is kept.")
	b.accessible("the end")
	b.picture("ended")
	if data, err := os.ReadFile(filepath.Join(s3.Dir, "work", "out.txt")); string(data) != "made\n" {
		t.Errorf("the bucket has %q, %v", data, err)
	}
	b.click(".ended .resume", "Continue with its files")
	b.until(`location.hash.startsWith('#/s/ses_') && !location.hash.includes(` + quoted(id) + `) && document.querySelector('.top').textContent.includes(location.hash.slice(4))`)
	b.sees(".start", "Sandbox ready in")
	b.view("Files")
	b.sees(".tree .name", "kept.txt")
	pageSyncs(b, h, s3)
	b.clean()
	b.leavesNoImages()
}

// TestPageClaude checks that the real Claude Code completes a turn in a browser that begins with a click and asks
// before it writes a file.
// mission: 7.3, 7.4, 7.5, 7.6, E1
func TestPageClaude(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	stub := modeltest.New(t, host.ModelKey)
	stub.Script("page",
		modeltest.Step{Say: "I **look** around.", Call: "Bash",
			Input: map[string]any{"command": "echo from the real program", "description": "look"}},
		modeltest.Step{Call: "Write", Input: map[string]any{"file_path": "/workspace/work" + "/new.txt",
			"content": "written by the agent\n"}},
		modeltest.Step{Call: "Write", Input: map[string]any{"file_path": "/workspace/work" + "/other.txt",
			"content": "not to be written\n"}},
		modeltest.Step{Say: "All done:\n\n```python\nprint(\"done\")\n```"})
	h := host.NewCLI(t, stub)
	h.Up()
	b := browser(t)
	b.signedIn(h)
	b.do(chromedp.Evaluate(`document.querySelector('.new details').open = true`, nil))
	b.fill("Approval", "ask")
	b.fill("Network", "none")
	b.fill("First prompt", "[page] Look around and make new.txt.")
	if agent := b.value(`document.querySelector('[name=agent]').value`); agent != "claude" {
		t.Errorf("with a key the agent is %s", agent)
	}
	b.creates()
	b.sees(".message.agent strong", "look")
	b.sees(".tool .output", "from the real program") // printing needs no permission
	b.sees("form.question", "asks to run")
	b.sees("form.question .added", "written by the agent")
	b.sees(".status", "Waiting for your answer")
	b.accessible("approval")
	b.picture("approval")
	b.click("form.question button", "Allow")
	b.sees(".tool .diff .added", "written by the agent")
	b.sees("form.question .added", "not to be written")
	b.click("form.question button", "Deny")
	b.sees(".tool.failed", "other.txt")
	for range 2 { // the permissions stay in the history
		b.until(`[...document.querySelectorAll('.question.settled')].map(
			(e) => /asked to run: (\w+)/.exec(e.textContent)?.[1]).join() === 'allowed,denied'`)
		b.sees(".question.settled", "the person said no")
		b.do(chromedp.Reload())
	}
	b.sees(".message.agent .codehead", "python")
	b.sees(".status", "Done")
	b.sees(".costs", "1 turn ·")
	if cost := b.value(`document.querySelector('.costs').textContent`); strings.Contains(cost, " 0 tokens") {
		t.Errorf("the usage is %s", cost)
	}
	if out := h.Must("sandbox", "exec", h.Box(), "--", "cat",
		"/workspace/work"+"/new.txt"); out != "written by the agent" {
		t.Errorf("the file is %q", out)
	}
	if out := h.Must("sandbox", "exec", h.Box(), "--", "ls", "/workspace/work"); strings.Contains(out, "other.txt") {
		t.Errorf("what was denied was written: %q", out)
	}
	b.picture("claude")

	b.click(".top button", "End")
	b.confirmsEnd()
	b.click(".ended .resume", "Continue with its files")
	b.sees(".start", "Sandbox ready in")
	b.until(`document.querySelector('.items').textContent.includes('Continued: ') && [...document.querySelectorAll(
		'.question.settled')].map((e) => /asked to run: (\w+)/.exec(e.textContent)?.[1]).join() === 'allowed,denied'`)
	b.sees(".question.settled", "the person said no")
	b.sees(".tool.failed summary", "other.txt")
	b.clean()
	b.leavesNoImages()
}

// TestPageLong checks that the page handles ten thousand messages: messages far from the view are not in the document,
// yet all of them can be reached and found.
// mission: 7.10
func TestPageLong(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Up()
	b := browser(t)
	b.signedIn(h)
	b.creates()
	const count = 10_000
	var orders strings.Builder
	for i := range count {
		fmt.Fprintf(&orders, "/say Message %d with **bold** and `code`.\n", i)
	}
	b.send(orders.String())
	b.until(`document.querySelector('.status').textContent === 'Done'`)
	b.sees(".log", fmt.Sprintf("Message %d with", count-1))
	b.do(chromedp.Reload())
	b.sees(".log", fmt.Sprintf("Message %d with", count-1))
	b.until(`document.querySelector('.items').lastElementChild.querySelector('.turn')`)
	if got := b.value(`document.querySelectorAll('.item').length < 200`); got != "true" {
		t.Errorf("%s parts are in the document", b.value(`document.querySelectorAll('.item').length`))
	}
	b.run(`document.querySelector('.log').scrollTop = 0`)
	b.sees(".log", "Message 0 with")
	b.until(`!document.querySelector('.latest').hidden`)
	b.click(".top button", "Search")
	b.do(chromedp.Evaluate(`{ const i = document.querySelector('.find input'); i.value = 'Message 4711 with'; i.dispatchEvent(new Event('input')); }`, nil))
	b.sees(".item.found", "Message 4711 with")
	b.click(".latest", "Latest")
	b.sees(".log", fmt.Sprintf("Message %d with", count-1))
	if os.Getenv(measure) != "" {
		b.measureScroll()
	}
	b.clean()
	b.leavesNoImages()
}

// behindMenu is a script that scrolls the view and names the elements that get behind the button of the menu.
const behindMenu = `(() => {
	const r = document.querySelector('.menu').getBoundingClientRect();
	const found = new Set();
	for (const scroller of document.querySelectorAll('.scroll, .panel, .log')) {
		const was = scroller.scrollTop;
		for (let y = 0; y < scroller.scrollHeight && y < 2000; y += 20) {
			scroller.scrollTop = y;
			for (const [x, z] of [[r.left, r.top], [r.left, r.bottom - 1], [r.left + r.width / 2, r.top + r.height / 2]]) {
				for (const e of document.elementsFromPoint(x, z)) {
					if (!e.matches('.menu, .top, .what, main, body, html')) found.add(e.tagName + '.' + e.className);
				}
			}
		}
		scroller.scrollTop = was;
	}
	return [...found].join(', ');
})()`

// cutPlaceholders is a script that names the placeholders that have more text than their fields have room for.
const cutPlaceholders = `(() => {
	const pen = document.createElement('canvas').getContext('2d');
	const all = [...document.querySelectorAll('input[placeholder], textarea[placeholder]')];
	return all.filter((e) => e.checkVisibility()).filter((e) => {
		const s = getComputedStyle(e);
		pen.font = s.font;
		const room = e.clientWidth - parseFloat(s.paddingLeft) - parseFloat(s.paddingRight);
		return pen.measureText(e.placeholder).width > room * (e.rows ?? 1);
	}).map((e) => e.placeholder).join('; ');
})()`

// A phone shows every view without anything beyond its width, behind the button of the menu, or cut in a field.
// mission: F2
func TestPagePhone(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Up()
	b := browser(t)
	b.do(emulation.SetDeviceMetricsOverride(390, 844, 1, true))
	b.signedIn(h)
	fits := func(name string) {
		t.Helper()
		if wide := b.value(`document.documentElement.scrollWidth`); wide != "390" {
			t.Errorf("%s is %s wide", name, wide)
		}
		if got := b.value(behindMenu); got != "" {
			t.Errorf("%s: behind the button of the menu is %s", name, got)
		}
		if got := b.value(cutPlaceholders); got != "" {
			t.Errorf("%s: these placeholders are cut: %s", name, got)
		}
		b.picture("phone-" + name)
	}
	fits("new")
	b.do(chromedp.Evaluate(`document.querySelector('.new details').open = true`, nil))
	fits("options")
	session := b.creates()
	b.send("/say Words with a_very_long_word_" + strings.Repeat("that_goes_on_",
		20) + "\n/run seq 1 30\n/write notes.md Look first.")
	b.sees(".status", "Done")
	fits("chat")
	b.accessible("chat on a phone")
	b.send("/ask Which? | red | blue")
	b.sees("form.question legend", "Which?")
	fits("question")
	b.click("form.question button", "No answer")
	b.sees(".status", "Done")
	for _, view := range []string{"Terminal", "Files", "Changes", "Preview", "Network", "Start", "Usage"} {
		b.view(view)
		b.until(`document.querySelector('.panel h2')`)
		b.until(`!document.querySelector('.chat').checkVisibility()`)
		fits(strings.ToLower(view))
	}
	b.click("button", "Sessions")
	b.until(`document.querySelector('#side').classList.contains('open')`)
	b.accessible("the menu on a phone")
	for _, id := range []string{"sandboxes", "sessions", "images", "volumes", "secrets", "schedules", "keys", "costs",
		"audit", "doctor"} {
		b.do(chromedp.Evaluate(`location.hash = '#/`+id+`'`, nil))
		b.until(`document.querySelector('.list-view.of-` + id + `') && !document.querySelector('.list-view').textContent.includes('Loading…')`)
		fits(id)
	}
	// The end is seen from each view.
	b.do(chromedp.Evaluate(`location.hash = '#/s/`+session+`'`, nil))
	b.view("Changes")
	b.click(".top button", "End")
	b.confirmsEnd()
	b.sees(".ended", "This session has ended")
	fits("ended")
	b.clean()
	b.leavesNoImages()
}
