package characters

import (
	"testing"
	"unicode/utf8"
)

func FuzzPartial(f *testing.F) {
	f.Add([]byte("a\xc3"))
	f.Add([]byte("\xf0\x9f\x98"))
	f.Add([]byte("\xff\x80\x80\x80\x80"))
	f.Fuzz(func(t *testing.T, data []byte) {
		n := Partial(data)
		if n < 0 || n >= utf8.UTFMax || n > len(data) {
			t.Fatalf("%d of %d bytes", n, len(data))
		}
		if n > 0 && utf8.FullRune(data[len(data)-n:]) {
			t.Errorf("%q is held back although it is complete", data[len(data)-n:])
		}
	})
}
