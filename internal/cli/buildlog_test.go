package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestVerboseShowsEachLine checks that no line of a package manager is left out if all are wanted.
func TestVerboseShowsEachLine(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	b := New("harvest", strings.NewReader(""), io.Discard, &out, nil).Building()
	b.Verbose = true
	b.Line("[2/3] Get:1 http://deb liba 1 [2 kB]")
	b.Line("[2/3] Setting up liba (1) ...")
	b.Done()
	if got := out.String(); strings.Count(got, "\n") != 2 || !strings.Contains(got, "Get:1") ||
		!strings.Contains(got, "Setting up") {
		t.Errorf("printed %q", got)
	}
}

// TestPackageLog checks that the lines of apt and npm are replaced by their number, and other lines are kept in order.
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
			"[3/3] npm http fetch GET 200 https://npm.example/a 12ms (cache miss)",
			"[3/3] npm http cache https://npm.example/a 0ms (cache hit)",
			"[3/3] npm http fetch GET 200 https://npm.example/b 12ms (cache miss)",
			"[3/3] npm http fetch GET 503 https://npm.example/c attempt 1 failed with 503",
			"[3/3] added 2 packages in 3s",
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
			"[3/3] packages: 2 requests of npm",
			"[3/3] npm http fetch GET 503 https://npm.example/c attempt 1 failed with 503",
			"[3/3] added 2 packages in 3s",
		}
		if a, b := strings.Join(got, "\n"), strings.Join(want, "\n"); a != b {
			t.Errorf("printed\n%s\nwant\n%s", a, b)
		}
	})
}
