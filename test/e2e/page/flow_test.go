package page

import (
	"encoding/json"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// hand is a way to use the page.
type hand interface {
	press(text string)        // a button, link or summary with this text
	open(view string)         // a tab
	write(label, text string) // into the field of this label
	choose(label, option, value string)
}

// inPage is a script that finds the visible control with a text.
func inPage(text string) string {
	return `[...document.querySelectorAll('button, a, summary')].filter((e) => !e.disabled && e.checkVisibility() && (!document.querySelector('dialog[open]') || e.closest('dialog'))).find((e) => e.textContent.trim() === ` + quoted(text) + `)`
}

// field is a script that finds the visible input of a label.
func field(label string) string {
	return `[...document.querySelectorAll('label.field')]
		.find((l) => l.checkVisibility() && l.firstChild.textContent === ` + quoted(label) + `)
		?.querySelector('input, textarea, select')`
}

// mouse uses the page with clicks at the places where things are seen.
type mouse struct{ *tab }

// place brings an element into sight, and returns the place at which a person points to it.
func (b *tab) place(element string) (x, y float64) {
	b.t.Helper()
	b.until(`Boolean(` + element + `)`)
	var at struct {
		X, Y float64
		Hit  bool
	}
	b.do(chromedp.Evaluate(`(() => { const e = `+element+`;
		e.scrollIntoView({ block: 'nearest', inline: 'nearest' });
		const r = e.getBoundingClientRect();
		const [X, Y] = [r.x + r.width / 2, r.y + r.height / 2];
		return { X, Y, Hit: e.contains(document.elementFromPoint(X, Y)) }; })()`, &at))
	if !at.Hit {
		b.t.Errorf("something else is in front of %s", element)
	}
	return at.X, at.Y
}

func (m mouse) click(element string) {
	m.t.Helper()
	x, y := m.place(element)
	m.do(chromedp.MouseClickXY(x, y))
}

func (m mouse) press(text string)        { m.click(inPage(text)) }
func (m mouse) open(view string)         { m.press(view) }
func (m mouse) write(label, text string) { m.writes(m.click, label, text) }

// choose sets the value: the list of a select is a window of the browser's own.
func (m mouse) choose(label, _, value string) { m.fill(label, value) }

// writes gives the focus to a field with click, and replaces its text.
func (b *tab) writes(click func(element string), label, text string) {
	b.t.Helper()
	click(field(label))
	b.until(`document.activeElement === ` + field(label))
	b.do(chromedp.Evaluate(`document.activeElement.select()`, nil))
	b.types(text)
}

// touch uses the page with taps.
type touch struct{ *tab }

func (f touch) tap(element string) {
	f.t.Helper()
	x, y := f.place(element)
	f.do(input.DispatchTouchEvent(input.TouchStart, []*input.TouchPoint{{X: x, Y: y}}),
		input.DispatchTouchEvent(input.TouchEnd, []*input.TouchPoint{}))
}

func (f touch) press(text string)             { f.tap(inPage(text)) }
func (f touch) open(view string)              { f.press(view) }
func (f touch) write(label, text string)      { f.writes(f.tap, label, text) }
func (f touch) choose(label, _, value string) { f.fill(label, value) }

// keyboard uses the page with keys only.
type keyboard struct{ *tab }

func (k keyboard) to(element string) {
	k.t.Helper()
	k.until(`Boolean(` + element + `)`)
	for range 150 {
		if k.value(`document.activeElement === `+element) == "true" {
			return
		}
		k.keys(kb.Tab)
	}
	k.t.Fatalf("Tab does not go to %s", element)
}

func (k keyboard) press(text string) {
	k.to(inPage(text))
	k.keys(kb.Enter)
}

func (k keyboard) open(view string) {
	k.to(`document.querySelector('[role=tab][aria-selected=true]')`)
	for range 10 {
		if k.value(`document.activeElement.textContent`) == view {
			return
		}
		k.keys(kb.ArrowRight)
	}
	k.t.Fatalf("the arrows do not go to %s", view)
}

func (k keyboard) write(label, text string) { k.writes(k.to, label, text) }

func (k keyboard) choose(label, option, value string) {
	k.to(field(label))
	k.types(option)
	k.until(field(label) + `.value === ` + quoted(value))
}

// arrives waits for a control on a page that may still replace the current one.
func (b *tab) arrives(text string) {
	b.t.Helper()
	testenv.Eventually(b.t, "the page has "+text, func() bool {
		there := false
		err := chromedp.Run(b.ctx, chromedp.Evaluate(`Boolean(`+inPage(text)+`)`, &there))
		return err == nil && there
	})
}

// TestPageFlow goes the way of a new user with nothing but the link: sign-in, repository, prompt, changes, pull
// request, by mouse, by keyboard alone, and by touch on a phone.
// mission: F2, 7.1, 7.3, E8
func TestPageFlow(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	const token = "ghp_FLOW77d0"
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Up()
	pulls := &pullsAPI{token: token, opened: []map[string]any{{}}} // the first one would be refused
	github := httptest.NewServer(pulls)
	t.Cleanup(github.Close)
	g := host.NewGit(t, token)
	address := strings.TrimPrefix(g.Server.URL, "http://")
	_, port, _ := strings.Cut(address, ":")
	h.Must("secret", "set", "git", "GIT_HOST=10.0.2.2:"+port, "GIT_PASSWORD="+token, "GITHUB_API_URL="+github.URL)
	g.Commit("owner/sample", map[string]string{"README.md": "one\n"})
	host.RunGit(t, g.Dir, "-C", filepath.Join(g.Dir, "owner", "sample.git"), "config", "http.receivepack", "true")

	for name, with := range map[string]func(b *tab) hand{
		"mouse":    func(b *tab) hand { return mouse{b} },
		"keyboard": func(b *tab) hand { return keyboard{b} },
		"phone": func(b *tab) hand {
			b.do(emulation.SetDeviceMetricsOverride(390, 844, 1, true),
				emulation.SetTouchEmulationEnabled(true))
			return touch{b}
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := browser(t)
			use := with(b)
			b.do(chromedp.Navigate(h.Must("key", "link")))
			use.press("Sign in")
			b.arrives("Create a sandbox")
			use.write("Repository", g.URL("owner/sample"))
			use.write("First prompt", "/write "+name+".md Look first.")
			// The test's git server is in a network that sandboxes do not reach unless it is listed.
			use.press("Branch, image, network, limits")
			use.choose("Network", "Only", "allow")
			use.write("Allowed hosts", address)
			use.press("Create a sandbox")
			b.sees(".status", "Done")
			b.sees(".tool .diff .added", "Look first.")
			use.open("Changes")
			b.sees(".of-changes .diff .added", "Look first.")
			use.press("Pull request")
			use.write("Title", "By "+name)
			use.write("Text", "It looks.")
			b.picture("flow-" + name)
			use.press("Open it")
			b.sees(".of-changes [role=status]", "Opened https://github.example/owner/sample/pull/12")
			if got := b.value(`document.activeElement.textContent`); name == "keyboard" && got != "Pull request" {
				t.Errorf("after the pull request the focus is at %q", got)
			}
			use.press("Bring up to date") // which is disabled meanwhile
			b.sees(".of-changes [role=status]", "The branch is on top of 0 new commits")
			if got := b.value(`document.activeElement.textContent`); name == "keyboard" && got != "Bring up to date" {
				t.Errorf("after an action the focus is at %q", got)
			}
			use.open("Network")
			b.sees(".of-network .uses td", "POST 10.0.2.2/owner/sample.git/git-receive-pack")
			b.picture("credentials-" + name)
			if wide := b.value(`document.documentElement.scrollWidth - innerWidth`); wide != "0" {
				t.Errorf("the page is %s pixels too wide", wide)
			}
			pulls.mu.Lock()
			last, _ := json.Marshal(pulls.opened[len(pulls.opened)-1])
			pulls.mu.Unlock()
			if !strings.Contains(string(last), `"title":"By `+name+`"`) {
				t.Errorf("GitHub was asked for %s", last)
			}
			b.clean()
			b.leavesNoImages()
		})
	}
}
