package page

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestPageOffersCommands checks that the page offers the agent's own commands while a prompt begins with a slash, and
// that the agent gets the chosen one.
// mission: 7.4, E1
func TestPageOffersCommands(t *testing.T) {
	t.Parallel()
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	program, err := os.ReadFile(filepath.Join("testdata", "commands.py"))
	if err != nil {
		t.Fatal(err)
	}
	dir := h.Project()
	testenv.WriteFile(t, filepath.Join(dir, "commands.py"), program)
	host.RunGit(t, dir, "add", ".")
	host.RunGit(t, dir, "commit", "-qm", "Add the agent")
	port := testenv.FreePort(t)
	h.UpUntil("--listen", "127.0.0.1:"+port)
	if _, stderr, code := h.In(dir, "agent", "--agent", "python3 commands.py", "--image", "base", "hello"); code != 0 {
		t.Fatal(stderr)
	}
	b := browser(t)
	b.signedIn(h)
	b.do(chromedp.Evaluate(`location.hash = '#/s/`+h.Session()+`'`, nil))
	b.sees(".status", "Done")
	const shown = `[...document.querySelectorAll('.commands button')].filter((e) => e.checkVisibility())` +
		`.map((e) => e.textContent).join('|')`
	b.until(shown + ` === ''`)
	b.do(chromedp.Focus(".composer textarea"))
	b.types("/")
	b.until(shown + ` === '/compact how – <b>Shorten</b> it|/count '`)
	b.accessible("commands")
	b.types("com")
	b.until(shown + ` === '/compact how – <b>Shorten</b> it'`)
	b.click(".commands button", "/compact how – <b>Shorten</b> it")
	b.until(`document.querySelector('.composer textarea').value === '/compact ' && ` + shown + ` === ''`)
	b.focused(".composer textarea")
	b.types("now")
	b.click(".composer button", "Send")
	b.sees(".message", "I got /compact now")
	b.clean()
}
