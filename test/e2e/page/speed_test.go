package page

import (
	"context"
	"encoding/json"
	"maps"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/tracing"
	"github.com/chromedp/chromedp"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// measure names the variable with which tests of the page also print figures; docs/ui.md has them.
const measure = "HARVEST_TEST_MEASURE"

// traced returns the tasks of Chromium's main threads while do runs, in milliseconds: the longest by the clock, the
// longest by processor time, and how many exceeded 100 ms by either.
func (b *tab) traced(do func()) (wall, cpu float64, overWall, overCPU int) {
	b.t.Helper()
	var mu sync.Mutex
	done := make(chan struct{})
	chromedp.ListenTarget(b.ctx, func(e any) {
		switch e := e.(type) {
		case *tracing.EventDataCollected:
			mu.Lock()
			defer mu.Unlock()
			for _, raw := range e.Value {
				var event struct {
					Name      string
					Dur, TDur float64
				}
				if json.Unmarshal(raw, &event) == nil && event.Name == "RunTask" {
					wall, cpu = max(wall, event.Dur/1000), max(cpu, event.TDur/1000)
					if event.Dur > 100e3 {
						overWall++
					}
					if event.TDur > 100e3 {
						overCPU++
					}
				}
			}
		case *tracing.EventTracingComplete:
			close(done)
		}
	})
	b.do(tracing.Start().WithTransferMode(tracing.TransferModeReportEvents).WithTraceConfig(&tracing.TraceConfig{IncludedCategories: []string{"disabled-by-default-devtools.timeline", "devtools.timeline", "toplevel"}}))
	do()
	b.do(tracing.End(), chromedp.ActionFunc(func(ctx context.Context) error {
		select {
		case <-done:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}))
	mu.Lock()
	defer mu.Unlock()
	return wall, cpu, overWall, overCPU
}

// measureScroll prints the longest tasks while a long conversation is scrolled: steadily, and to places here and there.
func (b *tab) measureScroll() {
	b.t.Helper()
	wall, cpu, overWall, overCPU := b.traced(func() {
		b.run(`const log = document.querySelector('.log'); const step = (y) => { log.scrollTop = y; return new Promise(requestAnimationFrame); };
			for (let i = 0; i < 200; i++) await step(log.scrollTop - 300);
			for (let i = 1; i <= 40; i++) await step(log.scrollHeight * ((i * 0.618) % 1));`)
	})
	b.t.Logf("10,000 messages scrolled: longest task %.0f ms, of that %.0f ms of the processor; over 100 ms: %d by the clock, %d by the processor", wall, cpu, overWall, overCPU)
}

// measureLoads loads the page count times. It prints the load time by the browser's own marks, and the number of
// requests before the first paint.
func (b *tab) measureLoads(how string, count int) {
	b.t.Helper()
	figures := map[string][]float64{}
	for range count {
		b.do(chromedp.Reload())
		b.until(`performance.getEntriesByName('interactive').length > 0 && performance.getEntriesByName('first-contentful-paint').length > 0`)
		var got map[string]float64
		b.run(`window.moved = 0; new PerformanceObserver((l) => { for (const e of l.getEntries()) window.moved += e.value; }).observe({ type: 'layout-shift', buffered: true }); await new Promise((done) => setTimeout(done, 300));`)
		b.do(chromedp.Evaluate(`(([paint, use]) => ({ 'first paint, ms': paint, 'interactive, ms': use, 'layout shift, thousandths': 1000 * window.moved, 'requests before the paint': performance.getEntriesByType('resource').filter((e) => e.startTime < paint && e.transferSize > 0).length }))
			(['first-contentful-paint', 'interactive'].map((name) => performance.getEntriesByName(name)[0].startTime))`, &got))
		for name, value := range got {
			figures[name] = append(figures[name], value)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(figures)) {
		all := figures[name]
		slices.Sort(all)
		b.t.Logf("%d loads %s: %s: %.0f to %.0f, median %.0f", count, how, name, all[0], all[len(all)-1],
			all[len(all)/2])
	}
}

// TestPageSpeed measures how long a person waits. The figures are printed and not asserted, since the machine may be
// busy.
func TestPageSpeed(t *testing.T) {
	testenv.Long(t)
	if os.Getenv(measure) == "" {
		t.Skipf("set %s to have figures printed", measure)
	}
	testenv.Root(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	h.Up()
	b := browser(t)
	h.Must("sandbox", "ls") // the server has answered a request
	begun := time.Now()
	b.signedIn(h)
	b.creates()
	b.send("/say an answer")
	b.sees(".message.agent", "an answer")
	t.Logf("from the link to the first answer: %.1f s", time.Since(begun).Seconds())
	b.do(chromedp.Evaluate(`location.hash = '#/'`, nil))
	b.sees("button", "Create a sandbox")
	b.measureLoads("with what the browser has kept", 15)
	b.do(network.SetCacheDisabled(true))
	b.measureLoads("with nothing kept", 15)
	b.do(network.SetCacheDisabled(false))
	b.creates()
	// A program in the sandbox prints the time. The delay until the page shows it covers the whole path, of which the
	// page is the last part.
	b.do(chromedp.Evaluate(`window.late = []; window.own = []; window.seen = new Set();
		const came = new Map(); const read = ReadableStreamDefaultReader.prototype.read;
		ReadableStreamDefaultReader.prototype.read = async function () {
			const r = await read.call(this);
			if (typeof r.value === 'string') for (const m of r.value.matchAll(/T(\d{13})/g)) if (!came.has(m[1])) came.set(m[1], performance.now());
			return r;
		};
		new MutationObserver(() => { const now = performance.timeOrigin + performance.now(); for (const m of (document.querySelector('.tool .output')?.textContent ?? '').matchAll(/T(\d{13})/g)) if (!window.seen.has(m[1])) { window.seen.add(m[1]); window.late.push(now - Number(m[1])); window.own.push(performance.now() - came.get(m[1])); } })
			.observe(document.querySelector('.log'), { childList: true, subtree: true, characterData: true });`, nil))
	b.send("/run for i in $(seq 40); do date +T%s%3N; sleep 0.1; done")
	b.sees(".status", "Done")
	const sorted = `((l) => { l.sort((a, b) => a - b); return l.length + ' times, median ' + l[l.length >> 1].toFixed(1) + ' ms, 95 % ' + l[Math.floor(l.length * 0.95)].toFixed(1) + ' ms'; })`
	t.Logf("from print in the sandbox to the page: %s", b.value(sorted+`(window.late)`))
	t.Logf("from the event to the page: %s", b.value(sorted+`(window.own.filter((v) => v >= 0))`))
	b.leavesNoImages()
}
