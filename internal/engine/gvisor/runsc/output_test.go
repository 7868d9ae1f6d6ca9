package runsc

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestOutputsAreNotOverwritten checks which files a program in gVisor may have as its output.
func TestOutputsAreNotOverwritten(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "file")
	for name, c := range map[string]struct {
		path  string
		flags int
		ok    bool
	}{
		"written from its beginning": {path, os.O_CREATE | os.O_WRONLY, false},
		"read and written":           {path, os.O_CREATE | os.O_RDWR | os.O_TRUNC, false},
		"appended to":                {path, os.O_CREATE | os.O_WRONLY | os.O_APPEND, true},
		"read and appended to":       {path, os.O_CREATE | os.O_RDWR | os.O_APPEND, true},
		"read":                       {path, os.O_CREATE | os.O_RDONLY, true},
		"a device":                   {os.DevNull, os.O_WRONLY, true},
		"a terminal":                 {"/dev/ptmx", os.O_RDWR, true},
	} {
		f, err := os.OpenFile(c.path, c.flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if err := checkOutputs(f); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
		f.Close()
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := checkOutputs(r, w); err != nil {
		t.Errorf("a pipe: %v", err)
	}
	// Neither a command nor a container gets such a file.
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := &Sandbox{opts: Options{}}
	_, err = s.Execute(&Exec{}, map[int]*os.File{0: r, 1: f, 2: w}, nil)
	if err == nil || !strings.Contains(err.Error(), "not opened for appending") {
		t.Errorf("a command may overwrite a file: %v", err)
	}
	if err := s.Start(&Container{Stdio: [3]*os.File{r, f, w}}); err == nil || !strings.Contains(err.Error(),
		"not opened for appending") {
		t.Errorf("a container may overwrite a file: %v", err)
	}
}
