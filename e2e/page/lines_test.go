package page

import (
	"testing"

	"github.com/RelevanceAI/harvest/e2e/host"
)

// TestPageLines checks the lines of a change and the texts of durations.
// mission: F2, 7.6
func TestPageLines(t *testing.T) {
	t.Parallel()
	h := host.New(t, "fake", host.GVisor(t))
	h.Up()
	b := browser(t)
	b.signedIn(h)
	const modules = `const at = document.querySelector('script[type=module]').src;
		const { lineDiff, lines } = await import(new URL('diff.js', at));
		const { ms } = await import(new URL('dom.js', at));`
	for _, c := range []struct{ from, to, want string }{
		{"", "a\nb\n", "+a +b"},
		{"a\nb\n", "", "-a -b"},
		{"a\nb\nc\n", "a\nB\nc\n", " a -b +B  c"},
		{"a\nb\nc\nd\n", "x\nb\ny\nd\nz\n", "-a +x  b -c +y  d +z"},
		{"1\n2\n3\n4\na\n5\n6\n7\n8\n", "1\n2\n3\n4\nb\n5\n6\n7\n8\n", " 2  3  4 -a +b  5  6  7"},
		{"same\n", "same\n", " same"},
		{"a, b\n", "a, b\nc, d\n", " a, b +c, d"},
	} {
		got := b.run(modules + `const all = lineDiff(` + quoted(c.from) + `, ` + quoted(c.to) + `);
			const shown = [...lines(all, 'x').children].map((e) => e.textContent.replace(/\n$/, '')).join(' ');
			return shown === all.map((pair) => pair.join('')).join(' ') ? shown : JSON.stringify([shown, all]);`)
		if got != c.want {
			t.Errorf("from %q to %q: %s, want %s", c.from, c.to, got, c.want)
		}
	}
	got := b.run(modules + `return [0.04, 9.94, 9.96, 99.6, 999.4, 999.6, 59_940, 59_960, 119_600, 3_600_000]
		.map(ms).join('; ');`)
	if got != "0.0 ms; 9.9 ms; 10 ms; 100 ms; 999 ms; 1.0 s; 59.9 s; 1 min 0 s; 2 min 0 s; 60 min 0 s" {
		t.Errorf("the durations are %s", got)
	}
	b.clean()
}
