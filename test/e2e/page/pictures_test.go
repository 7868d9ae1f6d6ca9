package page

import (
	"bytes"
	"image"
	"image/color"
	"image/png"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// shades is how many bits of each colour channel count when the colours of a picture are chosen.
const shades = 0xf8

// small encodes a screenshot with a palette of its 256 most frequent colours, which makes it several times smaller.
func small(data []byte) ([]byte, error) {
	shot, err := png.Decode(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	counts := map[color.RGBA]int{}
	first := map[color.RGBA]color.Color{} // the exact colour that stands for the similar ones
	bounds := shot.Bounds()
	key := func(x, y int) color.RGBA {
		r, g, b, _ := shot.At(x, y).RGBA()
		return color.RGBA{uint8(r>>8) & shades, uint8(g>>8) & shades, uint8(b>>8) & shades, 255}
	}
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			k := key(x, y)
			if counts[k]++; counts[k] == 1 {
				first[k] = shot.At(x, y)
			}
		}
	}
	frequent := slices.SortedFunc(maps.Keys(counts), func(a, b color.RGBA) int { return counts[b] - counts[a] })
	var palette color.Palette
	for _, k := range frequent[:min(256, len(frequent))] {
		palette = append(palette, first[k])
	}
	index := map[color.RGBA]uint8{}
	out := image.NewPaletted(bounds, palette)
	for y := bounds.Min.Y; y < bounds.Max.Y; y++ {
		for x := bounds.Min.X; x < bounds.Max.X; x++ {
			k := key(x, y)
			i, ok := index[k]
			if !ok {
				i = uint8(palette.Index(shot.At(x, y)))
				index[k] = i
			}
			out.SetColorIndex(x, y, i)
		}
	}
	var buf bytes.Buffer
	err = (&png.Encoder{CompressionLevel: png.BestCompression}).Encode(&buf, out)
	return buf.Bytes(), err
}

// pictures keeps four screenshots of the current view: of a desktop and of a phone, light and dark.
func (b *tab) pictures(name string) {
	b.t.Helper()
	for _, window := range []struct {
		prefix        string
		width, height int64
		phone         bool
	}{{"", 1280, 800, false}, {"phone-", 390, 844, true}} {
		b.do(emulation.SetDeviceMetricsOverride(window.width, window.height, 1, window.phone),
			emulation.SetTouchEmulationEnabled(window.phone))
		for _, scheme := range []string{"light", "dark"} {
			b.do(emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme",
				Value: scheme}, {Name: "prefers-reduced-motion", Value: "reduce"}}))
			b.run(`await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));`)
			if wide := b.value(`document.documentElement.scrollWidth - innerWidth`); wide != "0" {
				b.t.Errorf("%s%s is %s pixels too wide", window.prefix, name, wide)
			}
			b.picture(window.prefix + name + strings.TrimPrefix("-"+scheme, "-light"))
		}
	}
	b.do(emulation.ClearDeviceMetricsOverride(), emulation.SetTouchEmulationEnabled(false),
		emulation.SetEmulatedMedia())
}

// TestPagePictures takes the pictures of docs/ui.md: each view on a desktop and on a phone, light and dark.
func TestPagePictures(t *testing.T) {
	testenv.Long(t)
	if os.Getenv(pictures) == "" {
		t.Skipf("set %s to a directory to have pictures taken", pictures)
	}
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Env.Setenv("HARVEST_USAGE_INTERVAL", "1s")
	root := h.Up()
	g := host.NewGit(t, "")
	g.Commit("shop", map[string]string{"README.md": "# Shop\n\nA small shop.\n",
		"cart.py":            "def total(items):\n    return sum(i.price for i in items)\n",
		"tests/test_cart.py": "from cart import total\n"})
	host.RunGit(t, g.Dir, "-C", filepath.Join(g.Dir, "shop.git"), "config", "http.receivepack", "true")
	b := browser(t)
	b.do(chromedp.Navigate(root + "/"))
	b.sees("main", "You are not signed in")
	b.pictures("signed-out")
	link := h.Must("key", "link")
	b.do(chromedp.Navigate(link))
	b.sees("button", "Sign in")
	b.pictures("link")
	b.loads("#sign-in")
	b.sees("button", "Create a sandbox")
	b.fill("Repository", g.URL("shop"))
	b.fill("First prompt", "/say I read the cart first.")
	b.pictures("new")
	b.do(chromedp.Evaluate(`document.querySelector('.new details').open = true; document.querySelector('.new details').scrollIntoView()`, nil))
	b.pictures("options")
	b.fill("Network", "allow")
	b.fill("Allowed hosts", strings.TrimPrefix(g.Server.URL, "http://"))
	b.creates()
	b.sees(".message.agent", "I read the cart first.")
	b.send("/say The total ignores quantities. I change it, and run the tests:\n/run sed -i 's/i.price/i.price * i.quantity/' cart.py && git diff --stat\n/write notes.md Quantities count.\n/run python3 -c 'import socket; socket.create_connection((\"203.0.113.7\", 443), 3)' 2>&1 | tail -1")
	b.sees(".status", "Done")
	b.send(answer)
	b.sees(".codehead", "go")
	b.sees(".status", "Done")
	b.pictures("chat")
	b.send("/ask Shall negative quantities be refused? | Yes, with an error | No, as before")
	b.sees("form.question legend", "negative")
	b.pictures("question")
	b.click("form.question button", "No answer")
	b.sees(".status", "Done")
	b.view("Terminal")
	b.sees(".of-terminal [role=status]", "Connected")
	b.until(`document.querySelector('.xterm-rows').textContent.includes('#')`)
	b.do(chromedp.Evaluate(`document.querySelector('.xterm-helper-textarea').focus()`, nil))
	b.command("git status --short; python3 --version")
	b.until(`document.querySelector('.xterm-rows').textContent.includes('Python 3')`)
	b.pictures("terminal")
	b.view("Files")
	b.click(".tree .entry", "cart.py")
	b.until(`document.querySelector('.opened textarea')`)
	b.pictures("files")
	b.view("Changes")
	b.sees(".of-changes .diff .added", "quantity")
	b.pictures("changes")
	b.send("/run mkdir -p /tmp/site && echo '<h1 style=\"font-family: sans-serif\">The shop</h1><p style=\"font-family: sans-serif\">Served inside the sandbox.' >/tmp/site/index.html && cd /tmp/site && (setsid python3 -m http.server 8000 >/dev/null 2>&1 &) && sleep 1 && echo served")
	b.sees(".tool .output", "served")
	b.view("Preview")
	b.do(chromedp.Evaluate(`document.addEventListener('load',
		(e) => { if (e.target.matches?.('iframe')) window.framed = true; }, true)`, nil))
	b.click(".of-preview button", "Open")
	b.until(`window.framed`)
	b.sees(".status", "Done")
	b.pictures("preview")
	out := b.another()
	out.do(chromedp.Navigate(link))
	out.sees("h1", "this link was used already")
	out.pictures("used-link")
	_, dead := b.shares(h.Box(), "8080")
	out.do(chromedp.Navigate(dead))
	out.sees("h1", "nothing listens on port 8080")
	out.pictures("dead-port")
	out.do(chromedp.Navigate("about:blank"))
	b.view("Network")
	b.sees(".of-network .list", "203.0.113.7:443")
	b.pictures("network")
	b.view("Start")
	b.sees(".of-startup .waterfall", "sandbox")
	b.pictures("start")
	b.view("Usage")
	b.until(`document.querySelectorAll('.of-usage .plot canvas').length === 6`)
	b.pictures("usage")
	picturesOfLists(b, h)
}

// picturesOfLists takes the pictures of the lists, of a sandbox by itself, and of the end of the session.
func picturesOfLists(b *tab, h *host.Host) {
	b.t.Helper()
	session := b.value(`location.hash.replace('/usage', '')`)
	h.Must("volume", "create", "models")
	h.Must("secret", "set", "anthropic", "ANTHROPIC_API_KEY=sk-ant-example")
	h.Must("key", "create", "deploy")
	// The servers of all tests share the images: the pictures have the base image and those of this server.
	b.do(chromedp.Evaluate(`{ const real = window.fetch, box = `+quoted(h.Box())+`; window.fetch = async (to, o) => {
		const resp = await real(to, o);
		if (!new URL(to, location.href).pathname.endsWith('/v1/images')) return resp;
		const list = await resp.json();
		list.data = list.data.filter((i) => i.names?.includes('base') || i.snapshot?.lineage.at(-1).sandbox === box);
		return new Response(JSON.stringify(list), { headers: { 'Content-Type': 'application/json' } });
	}; }`, nil))
	for _, id := range []string{"sandboxes", "sessions", "images", "volumes", "secrets", "schedules", "keys", "costs",
		"audit", "doctor"} {
		b.do(chromedp.Evaluate(`location.hash = '#/`+id+`'`, nil))
		b.until(`document.querySelector('.list-view.of-` + id + `') && document.querySelector('.list-view').childElementCount > 0 && !/Loading…|A trial sandbox/.test(document.querySelector('.list-view').textContent)`)
		b.pictures(id)
	}
	b.do(chromedp.Evaluate(`location.hash = '#/b/`+h.Box()+`'`, nil))
	b.sees(".of-startup .waterfall", "boot")
	b.pictures("sandbox")
	b.do(chromedp.Evaluate(`location.hash = `+quoted(session), nil))
	b.click(".top button", "End")
	b.confirmsEnd()
	b.sees(".ended", "Reason:")
	b.sees(".ended .resume", "Continue")
	b.pictures("ended")
	b.clean()
	b.leavesNoImages()
}
