package session

import (
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
		for _, text := range []string{"one\n", "two\n"} {
			_, _ = out.of("a").Write([]byte(text))
		}
		synctest.Wait()
		for range 5 {
			_, _ = out.of("a").Write([]byte("x"))
			time.Sleep(outputPause / 10)
		}
		_, _ = out.of("b").Write([]byte("y"))
		time.Sleep(outputPause)
		synctest.Wait()
		if got := strings.Join(all, "|"); got != "a: one\ntwo\n|a: xxxxx|b: y" {
			t.Errorf("the events are %q", got)
		}
		all = nil
		writer := out.of("d")
		for _, text := range []string{"\xc3", "\xa9", strings.Repeat("é", outputPart), "\xff"} {
			_, _ = writer.Write([]byte(text))
			time.Sleep(outputPause)
		}
		synctest.Wait()
		if got := strings.ReplaceAll(strings.Join(all, ""), "d: ", ""); got != strings.Repeat("é", 1+outputPart)+"�" {
			t.Errorf("%d bytes with %d characters that are not valid", len(got), strings.Count(got, "�"))
		}
		all = nil
		for range 2 * maxOutput / 1000 {
			_, _ = out.of("c").Write([]byte(strings.Repeat("z", 1000)))
		}
		out.close()
		text := strings.ReplaceAll(strings.Join(all, ""), "c: ", "")
		if n := strings.Count(text, "z"); n != maxOutput-len("one\ntwo\nxxxxxy")-2*(1+outputPart)-1 ||
			!strings.HasSuffix(text, "z\n[the rest is left out]\n") || len(all) < n/outputPart {
			t.Errorf("%d events with %d bytes: …%s", len(all), n, text[max(0, len(text)-50):])
		}
	})
}
