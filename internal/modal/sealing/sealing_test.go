package sealing

import (
	"bytes"
	"io"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
)

func TestSealedStreams(t *testing.T) {
	data := bytes.Repeat([]byte("content"), 300_000) // of more than one part
	key := []byte("key")
	for name, size := range map[string]int{"nothing": 0, "one part exactly": partSize, "several": len(data)} {
		var sealedData bytes.Buffer
		if err := Seal(&sealedData, key, bytes.NewReader(data[:size])); err != nil {
			t.Fatal(err)
		}
		raw := sealedData.Bytes()
		r, err := Unseal(bytes.NewReader(raw), key)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data[:size]) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if size > 0 && bytes.Contains(raw, data[:64]) {
			t.Errorf("%s: it is not sealed", name)
		}
		for _, wrong := range [][]byte{nil, []byte("other")} {
			if _, err := Unseal(bytes.NewReader(raw), wrong); errors.KindOf(err) != errors.Denied {
				t.Errorf("%s with the key %q: %v", name, wrong, err)
			}
		}
		if size == len(data) { // a part is missing at the end
			r, err := Unseal(bytes.NewReader(raw[:1+saltSize+partSize+16]), key)
			if err == nil {
				_, err = io.ReadAll(r)
			}
			if errors.KindOf(err) != errors.Denied {
				t.Errorf("%s cut off: %v", name, err)
			}
		}
	}
}
