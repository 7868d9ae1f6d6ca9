package page

import (
	"testing"

	"github.com/RelevanceAI/harvest/test/host"
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

// TestPageColours checks the colours of outputs, and that other escape codes are left out.
// mission: F2, 7.6
func TestPageColours(t *testing.T) {
	t.Parallel()
	h := host.New(t, "fake", host.GVisor(t))
	h.Up()
	b := browser(t)
	b.signedIn(h)
	const shown = `const at = document.querySelector('script[type=module]').src;
		const { bare, coloured } = await import(new URL('ansi.js', at));
		const colours = (e) => [e.style.color, e.style.backgroundColor && 'on ' + e.style.backgroundColor];
		const styles = (e) => [...[...e.classList].map((c) => c.replace('ansi-', '')), ...colours(e)]
			.filter(Boolean).join(' ');
		const text = `
	for _, c := range []struct{ output, want string }{
		{"plain", "plain"},
		{"\x1b[31mred\x1b[0m plain", "<red: red> plain"},
		{"\x1b[1;32mbold\x1b[22m not\x1b[39m plain", "<bold green: bold><green:  not> plain"},
		{"\x1b[2mdim\x1b[m plain", "<dim: dim> plain"},
		{"\x1b[93mbright\x1b[30mblack\x1b[97mwhite", "<yellow: bright><black: black><white: white>"},
		{"\x1b[44mon blue\x1b[49;101mon red\x1b[31mboth\x1b[49mred", "<bg-blue: on blue><bg-red: on red>" +
			"<red bg-red: both><red: red>"},
		{"\x1b[38;5;46mgreen\x1b[38;5;240mgrey\x1b[38;5;9mred\x1b[48;5;67;1mbold", "<rgb(0, 255, 0): green>" +
			"<rgb(88, 88, 88): grey><red: red><bold red on rgb(95, 135, 175): bold>"},
		{"\x1b[38;2;1;2;300;1mown\x1b[48;2;4;5;6mboth", "<bold rgb(1, 2, 255): own>" +
			"<bold rgb(1, 2, 255) on rgb(4, 5, 6): both>"},
		{"\x1b[38:2:1:2:3;1ma\x1b[38:2::4:5:6mb\x1b[48:5:46mc", "<bold rgb(1, 2, 3): a><bold rgb(4, 5, 6): b>" +
			"<bold rgb(4, 5, 6) on rgb(0, 255, 0): c>"},
		{"\x1b[31;4:0;58:2::32:33:34;58;5;32mstill red", "<red: still red>"}, // underlines have no style here
		{"\x1b[38;5;256mno colour", "no colour"},
		{"\x1b[?25l\x1b[>4;2m\x1b[2K\x1b[1A\x1b[1 qspin\x1b[?25h", "spin"},
		{"\x1b]0;a title\a\x1b]8;;https://x.example\x1b\\link\x1b]8;;\x1b\\\x1bPpayload\x1b\\\x1b(B", "link"},
		{"\x1b[31mover\rred\r\nnext\r", "red\nnext"}, // the code went with the line that it was in
		{"\x1b[31m1 %\r\x1b[32m2 %\n\x1b[0mdone", "<green: 2 %\n>done"},
	} {
		got := b.run(shown + quoted(c.output) + `;
			const nodes = coloured(text);
			if (bare(text) !== nodes.map((n) => n.textContent ?? n).join('')) return 'without colours: ' + bare(text);
			return nodes.map((n) => typeof n === 'string' ? n : '<' + styles(n) + ': ' + n.textContent + '>')
				.join('');`)
		if got != c.want {
			t.Errorf("%q is %q, want %q", c.output, got, c.want)
		}
	}
	b.clean()
}

// TestPageTypedAnswers checks what text that a person types means to an open question: the answers to its parts, one
// after the other, and nothing to an approval, which only a button decides.
// mission: F2, 7.4
func TestPageTypedAnswers(t *testing.T) {
	t.Parallel()
	h := host.New(t, "fake", host.GVisor(t))
	h.Up()
	b := browser(t)
	b.signedIn(h)
	const tool = `{ id: 'q', tool: 'Bash', input: { command: 'ls' } }`
	const one = `{ id: 'q', questions: [{ text: 'Which?' }] }`
	const two = `{ id: 'q', questions: [{ text: 'Which?', options: [{ label: 'red' }] }, { text: 'And why?' }] }`
	for _, c := range []struct{ question, words, want string }{
		{tool, `['yes']`, `false`},
		{tool, `['Always']`, `false`},
		{tool, `['yes, but only here']`, `false`},
		{one, `['blue']`, `true {"allow":true,"answers":{"Which?":"blue"}}`},
		{one, `['lost']`, `false {"allow":true,"answers":{"Which?":"lost"}}`},
		{two, `['blue']`, `true`},
		{two, `['blue', 'It is calm.']`,
			`true true {"allow":true,"answers":{"Which?":"blue","And why?":"It is calm."}}`},
	} {
		got := b.run(`const at = document.querySelector('script[type=module]').src;
			const { question } = await import(new URL('turn.js', at));
			const real = window.fetch;
			const sent = [];
			window.fetch = async (to, o) => {
				if (!String(to).endsWith('v1/sessions/ses_x/answers/q')) return real(to, o);
				sent.push(o.body);
				return o.body.includes('lost') ? Response.json({ detail: 'not open' }, { status: 404 })
					: new Response(null, { status: 204 });
			};
			const form = question('ses_x', ` + c.question + `);
			const said = [];
			for (const words of ` + c.words + `) said.push(await form.say(words));
			window.fetch = real;
			return [...said, ...sent].join(' ');`)
		if got != c.want {
			t.Errorf("%s typed for %s: %s, want %s", c.words, c.question, got, c.want)
		}
	}
	b.clean()
}
