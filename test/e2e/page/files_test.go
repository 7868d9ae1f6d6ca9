package page

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	cdpbrowser "github.com/chromedp/cdproto/browser"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// redDot is a picture in the format PNG, in base64: a red pixel and a blue one.
const redDot = "iVBORw0KGgoAAAANSUhEUgAAAAIAAAABCAIAAAB7QOjdAAAADUlEQVR4nGP4zwAE/wEHAAH/4iOeWQAAAABJRU5ErkJggg=="

// TestPageFiles checks that the view of files finds names and lines below a directory, opens them at the line, shows
// pictures, and downloads a directory.
// mission: F2, 7.7
func TestPageFiles(t *testing.T) {
	t.Parallel()
	h, b := started(t)
	id := strings.TrimSpace(h.Must("sandbox", "create", "-o", "name"))
	h.Must("sandbox", "exec", id, "--", "sh", "-c", `mkdir -p /srv/site && cd /srv/site &&
		mkdir -p node_modules/x '<b>a b' && touch '<b>a b/needle*.txt' && echo needle >node_modules/x/y &&
		seq 1 200 >long && echo 'The NEEDLE [x] is here' >>long && echo `+redDot+` | base64 -d >dot.png`)
	b.do(chromedp.Evaluate(`location.hash = '#/b/`+id+`/files'`, nil))
	b.sees(".of-files .tree", "srv/")
	b.run(`const i = document.querySelector('.of-files [aria-label=Directory]');
		i.value = '/srv/site';
		i.form.requestSubmit()`)
	b.sees(".of-files .tree", "long")
	matches := `[...document.querySelectorAll('.matches button')].map((e) => e.textContent).join()`
	search := func(text string) {
		t.Helper()
		b.run(`const i = document.querySelector('[aria-label="Search names and texts"]'); i.value = ` + quoted(text) +
			`; i.form.requestSubmit()`)
	}
	search("needle")
	b.until(matches + ` === '<b>a b/needle*.txt,long:201'`)
	b.accessible("matches in files")
	b.picture("file-search")
	search("needle*")
	b.until(matches + ` === '<b>a b/needle*.txt'`)
	search("NEEDLE [x")
	b.until(matches + ` === 'long:201'`)
	b.click(".matches button", "long:201")
	b.until(`((e) => e && e.value.slice(e.selectionStart, e.selectionEnd) === 'The NEEDLE [x] is here')(
		document.querySelector('textarea.code'))`)
	search("nowhere")
	b.sees(".of-files [role=status]", `Nothing in /srv/site has "nowhere"`)
	b.click(".of-files button", "Close")

	b.click(".tree button", "dot.png")
	b.sees(".opened", "2 × 1 pixels")
	b.until(`((c) => c.getContext('2d').getImageData(0, 0, 1, 1).data.join() === '255,0,0,255')(
		document.querySelector('canvas.shown-picture'))`)
	h.Must("sandbox", "exec", id, "--", "sh", "-c", "echo no picture >/srv/site/bad.png")
	b.click(".of-files button", "Refresh")
	b.click(".tree button", "bad.png")
	b.sees(".opened", "The browser cannot show this picture.")

	dir := t.TempDir()
	b.do(cdpbrowser.SetDownloadBehavior(cdpbrowser.SetDownloadBehaviorBehaviorAllow).WithDownloadPath(dir))
	b.press("Download <b>a b")
	b.sees(".of-files", "Downloaded <b>a b.tar.gz.")
	testenv.Eventually(t, "the archive", func() bool {
		all, err := filepath.Glob(filepath.Join(dir, "*.tar.gz"))
		if err != nil || len(all) != 1 {
			return false
		}
		info, err := os.Stat(all[0])
		return err == nil && info.Size() > 0
	})
	testenv.Eventually(t, "no archive in the sandbox", func() bool {
		return h.Must("sandbox", "exec", id, "--", "sh", "-c", "ls -A /tmp | grep -c download || true") == "0"
	})
	h.Must("sandbox", "rm", id)
	b.clean()
}
