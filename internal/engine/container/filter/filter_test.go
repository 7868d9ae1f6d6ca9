package filter

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestProgramFitsTheKernel(t *testing.T) {
	t.Parallel()
	program, err := Program()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(program); n < 100 || n > unix.BPF_MAXINSNS {
		t.Errorf("%d instructions", n)
	}
}
