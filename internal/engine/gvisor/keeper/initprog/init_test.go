package initprog

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"
)

func TestInitImageHoldsTheProgram(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "init.erofs")
	if err := Write(path); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	img, err := erofs.Open(f)
	if err != nil {
		t.Fatal(err)
	}
	program, err := img.Open("init")
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	info, err := program.Stat()
	if err != nil {
		t.Fatal(err)
	}
	if info.Size()%block != 0 || info.Mode().Perm() != 0o755 {
		t.Errorf("size %d, mode %v", info.Size(), info.Mode())
	}
	before, _ := os.Stat(path)
	if err := Write(path); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Stat(path); !os.SameFile(before, after) {
		t.Error("an image that was there was written again")
	}
	if err := Write(filepath.Join(path, "below-a-file")); err == nil {
		t.Error("no error for a path that cannot be")
	}
}

// The engine's tests run the program itself, in prepared sandboxes and others.
func TestInitStack(t *testing.T) {
	t.Parallel()
	args := Args("/init", "host", Step{Dir: "/etc", File: "/etc/x", Content: "some text\n"})
	stack, err := Stack(args)
	if err != nil {
		t.Fatal(err)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(stack[8*i:]) }
	if word(0) != uint64(len(args)) || word(len(args)+1) != 0 {
		t.Errorf("it says that there are %d arguments, and ends with %#x", word(0), word(len(args)+1))
	}
	for i, want := range args {
		text := stack[word(i+1)-orders:]
		if got := string(text[:bytes.IndexByte(text, 0)]); got != want {
			t.Errorf("argument %d is %q, want %q", i, got, want)
		}
	}
	if _, err := Stack([]string{strings.Repeat("x", maxOrders)}); err == nil {
		t.Error("no error for more than is read")
	}
}

// TestInitArgs checks the arguments of the program, and that its code and its data do not overlap.
func TestInitArgs(t *testing.T) {
	t.Parallel()
	want := []string{"/init", "box", "/d", "/d/f", "text", "/d/g"}
	if got := Args("/init", "box", Step{"/d", "/d/f", "text", "/d/g"}); !slices.Equal(got, want) {
		t.Errorf("arguments %q", got)
	}
	if n := len(code()); n > data {
		t.Errorf("the code of %d bytes overlaps its data at %d", n, data)
	}
}
