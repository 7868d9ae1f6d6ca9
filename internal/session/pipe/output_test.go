package pipe

import (
	"bytes"
	"io"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// splitAll writes text in pieces of n bytes and returns the lines.
func splitAll(text []byte, n int) []Line {
	lines := make(chan Line, 1000)
	w := &Splitter{Lines: lines, Stop: make(chan struct{})}
	for len(text) > 0 {
		k := min(n, len(text))
		w.Write(text[:k])
		text = text[k:]
	}
	close(lines)
	var all []Line
	for l := range lines {
		all = append(all, l)
	}
	return all
}

func TestSplitter(t *testing.T) {
	t.Parallel()
	text := []byte("one\n\ntwo two\nrest")
	want := []Line{{Text: []byte("one"), End: 4}, {End: 5}, {Text: []byte("two two"), End: 13}}
	for n := 1; n <= len(text); n++ {
		if diff := cmp.Diff(want, splitAll(text, n), cmp.AllowUnexported(Line{}),
			cmp.Transformer("text", func(b []byte) string { return string(b) })); diff != "" {
			t.Errorf("%d: %s", n, diff)
		}
	}
	long := append(bytes.Repeat([]byte("x"), MaxLine+5), "\nnext\n"...)
	got := splitAll(long, 1<<20)
	if len(got) != 2 || !got[0].Cut || len(got[0].Text) != MaxLine || got[0].End != int64(MaxLine+6) || got[1].Cut ||
		string(got[1].Text) != "next" {
		t.Errorf("%d lines", len(got))
	}
	stop := make(chan struct{})
	close(stop)
	if _, err := (&Splitter{Lines: make(chan Line), Stop: stop}).Write([]byte("a\n")); err != io.ErrClosedPipe {
		t.Errorf("nobody takes lines: %v", err)
	}
}

// FuzzSplitter checks that the lines are the same for each way to cut the output into pieces, and that their end
// offsets add up.
func FuzzSplitter(f *testing.F) {
	f.Add([]byte("a\nb\n\nc"), 2)
	f.Fuzz(func(t *testing.T, text []byte, n int) {
		if n < 1 || bytes.Count(text, []byte{'\n'}) > 900 {
			return
		}
		var at int64
		for i, l := range splitAll(text, n) {
			at += int64(len(l.Text)) + 1
			if l.End != at {
				t.Fatalf("line %d ends at %d, want %d", i, l.End, at)
			}
		}
	})
}

func TestInbox(t *testing.T) {
	t.Parallel()
	in := NewInbox()
	go func() {
		in.Append([]byte("one "))
		in.Append([]byte("two"))
		in.Close()
	}()
	if text, err := io.ReadAll(in); err != nil || string(text) != "one two" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestMissingOutput checks that the line after missing output says how much is missing, with the part of a line before.
func TestMissingOutput(t *testing.T) {
	t.Parallel()
	lines := make(chan Line, 8)
	w := &Splitter{Lines: lines}
	write := func(text string) {
		t.Helper()
		if _, err := io.WriteString(w, text); err != nil {
			t.Fatal(err)
		}
	}
	write("one\npart")
	w.Skip(100)
	w.Skip(10)
	write("end\ntwo\n")
	close(lines)
	var got []Line
	for l := range lines {
		got = append(got, l)
	}
	want := []Line{{Text: []byte("one"), End: 4}, {Text: []byte("end"), End: 122, Lost: 114, Gap: 118},
		{Text: []byte("two"), End: 126}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
