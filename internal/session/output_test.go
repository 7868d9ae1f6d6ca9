package session

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestOutput checks that output of commands becomes events in its order, not too many, and not too much of it.
func TestOutput(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var all []string
		out := newOutput(func(drafts ...draft) {
			for _, d := range drafts {
				all = append(all, d.Data.ID+": "+d.Data.Text)
			}
		})
		first, second := out.of("a"), out.of("b")
		for _, text := range []string{"one\n", "two\nsec"} {
			_, _ = first.Write([]byte(text))
		}
		synctest.Wait()
		for range 5 {
			_, _ = first.Write([]byte("x"))
			time.Sleep(outputPause / 10)
		}
		_, _ = first.Write([]byte("\n"))
		_, _ = second.Write([]byte("y\nz"))
		time.Sleep(outputPause)
		synctest.Wait()
		if got := strings.Join(all, "|"); got != "a: one\ntwo\n|a: secxxxxx\n|b: y\n" {
			t.Errorf("the events are %q", got)
		}
		all = nil
		long := out.of("d") // one line, in pieces that end in characters
		for _, text := range []string{"\xc3", "\xa9", strings.Repeat("é", longestLine), "\xc3", "\xa9\xff\n"} {
			_, _ = long.Write([]byte(text))
			time.Sleep(outputPause)
		}
		out.end()
		time.Sleep(2 * outputPause)
		synctest.Wait()
		got := strings.ReplaceAll(strings.ReplaceAll(strings.Join(all, ""), "d: ", ""), "b: z", "")
		if got != strings.Repeat("é", 2+longestLine)+"�\n" || !slices.Contains(all, "b: z") {
			t.Errorf("%d bytes with %d characters that are not valid", len(got), strings.Count(got, "�"))
		}
		all = nil
		much := out.of("c")
		for range 2 * maxOutput / 1000 {
			_, _ = much.Write([]byte(strings.Repeat("z", 999) + "\n"))
		}
		out.close()
		text := strings.ReplaceAll(strings.Join(all, ""), "c: ", "")
		if n := strings.Count(text, "z\n"); n != (maxOutput-2*(3+longestLine))/1000+1 ||
			!strings.HasSuffix(text, "z\n[the rest is left out]\n") || len(all) < n*1000/outputPart {
			t.Errorf("%d events with %d lines: …%s", len(all), n, text[max(0, len(text)-50):])
		}
	})
}
