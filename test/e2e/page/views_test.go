package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestPageViews checks that the views beside the conversation work: the terminal, files, changes, ports, the network,
// the start and the usage, with a repository that accepts pushes.
// mission: F2
func TestPageViews(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Env.Setenv("HARVEST_USAGE_INTERVAL", "1s")
	h.Up()
	g := host.NewGit(t, "")
	g.Commit("sample", map[string]string{"README.md": "# A sample\n"})
	host.RunGit(t, g.Dir, "-C", filepath.Join(g.Dir, "sample.git"), "config", "http.receivepack", "true")
	b := browser(t)
	b.signedIn(h)
	b.do(chromedp.Evaluate(`document.querySelector('.new details').open = true`, nil))
	b.picture("options")
	b.accessible("new session")
	b.fill("Repository", g.URL("sample"))
	b.fill("Network", "allow")
	b.fill("Allowed hosts", strings.TrimPrefix(g.Server.URL, "http://"))
	b.creates()

	viewTerminal(b)
	viewFiles(b)
	viewChanges(b, g)
	viewPreview(b)
	viewNetwork(b)

	b.view("Start")
	b.sees(".of-startup .waterfall", "sandbox")
	b.sees(".of-startup dd", "gvisor")
	b.accessible("start")
	b.picture("start")
	viewUsage(b, h)

	viewPorts(b, h)

	// The views have separate addresses, also for any sandbox.
	b.do(chromedp.Reload())
	b.sees(".of-usage .list", "Turn")
	b.view("Conversation")
	b.until(`document.querySelector('.panel').hidden`)
	b.accessible("chat")
	b.do(chromedp.Evaluate(`location.hash = '#/sandboxes'`, nil))
	b.click(".list a", "sbx_")
	b.sees("h1", "sbx_")
	b.sees(".of-startup .waterfall", "boot")
	b.accessible("a sandbox")
	b.picture("sandbox")
	b.view("Usage")
	b.sees(".machine figcaption", "at most")
	b.view("Files")
	b.sees(".tree .name", "etc/")
	b.clean()
	b.leavesNoImages()
}

// viewUsage shows the sandbox's usage of the machine, as curves, in words and in numbers: those of a busy command are
// higher.
func viewUsage(b *tab, h *host.Host) {
	b.t.Helper()
	b.view("Usage")
	b.sees(".of-usage .turns .list", "Turn")
	b.until(`document.querySelectorAll('.of-usage .plot canvas').length === 6`)
	b.sees(".machine figcaption", "received and")
	const last = `[...[...document.querySelectorAll('.machine tbody tr')].at(-1).querySelectorAll('data')].map((d) => Number(d.value))`
	b.run(`window.quiet = ` + last)
	b.send(`/run python3 -c 'import os; b = bytearray(b"x") * (100 << 20); [None for _ in iter(lambda: os.path.exists("/tmp/stop"), True)]'`)
	b.until(`(([cores, memory]) => cores > window.quiet[0] + 0.05 && memory > window.quiet[1] + 90 * 2 ** 20)(` + last + `)`)
	words := b.value(`[...document.querySelectorAll('.machine figcaption')].map((e) => e.textContent).join(' | ')`)
	for _, want := range []string{"Cores", "now of 2", "Memory", "MiB now of 2.0 GiB, at most 1",
		"Network", "/s received and", "in all"} {
		if !strings.Contains(words, want) {
			b.t.Errorf("the words are %q, without %q", words, want)
		}
	}
	h.Must("sandbox", "exec", h.Must("sandbox", "ls", "-o", "name"), "--", "touch", "/tmp/stop")
	b.until(`(([cores, memory]) => memory < window.quiet[1] + 50 * 2 ** 20)(` + last + `)`)
	b.sees(".status", "Done")
	b.accessible("usage")
	b.picture("usage")
}

func viewTerminal(b *tab) {
	b.t.Helper()
	b.view("Terminal")
	b.sees(".of-terminal [role=status]", "Connected")
	b.do(chromedp.Evaluate(`document.querySelector('.xterm-helper-textarea').focus()`, nil))
	screen := `[...document.querySelectorAll('.xterm-rows > div')].map((r) => r.textContent).join('\n')`
	types := func(text string) { b.command(text) }
	types("echo it is $((6*7)); stty size; printf '\\033]0;<img src=x onerror=window.pwned=1>\\007'; printf '\\033[38;2;200;30;30mtrue colour\\033[0m \\033[1;4mbold\\033[0m \\n'")
	// The typed command contains the same words. A span with these words alone is the output.
	const coloured = `[...document.querySelectorAll('.xterm-rows span')].find((e) => e.textContent === 'true colour')`
	b.until(screen + `.includes('it is 42') && Boolean(` + coloured + `)`)
	b.sees(".of-terminal .termtitle", "<img src=x onerror")
	if got := b.value(`getComputedStyle(` + coloured + `).color`); !strings.HasPrefix(got, "rgb(") ||
		got == "rgb(27, 31, 28)" {
		b.t.Errorf("what is printed in colour is %s", got)
	}
	// A link of a program is shown before it is opened, and a program writes to the clipboard only with consent. A
	// second browser, which gets the earlier output, is not asked.
	types("printf '\\033]52;c;cHduZWQ=\\007\\033]8;;javascript:window.pwned=1\\033\\\\lin''k\\033]8;;\\033\\\\ over\\n'")
	b.until(screen + `.includes('link over')`)
	b.sees("dialog", "Copy this to the clipboard?")
	b.click("dialog button", "Not now")
	b.accessible("terminal")
	b.picture("terminal")

	// A second browser takes the terminal over, with the earlier output, and the first can take it back.
	other := b.another()
	other.do(chromedp.Navigate(b.value(`location.href`)))
	other.sees(".of-terminal [role=status]", "Connected")
	other.until(screen + `.includes('it is 42')`)
	b.sees(".of-terminal [role=status]", "Another browser controls the shell")
	b.click(".termbar button", "Take it over")
	b.until(screen + `.includes('it is 42')`)
	other.sees(".of-terminal [role=status]", "Another browser controls the shell")
	// The terminal has the size of the browser that holds it.
	types("clear; echo size $(stty size)")
	b.until(`/size \d+ \d+/.test(` + screen + `)`)
	if said, is := b.value(`/size (\d+) \d+/.exec(`+screen+`)[1]`),
		b.value(`document.querySelectorAll('.xterm-rows > div').length`); said != is {
		b.t.Errorf("the shell has %s lines, the page %s", said, is)
	}
	types("exit")
	b.sees(".of-terminal [role=status]", "The shell has ended with exit code 0")
	b.click(".termbar button", "New shell")
	b.sees(".of-terminal [role=status]", "Connected")
	other.clean()
}

func viewFiles(b *tab) {
	b.t.Helper()
	b.view("Files")
	b.sees(".tree .name", "README.md")
	b.click(".tree .entry", "README.md")
	b.until(`document.querySelector('.opened textarea')?.value === '# A sample\n'`)
	b.do(chromedp.Evaluate(`document.querySelector('.opened textarea').value = '# Changed by hand\n'`, nil))
	b.click(".opened button", "Save")
	b.sees(".of-files [role=status]", "Saved")
	// By drag, with names and contents that are hostile.
	b.do(chromedp.Evaluate(`{ const d = new DataTransfer(); d.items.add(new File(['<script>window.pwned=1</script>'], '<img src=x onerror=window.pwned=1>.html')); d.items.add(new File([new Uint8Array([0, 255, 254])], 'binary'));
		document.querySelector('.drop').dispatchEvent(new DragEvent('drop', { dataTransfer: d, bubbles: true, cancelable: true })); }`, nil))
	b.sees(".of-files [role=status]", "Uploaded 2 files")
	b.sees(".tree .name", "<img src=x onerror")
	b.click(".tree .entry", "<img src=x")
	b.until(`document.querySelector('.opened textarea')?.value.includes('pwned')`)
	b.click(".tree .entry", "binary")
	b.sees(".opened", "It is not text")
	b.click(".of-files button", "New directory")
	b.fill("Name", "notes")
	b.click("dialog button", "Create it")
	b.click(".tree .entry", "notes")
	b.sees(".tree", "The directory is empty")
	b.click(".of-files button", "Up")
	b.sees(".tree .name", "README.md")
	b.click(".tree .entry", "README.md")
	b.until(`document.querySelector('.opened textarea')?.value === '# Changed by hand\n'`)
	b.accessible("files")
	b.picture("files")

	dir := b.t.TempDir()
	b.do(cdpbrowser.SetDownloadBehavior(cdpbrowser.SetDownloadBehaviorBehaviorAllow).WithDownloadPath(dir))
	b.click(".opened a", "Download")
	var data []byte
	testenv.Eventually(b.t, "the file is downloaded", func() bool {
		data, _ = os.ReadFile(filepath.Join(dir, "README.md"))
		return len(data) > 0
	})
	if string(data) != "# Changed by hand\n" {
		b.t.Errorf("what was downloaded is %q", data)
	}
	b.do(chromedp.Evaluate(`[...document.querySelectorAll('.tree .danger')].find((e) => e.getAttribute('aria-label') === 'Delete binary').click()`, nil))
	b.click("dialog button", "Delete it")
	b.until(`![...document.querySelectorAll('.tree .name')].some((e) => e.textContent === 'binary')`)
	// Errors show the remedy at the place of the error.
	b.do(chromedp.Evaluate(`{ const i = document.querySelector('.of-files form input'); i.value = '/nosuch'; i.form.requestSubmit(); }`, nil))
	b.sees(".of-files .problem", "nosuch")
}

func viewChanges(b *tab, g *host.Git) {
	b.t.Helper()
	b.send("/write notes/<b>plan</b>.md Look first.\n/say second\n/run git add -A && git commit -qm 'Look first' && echo >>notes/later.md")
	b.sees(".tool .state", "exit 0")
	b.sees(".status", "Done")
	b.view("Changes")
	b.sees(".of-changes .file summary", "README.md")
	b.sees(".of-changes .file summary", "<b>plan<")
	b.sees(".of-changes .diff .added", "Look first.")
	b.sees(".of-changes .diff .added", "window.pwned")
	b.accessible("changes")
	b.picture("changes")
	commit := func(message string) {
		b.t.Helper()
		b.click(".of-changes button", "Commit")
		b.fill("Commit message", message)
		b.click("dialog button", "Commit all changes")
	}
	commit("By hand: $(touch /tmp/pwned) <b>all</b>")
	b.sees(".of-changes [role=status]", "By hand: $(touch /tmp/pwned) <b>all</b>")
	commit("Nothing")
	b.sees("dialog .problem", "nothing to commit")
	b.until(`document.querySelector('dialog textarea').value === 'Nothing'`)
	b.click("dialog button", "Not now")
	b.click(".of-changes button", "Push")
	b.sees(".of-changes [role=status]", "Pushed the branch harvest/")
	if branches := host.RunGit(b.t, filepath.Join(g.Dir, "sample.git"), "branch", "--list",
		"harvest/*"); branches == "" {
		b.t.Error("nothing was pushed")
	} else if last := host.RunGit(b.t, filepath.Join(g.Dir, "sample.git"), "log", "-1", "--format=%s %an",
		strings.Trim(branches, "* \n")); !strings.HasPrefix(last, "By hand: $(touch /tmp/pwned) <b>all</b>") ||
		!strings.Contains(last, "(Harvest)") {
		b.t.Errorf("the last commit is %q", last)
	}
	b.click(".of-changes button", "Bring up to date")
	b.sees(".of-changes [role=status]", "The branch is on top of")
	b.click(".of-changes button", "Pull request")
	b.click("dialog button", "Open it")
	b.sees("dialog .problem", "GitHub")
	b.click("dialog button", "Not now")
}

func viewPreview(b *tab) {
	b.t.Helper()
	b.send("/run mkdir -p /tmp/site && echo '<h1 id=mine>Served inside</h1><script>let how = \"alone\"; try { parent.document.title; parent.pwned = 1; how = \"not alone\" } catch {} parent.postMessage(document.body.innerText.trim() + \" \" + how, \"*\")</script>' >/tmp/site/index.html && cd /tmp/site && (setsid python3 -m http.server 8000 >/dev/null 2>&1 &) && sleep 1 && echo served")
	b.sees(".tool .output", "served")
	b.view("Preview")
	b.fill("Port", "8000")
	b.do(chromedp.Evaluate(`window.heard = []; addEventListener('message', (e) => window.heard.push(e.origin + ' ' + e.data))`, nil))
	b.click(".of-preview button", "Open")
	b.until(`document.querySelector('.of-preview iframe') !== null`)
	// Only the frame itself can read its content, since it has another origin.
	b.until(`window.heard.length > 0`)
	if got := b.value(`window.heard.join()`); !strings.HasPrefix(got, "http://8000-sbx-") ||
		!strings.HasSuffix(got, " Served inside alone") {
		b.t.Errorf("the frame says %q", got)
	}
	b.accessible("preview")
	b.picture("preview")
	b.fill("Width", "360")
	b.until(`document.querySelector('.of-preview iframe').getBoundingClientRect().width === 360`)
	b.do(chromedp.Evaluate(`window.heard = []`, nil))
	b.click(".of-preview button", "Reload")
	b.until(`window.heard.length > 0`)
	b.fill("Width", "")
	b.fill("Port", "0")
	b.do(chromedp.Evaluate(`document.querySelector('.of-preview form').noValidate = true; document.querySelector('.of-preview form').requestSubmit()`, nil))
	b.sees(".of-preview .problem", "1 to 65535")
}

// viewPorts checks that the ports that a sandbox was made for are offered, and that one press opens them.
func viewPorts(b *tab, h *host.Host) {
	b.t.Helper()
	id := strings.TrimSpace(h.Must("sandbox", "create", "--port", "8123", "--port", "9000", "-o", "name"))
	was := b.value(`location.hash`)
	b.do(chromedp.Evaluate(`location.hash = '#/b/`+id+`/preview'`, nil))
	b.sees(".of-preview button", "Port 8123")
	b.click(".of-preview button", "Port 9000")
	b.until(`document.querySelector('.of-preview iframe')?.title === 'Port 9000 of the sandbox'`)
	b.do(chromedp.Evaluate(`location.hash = `+quoted(was), nil))
	b.sees(".of-usage .list", "Turn")
	h.Must("sandbox", "rm", id)
}

func viewNetwork(b *tab) {
	b.t.Helper()
	b.send("/run python3 -c 'import socket; socket.create_connection((\"203.0.113.7\", 4433), 3)'")
	b.sees(".tool.failed .state", "exit")
	b.view("Network")
	b.sees(".of-network .list", "203.0.113.7:4433")
	b.accessible("network")
	b.picture("network")
	b.click(".of-network td button", "Allow")
	b.sees(".of-network .chip", "203.0.113.7:4433")
	b.sees(".of-network td", "allowed now")
	b.fill("Allow until the sandbox ends", "not a/place")
	b.do(chromedp.Evaluate(`document.querySelector('.of-network form').requestSubmit()`, nil))
	b.sees(".of-network .problem", "not a/place")
	b.fill("Allow until the sandbox ends", "*.example.org")
	b.do(chromedp.Evaluate(`document.querySelector('.of-network form').requestSubmit()`, nil))
	b.sees(".of-network .chip", "*.example.org")
}
