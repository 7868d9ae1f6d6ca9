package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/app/startup"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/testenv"
)

func TestTables(t *testing.T) {
	t.Parallel()
	for _, kind := range errors.Kinds {
		if exitCodes[kind] == 0 || remedies[kind] == "" {
			t.Errorf("%s has exit code %d and the remedy %q", kind, exitCodes[kind], remedies[kind])
		}
	}
}

// TestExit checks that every failure prints a remedy, and that unexplained errors are shown to operators only.
func TestExit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		err  error
		code int
		want string
	}{
		"own":  {ownExit(7), 7, ""},
		"none": {nil, 0, ""},
		"own remedy": {errors.Remedy(errors.Newf(errors.NotFound, "no x"), "make x"), 4,
			"harvest: no x\n  try:  make x\n"},
		"stage": {errors.Stage(errors.Newf(errors.Exhausted, "full"), "image"), 75,
			"harvest: full\n  step: image\n  try:  " + remedies[errors.Exhausted] + "\n"},
		"unexplained": {errors.Errorf("a file broke"), 1,
			"harvest: a file broke\n  try:  " + remedies[errors.Internal] + "\n"},
		"interrupted": {errors.Wrapf(context.Canceled, "wait"), 130,
			"harvest: the request was canceled\n  try:  " + remedies[errors.Canceled] + "\n"},
	} {
		var out bytes.Buffer
		c := c
		got := newCLI("harvest", strings.NewReader(""), io.Discard, &out, nil).exit(c.err)
		if got != c.code || out.String() != c.want {
			t.Errorf("%s: %d, %q; want %d, %q", name, got, out.String(), c.code, c.want)
		}
	}
}

func TestTimesAndSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"2s": 2 * time.Second, "1h30m": 90 * time.Minute,
		"90": 90 * time.Second, "0.5": time.Second / 2} {
		var d timeFlag
		if err := d.Set(text); err != nil || time.Duration(d) != want {
			t.Errorf("%s is %v, %v", text, time.Duration(d), err)
		}
	}
	for _, text := range []string{"", "0", "-1s", "-3", "x", "1e300", "NaN", "+Inf"} {
		var d timeFlag
		if err := d.Set(text); errors.KindOf(err) != errors.Invalid || d != 0 {
			t.Errorf("%q is %v, %v", text, time.Duration(d), err)
		}
	}
	for text, want := range map[string]sizeFlag{"512MiB": 512 << 20, "2g": 2 << 30, "1000": 1000} {
		var s sizeFlag
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%s is %d, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "x"} {
		var s sizeFlag
		if err := s.Set(text); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%q is %d, %v", text, s, err)
		}
	}
}

func TestMounts(t *testing.T) {
	t.Parallel()
	got, err := mounts([]string{"a:/x", "b:/y:ro", "c:/z:rw"})
	want := []api.Mount{{Name: "a", Path: "/x"}, {Name: "b", Path: "/y", ReadOnly: true}, {Name: "c", Path: "/z"}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	for _, text := range []string{"a", "a:/x:rx", "a:/x:ro:more"} {
		if _, err := mounts([]string{text}); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestRemote(t *testing.T) {
	t.Parallel()
	for arg, want := range map[string][2]string{
		"box:/a": {"box", "/a"}, "box:": {"box", ""}, "v:a:b": {"v", "a:b"}, "./a:b": {}, "/a:b": {}, "../a:b": {},
		"plain": {}, ":x": {},
	} {
		ref, file, ok := remote(arg)
		if ok != (want[0] != "") || ok && [2]string{ref, file} != want {
			t.Errorf("%q is %q, %q, %t", arg, ref, file, ok)
		}
	}
}

func TestBuilding(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := newCLI("harvest", strings.NewReader(""), io.Discard, &out, nil)
	b := c.building()
	b.update(api.Progress{Step: "download"})
	if out.Len() > 0 {
		t.Errorf("shown at once: %q", out.String())
	}
	b.start = b.start.Add(-time.Minute)
	b.update(api.Progress{Step: "install"})
	b.update(api.Progress{Step: "install", Done: 0.5})
	b.update(api.Progress{Step: "pack"})
	b.noted = b.noted.Add(-noteEvery)
	b.update(api.Progress{Step: "pack", Done: -1})
	if got := out.String(); got != "harvest: building the image: install, 0 %, 1m0s\n"+
		"harvest: building the image: pack, 0 %, 1m0s\nharvest: building the image: pack, 1m0s\n" {
		t.Errorf("without a terminal: %q", got)
	}
	out.Reset()
	b.tty = true
	b.update(api.Progress{Step: "pack", Done: 0.5})
	b.update(api.Progress{Step: "pack", Done: -1})
	if got := out.String(); !strings.Contains(got, "pack") || !strings.Contains(got, "50%") {
		t.Errorf("on a terminal: %q", got)
	}
	b.done()
	b.done()
	out.Reset()
	c.quiet = true
	b.update(api.Progress{Step: "quiet"})
	c.notef("quiet")
	if out.Len() > 0 {
		t.Errorf("although it should be quiet: %q", out.String())
	}
}

// TestBuildingTellsOfTheQueue checks that a long wait in the queue for a sandbox is reported, and only once.
func TestBuildingTellsOfTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := newCLI("harvest", strings.NewReader(""), io.Discard, &out, nil)
		queued := api.Progress{Step: api.StepQueue, Done: -1, Message: "7 wait before it"}
		b := c.building()
		b.update(queued)
		b.done()
		time.Sleep(2 * patience)
		synctest.Wait()
		if out.Len() > 0 {
			t.Errorf("a short wait: %q", out.String())
		}
		b = c.building()
		b.update(queued)
		b.update(queued)
		time.Sleep(2 * patience)
		synctest.Wait()
		if got, want := out.String(), "harvest: the sandbox waits to start, 7 wait before it…\n"; got != want {
			t.Errorf("a long wait: %q, want %q", got, want)
		}
		b.done()
	})
}

func TestWaiting(t *testing.T) {
	t.Parallel()
	out := &lines{wrote: make(chan string, 1)}
	c := newCLI("harvest", strings.NewReader(""), io.Discard, out, nil)
	c.waiting("not long")()
	done := c.waiting("for long")
	if got := <-out.wrote; got != "harvest: for long…\n" {
		t.Errorf("%q", got)
	}
	done()
}

type lines struct{ wrote chan string }

func (l *lines) Write(p []byte) (int, error) {
	l.wrote <- string(p)
	return len(p), nil
}

func TestDoctorView(t *testing.T) {
	t.Parallel()
	v := findingsView([]api.Finding{{Name: "a", OK: true}, {Name: "b", Needed: true, Remedy: "r"}, {Name: "c"}})
	if diff := cmp.Diff([]string{"b", "c"}, v.names); diff != "" || v.rows[1][0] != "FAIL" || v.rows[2][2] != "→ r" ||
		v.rows[3][0] != "weak" {
		t.Errorf("%s %q", diff, v.rows)
	}
}

// TestDoctorFix checks that doctor --fix installs missing programs, and reports it.
func TestDoctorFix(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >> " + filepath.Join(bin, "calls") + "\ncase \"$*\" in *broken*) exit 1;; esac\n"
	if err := os.WriteFile(filepath.Join(bin, "apt-get"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	var out bytes.Buffer
	c := newCLI("harvest", strings.NewReader(""), io.Discard, &out, []string{"PATH=" + bin + ":/bin:/usr/bin"})
	if err := c.fix(t.Context(), []api.Finding{{OK: true, Fix: "fine"}, {Name: "no package"}}); err != nil ||
		!strings.Contains(out.String(), "nothing") {
		t.Errorf("nothing to do: %v, %q", err, out.String())
	}
	missing := []api.Finding{{Fix: "mmdebstrap"}, {Fix: "uidmap"}}
	if os.Geteuid() != 0 {
		if err := c.fix(t.Context(), missing); errors.KindOf(err) != errors.Denied {
			t.Errorf("not as root: %v", err)
		}
		return
	}
	if err := c.fix(t.Context(), missing); err != nil ||
		!strings.Contains(out.String(), "installed: mmdebstrap uidmap") {
		t.Errorf("%v, %q", err, out.String())
	}
	calls, err := os.ReadFile(filepath.Join(bin, "calls"))
	if want := "update\ninstall -y --no-install-recommends mmdebstrap uidmap\n"; err != nil || string(calls) != want {
		t.Errorf("apt-get was called with %q, %v", calls, err)
	}
	if err := c.fix(t.Context(), []api.Finding{{Fix: "broken"}}); errors.KindOf(err) != errors.Unavailable ||
		errors.RemedyOf(err) == "" {
		t.Errorf("apt-get fails: %v", err)
	}
	t.Setenv("PATH", "/nonexistent")
	if err := c.fix(t.Context(), missing); errors.KindOf(err) != errors.Unsupported {
		t.Errorf("no apt-get: %v", err)
	}
}

func TestServerEnvironment(t *testing.T) {
	t.Parallel()
	c := newCLI("harvest", nil, nil, nil, []string{"PATH=/bin", "HARVEST_LIMITS_CPU=1", "SECRET=x", "PWD=/", "HOME=/h"})
	if diff := cmp.Diff([]string{"PATH=/bin", "HARVEST_LIMITS_CPU=1", "HOME=/h"}, c.serverEnv()); diff != "" {
		t.Error(diff)
	}
}

func TestLogBeginsAnew(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), startup.LogName)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, startup.LogLimit+1); err != nil {
		t.Fatal(err)
	}
	f, err := openLog(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	old, err := os.Stat(path + ".1")
	if err != nil || old.Size() != startup.LogLimit+1 {
		t.Errorf("the old one: %v, %v", old, err)
	}
	if info, err := f.Stat(); err != nil || info.Size() != 0 || info.Mode().Perm() != 0o600 {
		t.Errorf("the new one: %v, %v", info, err)
	}
}

// TestSystemdUnitsAreHardened checks how systemd rates the units, and that faults are found. A unit with these options
// was run by systemd with all features; a change of the options needs that again.
//
// mission: 6.10
func TestSystemdUnitsAreHardened(t *testing.T) {
	t.Parallel()
	analyze := testenv.RequireTool(t, "systemd-analyze", "systemd")
	exposure := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`)
	rate := func(text string) float64 {
		t.Helper()
		path := filepath.Join(t.TempDir(), "harvest.service")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "security", "--offline=true", "--no-pager",
			path).CombinedOutput()
		m := exposure.FindSubmatch(out)
		if m == nil {
			t.Fatalf("%v\n%s", err, out)
		}
		n, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for file, most := range map[string]float64{"harvest.service": 4.0, "harvest-rootless.service": 2.5} {
		unit, err := os.ReadFile("../../docs/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if got := rate(string(unit)); got > most {
			t.Errorf("%s: %v, want at most %v", file, got, most)
		}
		if got := rate(strings.Replace(string(unit), "ProtectSystem=strict\n", "", 1)); got <= most {
			t.Errorf("%s without ProtectSystem: %v", file, got)
		}
	}
}

// TestSystemdUnit checks that systemd accepts the unit of the operations page without a warning.
func TestSystemdUnit(t *testing.T) {
	t.Parallel()
	analyze := testenv.RequireTool(t, "systemd-analyze", "systemd")
	page, err := os.ReadFile("../../docs/operations.md")
	if err != nil || !bytes.Contains(page, []byte("](harvest.service)")) {
		t.Errorf("the page does not lead to the unit, %v", err)
	}
	unit, err := os.ReadFile("../../docs/harvest.service")
	if err != nil {
		t.Fatal(err)
	}
	rootless, err := os.ReadFile("../../docs/harvest-rootless.service")
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable() // one that exists
	if err != nil {
		t.Fatal(err)
	}
	verify := func(text string) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "harvest.service")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, "harvest.service") { // not other services of this machine
				return line
			}
		}
		if err != nil && len(out) == 0 {
			return err.Error()
		}
		return ""
	}
	text := strings.Replace(string(unit), "ExecStart=/usr/local/bin/harvest up ", "ExecStart="+program+" up ", 1)
	if text == string(unit) {
		t.Error("the unit starts something else")
	}
	for _, text := range []string{text, strings.Replace(string(rootless), "ExecStart=/usr/local/bin/harvest up ",
		"ExecStart="+program+" up ", 1)} {
		if fault := verify(text); fault != "" {
			t.Error(fault)
		}
	}
	if verify(strings.Replace(text, "on-failure", "perhaps", 1)) == "" ||
		verify(string(unit)+"[Service]\nNoSuchThing=1\n") == "" {
		t.Error("faults are not found")
	}
}

// Control characters in paths and keys are shown as escapes: in tables, notes, and errors.
// mission: A8
func TestPathsAreEscaped(t *testing.T) {
	const odd, shown = "a\tb\x7fc\x1b[31md\u009be\xff", `a\tb\x7fc\x1b[31md\u009be\xff`
	var out, notes strings.Builder
	if err := printTable(&out, view{header: []string{"PATH"}, rows: [][]string{{odd}}}); err != nil ||
		out.String() != "PATH\n"+shown+"\n" {
		t.Errorf("in a table: %q, %v", out.String(), err)
	}
	c := &cli{err: &notes}
	c.notef("%s: it failed\nsecond line", odd)
	if want := "harvest: " + shown + ": it failed\nsecond line\n"; notes.String() != want {
		t.Errorf("in a note: %q", notes.String())
	}
	notes.Reset()
	c.exit(errors.Remedy(errors.Newf(errors.Invalid, "%s is bad", odd), "rename %s", odd))
	if want := "harvest: " + shown + " is bad\n  try:  rename " + shown + "\n"; notes.String() != want {
		t.Errorf("in an error: %q", notes.String())
	}
}

func TestPortsOfEndedSandboxes(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]struct {
		kind   errors.Kind
		remedy string
	}{
		"creating":   {errors.Conflict, "wait until it is running"},
		"terminated": {errors.Gone, "harvest sandbox get sbx_1"},
		"failed":     {errors.Gone, "harvest sandbox get sbx_1"},
	} {
		err := wantRunning(api.Sandbox{ID: "sbx_1", Status: status, Reason: "because"})
		if !errors.Is(err, want.kind) || !strings.Contains(errors.Message(err), "sbx_1 is "+status+" (because)") ||
			!strings.Contains(errors.RemedyOf(err), want.remedy) {
			t.Errorf("%s: %v, remedy %q", status, err, errors.RemedyOf(err))
		}
	}
	if err := wantRunning(api.Sandbox{ID: "sbx_1", Status: "running"}); err != nil {
		t.Error(err)
	}
}
