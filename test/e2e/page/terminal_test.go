package page

import (
	"fmt"
	"strings"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestPageTerminal checks that the terminal begins in the session's directory, follows the window, copies the
// selection, asks before a program writes to the clipboard, has keys for phones, and reports at once that a sandbox has
// ended.
// mission: A4, F2
func TestPageTerminal(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	b.creates()
	dir := b.run(`return (await (await fetch('v1/sessions')).json()).data[0].dir`)
	b.view("Terminal")
	b.sees(".of-terminal [role=status]", "Connected")
	const screen = `[...document.querySelectorAll('.xterm-rows > div')].map((r) => r.textContent.trim())`
	b.do(chromedp.Evaluate(`document.querySelector('.xterm-helper-textarea').focus()`, nil))
	b.command("echo in:$PWD")
	b.until(screen + `.includes(` + quoted("in:"+dir) + `)`)
	b.prompted()
	b.press("Up")
	b.types("\r")
	b.until(screen + `.filter((l) => l === ` + quoted("in:"+dir) + `).length === 2`)
	b.command("echo be''gun; cat")
	b.until(screen + `.includes('begun')`) // the shell does not read the next line
	b.types("xyz\r")
	b.until(screen + `.filter((l) => l === 'xyz').length === 2`) // cat runs in the foreground
	b.do(chromedp.Evaluate(`document.querySelector('.termkeys [aria-pressed]').click()`,
		nil)) // which is shown on touch screens only
	b.types("c")
	b.command("echo after:$?")
	b.until(screen + `.includes('after:130')`)
	b.terminalFollows()
	b.terminalCopies()
	b.opensEditors(h)
	box := h.Must("sandbox", "ls", "-o", "name")
	h.Must("sandbox", "rm", box)
	b.sees(".of-terminal [role=status]", "ended")
	b.do(chromedp.Evaluate(`location.hash = '#/b/`+box+`/terminal'`, nil))
	b.sees(".of-terminal [role=status]", "The sandbox has ended.")
	b.harmless()
	b.leavesNoImages()
}

// opensEditors checks the addresses by which editors open the session's directory over SSH, and that the host in them
// is one that ssh reaches.
func (b *tab) opensEditors(h *host.Host) {
	b.t.Helper()
	b.click("button", "Open in an editor")
	b.sees("dialog pre", "harvest ssh-config --install")
	b.accessible("editors")
	b.picture("editors")
	id := b.run(`return (await (await fetch('v1/sessions')).json()).data[0].id`)
	dir := b.run(`return (await (await fetch('v1/sessions')).json()).data[0].dir`)
	at := id + ".harvest" + dir
	links := b.value(`[...document.querySelectorAll('dialog .editors a')]
		.map((a) => a.textContent + '=' + a.href).join()`)
	if want := "VS Code=vscode://vscode-remote/ssh-remote+" + at + ",Cursor=cursor://vscode-remote/ssh-remote+" + at +
		",Zed=zed://ssh/" + at; links != want {
		b.t.Errorf("the editors are %s, want %s", links, want)
	}
	if got := strings.TrimSpace(h.Must("ssh", id, "--", "cd", dir, "&&", "pwd")); got != dir {
		b.t.Errorf("ssh %s: %q", id, got)
	}
	b.click("dialog button", "Close")
}

// prompted waits until the shell reads the next line: before that it changes the mode of the terminal.
func (b *tab) prompted() {
	b.t.Helper()
	b.until(`/[$#]$/.test([...document.querySelectorAll('.xterm-rows > div')].filter((r) => r.checkVisibility())
		.map((r) => r.textContent.trim()).filter(Boolean).at(-1))`)
}

// command types a command into the terminal that has the focus, once the shell reads it.
func (b *tab) command(text string) {
	b.t.Helper()
	b.prompted()
	b.types(text + "\r")
}

// terminalFollows makes the window smaller and larger, and checks that the shell has the size of the screen each time.
// A phone also shows the keys that its keyboard lacks.
func (b *tab) terminalFollows() {
	b.t.Helper()
	const rows = `document.querySelectorAll('.xterm-rows > div').length`
	const wide = `document.querySelector('.xterm-rows').getBoundingClientRect().width`
	const keys = `[...document.querySelectorAll('.termkeys button')].filter((e) => e.checkVisibility())
		.map((e) => e.textContent).join(' ')`
	// The screen may change once more after the first change: it asks until both sizes are equal.
	follows := func(name string) {
		b.t.Helper()
		asked := 0
		testenv.Eventually(b.t, "the shell has the size of the screen", func() bool {
			asked++
			answer := fmt.Sprintf("%s%d:", name, asked)
			b.command("clear; echo " + answer + "$(stty size)")
			const found = `[...document.querySelectorAll('.xterm-rows > div')].map((r) => r.textContent)
				.map((text) => /^ANSWER([0-9]+) [0-9]/.exec(text)?.[1]).find(Boolean)`
			size := strings.ReplaceAll(found, "ANSWER", answer)
			b.until(size)
			return b.value(size) == b.value(rows)
		})
	}
	if got := b.value(keys); got != "" {
		b.t.Errorf("a desktop shows the keys %q", got)
	}
	b.do(chromedp.Evaluate(`window.was = [`+rows+`, `+wide+`]`, nil))
	b.do(emulation.SetDeviceMetricsOverride(390, 500, 1, true), emulation.SetTouchEmulationEnabled(true))
	b.until(rows + ` < window.was[0] && ` + wide + ` < window.was[1]`)
	follows("smaller")
	if got := b.value(keys); got != "Esc Ctrl Tab ← ↑ ↓ →" {
		b.t.Errorf("a phone shows the keys %q", got)
	}
	b.do(emulation.ClearDeviceMetricsOverride(), emulation.SetTouchEmulationEnabled(false))
	b.until(rows + ` === window.was[0] && ` + wide + ` === window.was[1]`)
	follows("larger")
}

// terminalCopies copies a selected word by the keyboard, and a text of a program once the person agrees.
func (b *tab) terminalCopies() {
	b.t.Helper()
	for _, name := range []string{"clipboard-read", "clipboard-write"} {
		b.do(cdpbrowser.SetPermission(&cdpbrowser.PermissionDescriptor{Name: name},
			cdpbrowser.PermissionSettingGranted))
	}
	const clipboard = `return navigator.clipboard.readText()`
	b.command("clear; echo selec''table")
	const word = `[...document.querySelectorAll('.xterm-rows > div')].find(
		(r) => r.textContent.trim() === 'selectable')?.firstChild`
	b.until(`Boolean(` + word + `)`)
	var at struct{ X, Y float64 }
	b.do(chromedp.Evaluate(`(({ x, y, height }) => ({ X: x + 10, Y: y + height / 2 }))(`+
		word+`.getBoundingClientRect())`, &at))
	b.do(chromedp.MouseClickXY(at.X, at.Y, chromedp.ClickCount(2)))
	b.keys("C", input.ModifierCtrl, input.ModifierShift)
	testenv.Eventually(b.t, "the selection is copied", func() bool { return b.run(clipboard) == "selectable" })
	for _, c := range []struct{ press, text string }{{"Not now", "selectable"}, {"Copy", "copied"}} {
		b.command("printf '\\033]52;c;Y29waWVk\\a'")
		b.sees("dialog", "Copy this to the clipboard?")
		b.sees("dialog pre", "copied")
		b.accessible("a copy")
		b.click("dialog button", c.press)
		b.until(`!document.querySelector('dialog')`)
		testenv.Eventually(b.t, "the clipboard has "+c.text, func() bool { return b.run(clipboard) == c.text })
		b.do(chromedp.Evaluate(`document.querySelector('.xterm-helper-textarea').focus()`, nil))
	}
}

// TestPageShells checks that a sandbox has several shells, that characters take as many columns as they should, and
// that the base image has an editor.
// mission: A4, F2
func TestPageShells(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h, b := started(t)
	b.creates()
	b.view("Terminal")
	const screen = `[...document.querySelectorAll('.xterm-rows > div')].filter((r) => r.checkVisibility())
		.map((r) => r.textContent.trim())`
	ready := func() {
		t.Helper()
		b.sees(".of-terminal [role=status]", "Connected")
		b.until(`document.activeElement?.matches('.xterm-helper-textarea')
			|| ([...document.querySelectorAll('.xterm-helper-textarea')].find(
				(e) => e.closest('.xterm').checkVisibility()).focus(), false)`)
	}
	ready()
	// A family, a flag, a letter with a combining accent, an emoji with a skin, and a wide character.
	b.command("X=first; printf 'x\\xf0\\x9f\\x91\\xa9\\xe2\\x80\\x8d\\xf0\\x9f\\x91\\xa9\\xe2\\x80\\x8d\\xf0" +
		"\\x9f\\x91\\xa7\\xf0\\x9f\\x87\\xa9\\xf0\\x9f\\x87\\xaae\\xcc\\x81\\xf0\\x9f\\x91\\x8d\\xf0\\x9f" +
		"\\x8f\\xbd\\xe6\\xbc\\xa2\\033[6n'; IFS=';' read -rsd R _ col; echo; echo col:$col")
	b.until(screen + `.some((l) => /^col:\d+$/.test(l))`)
	if got := b.value(screen + `.find((l) => /^col:\d+$/.test(l))`); got != "col:11" {
		t.Errorf("one, two, two, one, two and two columns end at %s", got)
	}
	b.click(".of-terminal button", "New shell")
	b.until(`document.querySelectorAll('.termtabs [role=tab]').length === 2`)
	ready()
	b.command("echo X is \"<$X>\"")
	b.until(screen + `.includes('X is <>')`)
	b.accessible("two shells")
	b.picture("shells")
	b.click(".termtabs [role=tab]", "Shell 1")
	ready()
	b.command("echo X is \"<$X>\"")
	b.until(screen + `.includes('X is <first>')`)
	b.do(chromedp.Reload())
	b.until(`document.querySelectorAll('.termtabs [role=tab]').length === 2`)
	b.click(".termtabs [role=tab]", "Shell 2")
	b.until(screen + `.includes('X is <>')`)
	ready()
	b.click(".of-terminal button", "End shell")
	b.click("dialog button", "End it")
	b.until(`document.querySelectorAll('.termtabs [role=tab]').length === 0`)
	b.until(screen + `.includes('X is <first>')`)
	b.do(chromedp.Reload())
	b.until(`document.querySelector('.termtabs button')`)
	b.until(screen + `.includes('X is <first>')`)
	if got := b.value(`document.querySelectorAll('.termtabs [role=tab]').length`); got != "0" {
		t.Error("a shell that was ended is there again")
	}

	ready() // and the terminal has not answered the question for the cursor's place once more: nothing is typed
	b.command("clear; nano new.txt")
	b.until(screen + `.some((l) => l.includes('GNU nano'))`)
	b.types("typed in nano")
	b.keys("o", input.ModifierCtrl)
	b.until(screen + `.some((l) => l.includes('File Name to Write'))`)
	b.types("\r")
	b.until(screen + `.some((l) => l.includes('Wrote 1 line'))`)
	b.picture("editor")
	b.keys("x", input.ModifierCtrl)
	if got := h.Must("sandbox", "exec", h.Box(), "--", "sh", "-c",
		"cat /workspace/*/new.txt; editor --version"); !strings.HasPrefix(got, "typed in nano\n") ||
		!strings.Contains(got, "nano") {
		t.Errorf("the file is %q", got)
	}
	b.clean()
	b.leavesNoImages()
}
