package main

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

func TestLongTestsAreFound(t *testing.T) {
	t.Parallel()
	texts := map[string][]byte{
		"a_test.go": []byte(`package a
func TestQuick(t *testing.T) { helper(t) }
func TestDirect(t *testing.T) { testenv.Long(t) }
func TestInSubtest(t *testing.T) { t.Run("x", func(t *testing.T) { testenv.Long(t) }) }
func TestThroughHelper(t *testing.T) { outer(t) }
func TestThroughMethod(t *testing.T) { h.slow(t) }
func TestShort(t *testing.T) { if testing.Short() { n = 1 } }
func Testimony(t *testing.T) { testenv.Long(t) }
func FuzzX(f *testing.F) { testenv.Long(f) }`),
		"b_test.go": []byte(`package a
func helper(t *testing.T) { helper(t); t.Helper() }
func outer(t *testing.T) { helper(t); inner(t) }
func inner(t *testing.T) { outer(t); testenv.Long(t) }
func (h *host) slow(t *testing.T) { testenv.Long(t) }`),
	}
	got, err := longTests(texts)
	if want := []string{"TestDirect", "TestInSubtest", "TestShort", "TestThroughHelper",
		"TestThroughMethod"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v; want %v", got, err, want)
	}
	if _, err := longTests(map[string][]byte{"a_test.go": []byte("pack")}); err == nil {
		t.Error("a file that is not Go is accepted")
	}
}

// TestPatternsBelongToModules checks the module that go list runs in.
func TestPatternsBelongToModules(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string][2]string{
		"./internal/fleet/...": {".", "./internal/fleet/..."},
		"./clients":            {".", "./clients"},
		"./client":             {"client", "./"},
		"./client/...":         {"client", "./..."},
		"tools/bench":          {"tools", "./bench"},
		"./test/client":        {".", "./test/client"},
	} {
		if module, within := locate(pattern); module != want[0] || within != want[1] {
			t.Errorf("locate(%q) = %q, %q, want %q", pattern, module, within, want)
		}
	}
}

// Each long test is in the first third at one of three turns in a row, and the order of a turn is that of its thirds.
func TestTurnsRotateLongTests(t *testing.T) {
	t.Parallel()
	p := &pkg{name: "a"}
	for n := range 60 {
		p.long = append(p.long, fmt.Sprintf("Test%d", n))
	}
	first := map[string]int{}
	for turn := range 3 {
		s := newSchedule(options{turn: turn, out: t.TempDir()}, time.Now(), io.Discard)
		units := longUnits([]*pkg{p}, s)
		if !slices.IsSortedFunc(units, func(a, b unit) int { return third(a, turn) - third(b, turn) }) {
			t.Errorf("turn %d: the units are not in the order of their thirds", turn)
		}
		for _, u := range units {
			if third(u, turn) == 0 {
				first[u.String()]++
			}
		}
	}
	for _, test := range p.long {
		if n := first["a "+test]; n != 1 {
			t.Errorf("%s is in the first third %d times in three turns", test, n)
		}
	}
}

// sampleTests behave as the variable MODE selects.
const sampleTests = `package a

import (
	"os"
	"os/exec"
	"testing"
)

func is(t *testing.T, mode string) {
	if os.Getenv("MODE") != mode {
		t.Skip("not in this mode")
	}
}

func once() bool { return os.Mkdir(os.Getenv("OUT")+"/made", 0o700) == nil }

func TestPass(t *testing.T) {
	if os.Getenv("MODE") != "nothing runs" {
		t.Run("part", func(t *testing.T) {})
	} else {
		t.Skip()
	}
}
func TestFails(t *testing.T) { is(t, "one fails"); t.Error("the reason") }
func TestFlaky(t *testing.T) {
	is(t, "one is flaky")
	if once() {
		t.Error("seed 7")
	}
}
func TestPanics(t *testing.T) { is(t, "a panic"); panic("the reason") }
func TestExits(t *testing.T)  { is(t, "an early end"); os.Exit(3) }
func TestRaces(t *testing.T)  { is(t, "a data race"); t.Error("WARNING: DATA RACE") }
func TestFirst(t *testing.T)  { is(t, "images"); once() }
func TestUses(t *testing.T) {
	is(t, "images")
	if once() {
		t.Error("it did not wait")
	}
}
func TestLong(t *testing.T) {
	if testing.Short() {
		t.Skip()
	}
}
func TestHangs(t *testing.T) {
	is(t, "long")
	cmd := exec.Command("setsid", "sh", "-c", "sleep 600 & echo $! > $OUT/left; sleep 600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {}
}
`

// built is the binary of sampleTests, made once.
var built = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "testrun")
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module sample\n\ngo 1.24\n"), 0o600); err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "a_test.go"), []byte(sampleTests), 0o600); err != nil {
		return "", err
	}
	build := exec.Command("go", "test", "-c", "-vet=off", "-o", "a.test", ".")
	build.Dir = dir
	if text, err := build.CombinedOutput(); err != nil {
		return dir, fmt.Errorf("%w: %s", err, text)
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == wrapCommand {
		code, err := wrap(os.Args[2:])
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code)
	}
	calm = 0 // the samples do not mind a busy machine
	code := m.Run()
	if dir, err := built(); err == nil {
		_ = os.RemoveAll(dir)
	}
	os.Exit(code)
}

// sample returns a package with sampleTests, and options with the directory for its results.
func sample(t *testing.T) (o options, list []*pkg) {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if err := os.Mkdir(filepath.Join(out, "logs"), 0o755); err != nil {
		t.Fatal(err)
	}
	return options{out: out, slots: 2},
		[]*pkg{{path: "sample/a", name: "a", dir: dir, binary: filepath.Join(dir, "a.test")}}
}

// runSample runs the quick suite of a sample and returns the report.
func runSample(t *testing.T, mode string, o options, list []*pkg) (string, error) {
	t.Helper()
	var text strings.Builder
	s := newSchedule(o, time.Now(), &text)
	s.env = append(os.Environ(), "OUT="+o.out, "MODE="+mode)
	s.prepare(t.Context(), list)
	if o.suite != "long" {
		s.run(t.Context(), quickUnits(list, s))
	}
	if o.suite != "" {
		s.run(t.Context(), longUnits(list, s))
	}
	s.wait()
	s.retry(t.Context())
	err := s.report()
	return text.String(), err
}

func TestReport(t *testing.T) {
	t.Parallel()
	for mode, test := range map[string]struct {
		retries int
		want    []string
		fails   bool
	}{
		"all pass": {0, []string{"ok  \tsample/a", "2 passed, 0 failed, 9 skipped", "the twenty slowest"}, false},
		"one fails": {2, []string{"FAIL\tsample/a", "the reason", "== again, alone: a TestFails",
			"== FAILED\na TestFails", "2 passed, 1 failed"}, true},
		"one is flaky": {2, []string{"FLAKY", "a TestFlaky"}, false},
		"a panic":      {2, []string{"the reason", "== FAILED\na\n"}, true},
		"an early end": {2, []string{"== FAILED\na\n"}, true},
		"a data race":  {2, []string{"== FAILED\na\n"}, true},
		"nothing runs": {0, []string{"0 passed, 0 failed, 10 skipped"}, true},
	} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			o, list := sample(t)
			o.retries = test.retries
			text, err := runSample(t, mode, o, list)
			if (err != nil) != test.fails {
				t.Errorf("error %v", err)
			}
			for _, want := range test.want {
				if !strings.Contains(text, want) {
					t.Errorf("the report lacks %q:\n%s", want, text)
				}
			}
			flaky, _ := os.ReadFile(filepath.Join(o.out, "flaky.md"))
			if has := strings.Contains(string(flaky), "seed 7"); has != (mode == "one is flaky") {
				t.Errorf("flaky.md: %q", flaky)
			}
		})
	}
}

// TestLastWaitIsNamed checks that the run names the units for which it waits when no other one can start.
func TestLastWaitIsNamed(t *testing.T) {
	t.Parallel()
	var text strings.Builder
	s := newSchedule(options{slots: 1, out: t.TempDir()}, time.Now(), &text)
	s.begin(unit{pkg: &pkg{name: "a"}, tests: []string{"TestSlow"}})
	s.begin(unit{pkg: &pkg{name: "b"}})
	s.begin(unit{pkg: &pkg{name: "b"}})
	s.run(t.Context(), nil)
	if got := text.String(); !strings.HasPrefix(got, "== waiting for a TestSlow (") ||
		strings.Count(got, ", b (") != 1 {
		t.Errorf("%s", got)
	}
	text.Reset()
	s.end(unit{pkg: &pkg{name: "a"}, tests: []string{"TestSlow"}})
	s.end(unit{pkg: &pkg{name: "b"}})
	s.run(t.Context(), nil)
	if got := text.String(); got != "" {
		t.Errorf("nothing runs: %s", got)
	}
}

// TestTimeForLongTestsIsLimited checks that long tests for which no time is left are named and fail nothing, and that
// the quick suite omits the tests that -short skips.
func TestTimeForLongTestsIsLimited(t *testing.T) {
	t.Parallel()
	o, list := sample(t)
	list[0].long = []string{"TestLong", "TestHangs"}
	o.suite, o.start, o.slots = "long", time.Nanosecond, 2
	text, err := runSample(t, "long", o, list)
	names, readErr := os.ReadFile(filepath.Join(o.out, "left.txt"))
	if readErr != nil || strings.Count(string(names), "\n") != 2 {
		t.Errorf("the coverage gate reads %q: %v", names, readErr)
	}
	if err == nil || !strings.Contains(text, "left for next time: 2") {
		t.Errorf("without time: %v\n%s", err, text)
	}
	o.start, o.end = time.Hour, 10*time.Second
	text, err = runSample(t, "long", o, list)
	if err != nil || !strings.Contains(text, "a TestHangs (stopped)") || !strings.Contains(text, "1 passed, 0 failed") {
		t.Errorf("with time for one: %v\n%s", err, text)
	}
	left, err := os.ReadFile(filepath.Join(o.out, "left"))
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(left)))
	if err != nil || !errors.Is(unix.Kill(pid, 0), unix.ESRCH) {
		t.Errorf("a process of the stopped test runs: %d, %v", pid, err)
	}
	log, err := os.ReadFile(filepath.Join(o.out, "logs", "a-TestHangs.log"))
	if err != nil || !strings.Contains(string(log), `left by the tests and killed: "sleep 600"`) {
		t.Errorf("%v: %s", err, log)
	}
}

// Failed tests do not run again once the time of the whole run is over.
func TestTimeForFailedTestsIsLimited(t *testing.T) {
	t.Parallel()
	o, list := sample(t)
	o.retries, o.end = 2, time.Minute
	var text strings.Builder
	s := newSchedule(o, time.Now().Add(-time.Hour), &text)
	s.env = append(os.Environ(), "OUT="+o.out, "MODE=one fails")
	s.run(t.Context(), quickUnits(list, s))
	s.retry(t.Context())
	if err := s.report(); err == nil {
		t.Error("a failed test fails nothing")
	}
	if got := text.String(); !strings.Contains(got, "== no time to run it again: a TestFails") ||
		strings.Contains(got, "== again, alone") {
		t.Error(got)
	}
}

// Packages that use the shared images wait until a test has built them; the others need not.
func TestSharedImagesComeFirst(t *testing.T) {
	t.Parallel()
	o, list := sample(t)
	o.first, o.wait = []string{"a:TestFirst"}, "a"
	text, err := runSample(t, "images", o, list)
	if err != nil || !strings.Contains(text, "4 passed, 0 failed") {
		t.Errorf("%v\n%s", err, text)
	}
}

// A named test that the binary does not have fails.
func TestMissingTestsFail(t *testing.T) {
	t.Parallel()
	o, list := sample(t)
	list[0].long, o.suite = []string{"TestNowhere"}, "long"
	text, err := runSample(t, "long", o, list)
	if err == nil || !strings.Contains(text, "no test has this name") || !strings.Contains(text, "a TestNowhere") {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestFlagsAreChecked(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"", "-x quick", "none", "-turn x quick"} {
		if o, err := parseFlags(strings.Fields(args)); err == nil {
			t.Errorf("%q is accepted: %+v", args, o)
		}
	}
	o, err := parseFlags(strings.Fields("-first a:TestB,c:TestD long ./x"))
	if err != nil || o.suite != "long" || !slices.Equal(o.patterns, []string{"./x"}) || len(o.first) != 2 ||
		!filepath.IsAbs(o.out) {
		t.Errorf("%+v, %v", o, err)
	}
}
