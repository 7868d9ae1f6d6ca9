package shell

import "testing"

// TestOutputLimit checks that output beyond the limit is dropped while the writer continues.
func TestOutputLimit(t *testing.T) {
	t.Parallel()
	w := &bounded{}
	for range 3 {
		if n, err := w.Write(make([]byte, maxOutput/2)); n != maxOutput/2 || err != nil {
			t.Fatal(n, err)
		}
	}
	if !w.over || w.Len() > maxOutput {
		t.Errorf("%d bytes are kept", w.Len())
	}
}
