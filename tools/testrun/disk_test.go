package main

import (
	"strings"
	"testing"
)

func TestFullDiskIsReported(t *testing.T) {
	t.Parallel()
	d := newDisk(t.TempDir())
	if d.first == 0 || d.least == 0 {
		t.Fatalf("the free space is not known: %+v", d)
	}
	d.first, d.least = 80<<30, 7<<30
	if text := d.String(); !strings.HasSuffix(text, ": 80GiB free at the start, 7GiB at least") {
		t.Errorf("%s", text)
	}
	d.least = 3 << 30
	if text := d.String(); !strings.Contains(text, "3GiB at least\nTests fail without space: free some") {
		t.Errorf("%s", text)
	}
	if free := newDisk("/does/not/exist").measure(); free != 0 {
		t.Errorf("a missing directory has %d bytes free", free)
	}
}
