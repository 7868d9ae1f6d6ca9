package sandboxes

import (
	"io"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

func TestWindow(t *testing.T) {
	t.Parallel()
	told := 0
	w := newWindow(func(n int) { told += n })
	if err := w.add(make([]byte, api.Window)); err != nil {
		t.Fatal(err)
	}
	if err := w.add([]byte{1}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("more than fits: %v", err)
	}
	read := 0
	for buf := make([]byte, 1000); read < api.Window; {
		n, err := w.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		read += n
		if told > read || read-told >= api.Window/4+len(buf) {
			t.Fatalf("told %d of %d", told, read)
		}
	}
	w.end()
	if n, err := w.Read(make([]byte, 1)); n != 0 || err != io.EOF {
		t.Errorf("at the end: %d, %v", n, err)
	}
	if err := w.add([]byte{1}); err != nil {
		t.Errorf("input after its end, which is passed over: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, seed := range []string{`{}`, `{"args":["a"],"terminal":{"rows":1}}`, `{"code":1}`, `[`,
		`{"sandbox":{"cpu":"x"}}`, `{"x":1}`, `null`, `{} {}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var exec api.ExecRequest
		if err := edge.Decode(data, &exec); err != nil && errors.KindOf(err) != errors.Invalid {
			t.Errorf("decode: %v", err)
		}
		if _, err := decodeRun(data); err != nil && errors.KindOf(err) != errors.Invalid &&
			errors.KindOf(err) != errors.Unsupported {
			t.Errorf("decodeRun: %v", err)
		}
	})
}

// TestLostInput checks that the end of the server is not the end of an input, unless the client had ended it.
func TestLostInput(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		before func(*window)
		want   error
	}{
		"open":           {func(*window) {}, errors.Unavailable},
		"open, unread":   {func(w *window) { _ = w.add([]byte("a part")) }, errors.Unavailable},
		"ended":          {func(w *window) { w.end() }, io.EOF},
		"ended, unread":  {func(w *window) { _ = w.add([]byte("a part")); w.end() }, errors.Unavailable},
		"lost and ended": {func(w *window) { w.lose(); w.end() }, errors.Unavailable},
	} {
		w := newWindow(func(int) {})
		c.before(w)
		w.lose()
		w.close()
		if n, err := w.Read(make([]byte, 10)); n != 0 || !errors.Is(err, c.want) {
			t.Errorf("%s: read %d bytes, %v; want %v", name, n, err, c.want)
		}
	}
}
