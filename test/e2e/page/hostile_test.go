package page

import (
	"fmt"
	"slices"
	"strings"

	"github.com/chromedp/chromedp"
)

// hostileViews shows the hostile texts beside a conversation: as names and contents of files, as changes, and as the
// terminal's title.
func hostileViews(b *tab) {
	b.t.Helper()
	names := make([]string, len(hostile))
	files, titles := []string{"mkdir -p named", "cd named"}, []string{}
	for i, text := range hostile {
		names[i] = strings.ReplaceAll(text, "/", "")
		files = append(files, fmt.Sprintf("printf %%s %s >%s", shellQuoted(text), shellQuoted(names[i])))
		titles = append(titles, fmt.Sprintf(`printf '\033]0;%%s\007' %s`, shellQuoted(text)))
	}
	b.send("/run " + strings.Join(files, "; ") + "\n/run printf %s " + shellQuoted(strings.Join(titles,
		"; ")) + " >/tmp/titles\n/say they are made")
	b.sees(".message.agent", "they are made")
	const elements = `:is(img, script, style, iframe, svg, form[action], input[autofocus], base, math, noscript)`
	none := func(place string) {
		b.t.Helper()
		if got := b.value(`document.querySelectorAll('` + place + ` ` + elements + `').length`); got != "0" {
			b.t.Errorf("%s has %s elements of hostile texts", place, got)
		}
	}

	b.view("Files")
	b.click(".tree .entry", "named/")
	b.until(`document.querySelectorAll('.tree .name').length === ` + fmt.Sprint(len(names)))
	shown := strings.Split(b.value(`[...document.querySelectorAll('.tree .name')].map((e) => e.textContent).join('\n')`), "\n")
	for i, name := range names {
		if !slices.Contains(shown, name) {
			b.t.Errorf("%q is not among the files %q", name, shown)
		}
		b.do(chromedp.Evaluate(`[...document.querySelectorAll('.tree .entry')].find((e) => e.textContent === `+quoted(name)+`).click()`, nil))
		b.until(`document.querySelector('.opened h3')?.textContent.endsWith(` + quoted(name) + `) && document.querySelector('.opened textarea')?.value === ` + quoted(hostile[i]))
	}
	none(".panel")
	b.do(chromedp.Evaluate(`document.querySelector('.tree .danger').click()`, nil))
	b.sees("dialog h2", "Delete ")
	none("dialog")
	b.click("dialog button", "Keep it")

	b.view("Changes")
	b.sees(".of-changes .file summary", "<img src=x onerror=")
	b.sees(".of-changes .diff .added", "<svg onload=")
	none(".panel")

	b.view("Terminal")
	b.sees(".of-terminal [role=status]", "Connected")
	b.do(chromedp.Evaluate(`window.titles = []; new MutationObserver((all) => { for (const one of all) for (const n of one.addedNodes) window.titles.push(n.textContent); }).observe(document.querySelector('.of-terminal .termtitle'), { childList: true });
		document.querySelector('.xterm-helper-textarea').focus()`, nil))
	b.command("sh /tmp/titles")
	b.until(fmt.Sprintf(`%s.every((t) => window.titles.includes(t.slice(0, 120)))`, quotedAll(hostile)))
	if got := b.value(`document.querySelectorAll('.of-terminal .termtitle *').length`); got != "0" {
		b.t.Errorf("the title has %s elements", got)
	}
	b.harmless()
	b.view("Conversation")
}

func quotedAll(texts []string) string {
	all := make([]string, len(texts))
	for i, text := range texts {
		all[i] = quoted(text)
	}
	return "[" + strings.Join(all, ", ") + "]"
}
