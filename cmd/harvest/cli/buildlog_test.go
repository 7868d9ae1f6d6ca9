package cli

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestPackageLog checks that the lines of apt are replaced by their number, and other lines are kept in order.
func TestPackageLog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var got []string
		l := &packageLog{print: func(line string) { got = append(got, line) }}
		for _, line := range []string{
			"[2/3] RUN apt-get install -y x",
			"[2/3] Reading package lists...",
			"[2/3] The following NEW packages will be installed:",
			"[2/3]   liba libb",
			"[2/3] Get:1 http://deb liba 1 [2 kB]",
			"[2/3] Get:2 http://deb libb 1 [2 kB]",
			"WAIT",
			"[2/3] Unpacking liba (1) ...",
			"[2/3] Setting up liba (1) ...",
			"[2/3] E: libb is broken",
			"[2/3]   an indented line of a program",
			"[3/3] Setting up libc (1) ...",
			"[1/3] Setting up libd (1) ...",
		} {
			if line == "WAIT" {
				time.Sleep(summaryEvery)
				continue
			}
			l.line(line)
		}
		l.flush()
		l.flush()
		want := []string{
			"[2/3] RUN apt-get install -y x",
			"[2/3] packages: 2 downloaded, 1 unpacked",
			"[2/3] packages: 2 downloaded, 1 unpacked, 1 set up",
			"[2/3] E: libb is broken",
			"[2/3]   an indented line of a program",
			"[3/3] packages: 1 set up",
			"[1/3] packages: 1 set up",
		}
		if a, b := strings.Join(got, "\n"), strings.Join(want, "\n"); a != b {
			t.Errorf("printed\n%s\nwant\n%s", a, b)
		}
	})
}
