package main

import (
	"context"
	"flag"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
)

func TestParse(t *testing.T) {
	t.Parallel()
	o, err := parse([]string{"-rows", "P1, P12", "-n", "7", "-short", "-name", "x"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(o.rows, []string{"P1", "P12"}) || o.turns != 7 || !o.short || o.name != "x" ||
		o.out != "tools/bench/results" {
		t.Errorf("the options are %+v", o)
	}
	for _, c := range []struct{ args, want string }{
		{"-rows P99", `there is no row "P99"; there are P1, P2`},
		{"-n -1", "-n cannot be -1"},
		{"-files 1", "-files cannot be 1"},
		{"-large 1", "-large cannot be 1"},
		{"P1", `"P1" is too much`},
		{"-n x", "invalid value"},
	} {
		if _, err := parse(strings.Fields(c.args), io.Discard); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the error is %v, want %q", c.args, err, c.want)
		}
	}
	if _, err := parse([]string{"-h"}, io.Discard); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: the error is %v", err)
	}
}

func TestShowPrintsAnEarlierResult(t *testing.T) {
	t.Parallel()
	path := t.TempDir() + "/r.json"
	if err := example().write(path); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(t.Context(), []string{"-show", path}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(out.String(), "| P1  | start, ms | runc") {
		t.Errorf("it printed %s", out.String())
	}
}

func TestParentOf(t *testing.T) {
	t.Parallel()
	for stat, want := range map[string]int{
		"12 (sleep) S 7 12 12 0":        7,
		"12 (a ) S 99 (b)) R 7 12 12 0": 7,
		"12 (sleep) S":                  0,
		"":                              0,
		"12 (sleep) S x 12":             0,
	} {
		if got := parentOf(stat); got != want {
			t.Errorf("the parent in %q is %d, want %d", stat, got, want)
		}
	}
}

func TestFamilyFindsDescendants(t *testing.T) {
	t.Parallel()
	const mark = "bench-family-test"
	cmd := exec.CommandContext(t.Context(), "sh", "-c", "sleep 60 & echo started; wait", mark)
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(stdout, make([]byte, len("started\n"))); err != nil {
		t.Fatal(err)
	}
	match := func(cmdline string) bool { return strings.HasSuffix(cmdline, "\x00"+mark+"\x00") }
	found := family(match)
	if len(found) != 2 || found[0] != cmd.Process.Pid {
		t.Fatalf("found %v, want %d and its child", found, cmd.Process.Pid)
	}
	bytes, err := pss(found)
	if err != nil || bytes <= 0 || bytes > 100<<20 {
		t.Errorf("their memory is %d, %v", bytes, err)
	}
	for _, pid := range slices.Backward(found) {
		p, err := os.FindProcess(pid)
		if err == nil {
			_ = p.Kill()
		}
	}
	_ = cmd.Wait()
	if left := waitGone(t.Context(), match); len(left) > 0 {
		t.Errorf("%v are found after their end", left)
	}
	if _, err := pss(found[:1]); err == nil {
		t.Error("a process that is gone has memory")
	}
}

func TestKiB(t *testing.T) {
	t.Parallel()
	const text = "Rss:  10 kB\nPss:                1234 kB\nPss_Dirty: 9 kB\nName: x\n"
	if n, ok := kib(text, "Pss"); !ok || n != 1234<<10 {
		t.Errorf("Pss is %d, %t", n, ok)
	}
	for _, key := range []string{"Swap", "Name", ""} {
		if n, ok := kib(text, key); ok {
			t.Errorf("%q is %d", key, n)
		}
	}
}

func TestWatchPeakSeesGrowth(t *testing.T) {
	growth, err := watchPeak(os.Getpid())
	if err != nil {
		t.Skipf("memory cannot be watched here: %v", err)
	}
	block := make([]byte, 64<<20)
	for i := range block {
		block[i] = byte(i)
	}
	if got, err := growth(); err != nil || got < 32 {
		t.Errorf("64 MiB, of which the last byte is %d, are seen as %.1f, %v", block[len(block)-1], got, err)
	}
}

func TestStamp(t *testing.T) {
	t.Parallel()
	begin := time.Now()
	s := &stamp{want: "1\n"}
	for _, part := range []string{"1", "\n"} {
		if n, err := io.WriteString(s, part); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if took, err := s.since(begin); err != nil || took < 0 || took > time.Since(begin) {
		t.Errorf("it took %v, %v", took, err)
	}
	for _, wrong := range []string{"", "1", "1\n1\n", "Traceback"} {
		s := &stamp{want: "1\n"}
		_, _ = io.WriteString(s, wrong)
		if _, err := s.since(begin); err == nil {
			t.Errorf("%q is good output", wrong)
		}
	}
}

func TestRateWantsAllOutput(t *testing.T) {
	t.Parallel()
	var c counter
	for range outputBytes / 1_000_000 {
		_, _ = c.Write(make([]byte, 1_000_000))
	}
	if s, err := c.rate(500 * time.Millisecond); err != nil || s[speed] != 200 {
		t.Errorf("100 MB in half a second are %v, %v", s, err)
	}
	_, _ = c.Write([]byte("x"))
	if _, err := c.rate(time.Second); err == nil {
		t.Error("a byte too many is not seen")
	}
}

func TestLimitsOfPeersAreHarvests(t *testing.T) {
	t.Parallel()
	l := &lab{limits: engine.Limits{CPU: 1.5, Memory: 2 << 30, Processes: 100}}
	s := specs.Spec{Linux: &specs.Linux{}}
	l.limit(&s)
	r := s.Linux.Resources
	if float64(*r.CPU.Quota)/float64(*r.CPU.Period) != 1.5 || *r.Memory.Limit != 2<<30 || r.Pids.Limit != 100 {
		t.Errorf("the limits are %+v %+v %+v", r.CPU, r.Memory, r.Pids)
	}
}

// TestJobs does the jobs of P8 on the host, but for compileall: how long that takes depends on this machine's Python.
func TestJobs(t *testing.T) {
	t.Parallel()
	testenv.Long(t)
	for _, program := range []string{"python3", "git", "gcc", "make"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("%s is missing", program)
		}
	}
	for _, job := range slices.DeleteFunc(slices.Clone(jobs), func(job string) bool { return job == "compileall" }) {
		t.Run(job, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s, err := steps(job, func(step string) error {
				args := jobCommand(job, step)
				cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				return errors.Wrapf(err, "%s: %s", step, out)
			})
			if err != nil {
				t.Fatal(err)
			}
			if s[job] <= 0 {
				t.Errorf("it took %v seconds", s[job])
			}
		})
	}
	args := jobCommand("nothing", "run")
	if err := exec.CommandContext(t.Context(), args[0], args[1:]...).Run(); err == nil {
		t.Error("a job that does not exist ends well")
	}
}

func TestLockedWaitsForText(t *testing.T) {
	t.Parallel()
	b := &locked{}
	go func() { _, _ = io.WriteString(b, "now EAGAIN") }()
	if !b.waitFor(t.Context(), "EAGAIN", time.Minute) {
		t.Error("the text is not found")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if b.waitFor(ended, "ENOSPC", time.Minute) {
		t.Error("a text is found that is not there")
	}
	if b.waitFor(t.Context(), "ENOSPC", 0) {
		t.Error("a text is found that is not there")
	}
}

// TestEventsThroughCutsAndRestarts checks that readers of one stream get everything once, although a proxy breaks their
// connections after random numbers of bytes and the server is restarted twice. P10 is the same at full size.
// mission: E10, F1
func TestEventsThroughCutsAndRestarts(t *testing.T) {
	t.Parallel()
	o, err := fanOut{dir: t.TempDir(), clients: 20, events: 600, every: time.Millisecond, restarts: 2,
		cut: 8 << 10}.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if o.lost != 0 || o.twice != 0 || o.connections < 40 {
		t.Errorf("%d lost, %d twice, %d connections", o.lost, o.twice, o.connections)
	}
}
