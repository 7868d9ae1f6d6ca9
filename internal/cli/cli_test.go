package cli

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
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
		"own":  {OwnExit(7), 7, ""},
		"none": {nil, 0, ""},
		"own remedy": {errors.Remedy(errors.Newf(errors.NotFound, "no x"), "make x"), 4,
			"harvest: no x\n  try:  make x\n"},
		"stage": {errors.Stage(errors.Newf(errors.Exhausted, "full"), "image"), 75,
			"harvest: full\n  step: image\n  try:  " + remedies[errors.Exhausted] + "\n"},
		"unexplained": {errors.Errorf("a file broke"), 1,
			"harvest: a file broke\n  try:  " + remedies[errors.Internal] + "\n"},
		"interrupted": {errors.Wrapf(context.Canceled, "wait"), 130,
			"harvest: interrupted\n  try:  " + remedies[errors.Canceled] + "\n"},
	} {
		var out bytes.Buffer
		c := c
		got := New("harvest", strings.NewReader(""), io.Discard, &out, nil).Exit(c.err)
		if got != c.code || out.String() != c.want {
			t.Errorf("%s: %d, %q; want %d, %q", name, got, out.String(), c.code, c.want)
		}
	}
}

func TestTimesAndSizes(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"2s": 2 * time.Second, "1h30m": 90 * time.Minute,
		"90": 90 * time.Second, "0.5": time.Second / 2} {
		var d TimeFlag
		if err := d.Set(text); err != nil || time.Duration(d) != want {
			t.Errorf("%s is %v, %v", text, time.Duration(d), err)
		}
	}
	for _, text := range []string{"", "0", "-1s", "-3", "x", "1e300", "NaN", "+Inf"} {
		var d TimeFlag
		if err := d.Set(text); errors.KindOf(err) != errors.Invalid || d != 0 {
			t.Errorf("%q is %v, %v", text, time.Duration(d), err)
		}
	}
	for text, want := range map[string]SizeFlag{"512MiB": 512 << 20, "2g": 2 << 30, "1000": 1000} {
		var s SizeFlag
		if err := s.Set(text); err != nil || s != want {
			t.Errorf("%s is %d, %v", text, s, err)
		}
	}
	for _, text := range []string{"", "0", "-1", "x"} {
		var s SizeFlag
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

func TestBuilding(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	c := New("harvest", strings.NewReader(""), io.Discard, &out, nil)
	b := c.Building()
	b.Update(api.Progress{Step: "download"})
	if out.Len() > 0 {
		t.Errorf("shown at once: %q", out.String())
	}
	b.start = b.start.Add(-time.Minute)
	b.Update(api.Progress{Step: "install"})
	b.Update(api.Progress{Step: "install", Done: 0.5})
	b.Update(api.Progress{Step: "pack"})
	b.noted = b.noted.Add(-noteEvery)
	b.Update(api.Progress{Step: "pack", Done: -1})
	if got := out.String(); got != "harvest: building the image: install, 0 %, 1m0s in total\n"+
		"harvest: building the image: pack, 0 %, 1m0s in total\n"+
		"harvest: building the image: pack, 1m0s in total\n" {
		t.Errorf("without a terminal: %q", got)
	}
	out.Reset()
	b.tty = true
	b.Update(api.Progress{Step: "pack", Done: 0.5})
	b.Update(api.Progress{Step: "pack", Done: -1})
	if got := out.String(); !strings.Contains(got, "pack") || !strings.Contains(got, "50%") {
		t.Errorf("on a terminal: %q", got)
	}
	b.Done()
	b.Done()
	out.Reset()
	c.Quiet = true
	b.Update(api.Progress{Step: "quiet"})
	c.Notef("quiet")
	if out.Len() > 0 {
		t.Errorf("although it should be quiet: %q", out.String())
	}
}

// TestBuildingTellsOfTheQueue checks that a long wait in the queue for a sandbox is reported, and only once.
func TestBuildingTellsOfTheQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := New("harvest", strings.NewReader(""), io.Discard, &out, nil)
		queued := api.Progress{Step: api.StepQueue, Done: -1, Message: "7 wait before it"}
		b := c.Building()
		b.Update(queued)
		b.Done()
		time.Sleep(2 * Patience)
		synctest.Wait()
		if out.Len() > 0 {
			t.Errorf("a short wait: %q", out.String())
		}
		b = c.Building()
		b.Update(queued)
		b.Update(queued)
		time.Sleep(2 * Patience)
		synctest.Wait()
		if got, want := out.String(), "harvest: the sandbox waits to start, 7 wait before it…\n"; got != want {
			t.Errorf("a long wait: %q, want %q", got, want)
		}
		b.Done()
	})
}

// TestSilentStepsAreReported checks that a step that prints nothing is reported with its share and its time so far.
func TestSilentStepsAreReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		c := New("harvest", strings.NewReader(""), io.Discard, &out, nil)
		b := c.Building()
		step := func(title string, done float64) {
			b.Update(api.Progress{Step: "run", Done: done, Message: title})
			b.Line(title)
		}
		step("[2/3] RUN apt-get install", 0.1)
		time.Sleep(noteEvery / 2)
		step("[3/3] RUN npm ci", 0.25)
		time.Sleep(2*noteEvery + time.Second)
		b.Line("[3/3] added 2 packages")
		time.Sleep(noteEvery - time.Second)
		b.Done()
		time.Sleep(3 * noteEvery)
		want := "harvest: [2/3] RUN apt-get install\nharvest: [3/3] RUN npm ci\n" +
			"harvest: building the image: [3/3] RUN npm ci, 25 %, 15s in this step\n" +
			"harvest: building the image: [3/3] RUN npm ci, 25 %, 30s in this step\nharvest: [3/3] added 2 packages\n"
		if got := out.String(); got != want {
			t.Errorf("printed\n%swant\n%s", got, want)
		}
	})
}

func TestWaiting(t *testing.T) {
	t.Parallel()
	out := &lines{wrote: make(chan string, 1)}
	c := New("harvest", strings.NewReader(""), io.Discard, out, nil)
	c.Waiting("not long")()
	done := c.Waiting("for long")
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

// Control characters in paths and keys are shown as escapes: in tables, notes, and errors.
func TestPathsAreEscaped(t *testing.T) {
	const odd, shown = "a\tb\x7fc\x1b[31md\u009be\xff", `a\tb\x7fc\x1b[31md\u009be\xff`
	var out, notes strings.Builder
	if err := PrintTable(&out, View{Header: []string{"PATH"}, Rows: [][]string{{odd}}}); err != nil ||
		out.String() != "PATH\n"+shown+"\n" {
		t.Errorf("in a table: %q, %v", out.String(), err)
	}
	c := &CLI{Err: &notes}
	c.Notef("%s: it failed\nsecond line", odd)
	if want := "harvest: " + shown + ": it failed\nsecond line\n"; notes.String() != want {
		t.Errorf("in a note: %q", notes.String())
	}
	notes.Reset()
	c.Exit(errors.Remedy(errors.Newf(errors.Invalid, "%s is bad", odd), "rename %s", odd))
	if want := "harvest: " + shown + " is bad\n  try:  rename " + shown + "\n"; notes.String() != want {
		t.Errorf("in an error: %q", notes.String())
	}
}
