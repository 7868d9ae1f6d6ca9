//go:build linux

package tarfs_test

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// copyOf is the variable that makes this program one that copies files, for strace: "in" or "out", the number of files
// and the directory.
const copyOf = "HARVEST_TEST_TARFS_COPY"

// copiedArchive is an archive of n files of 4 KiB in one directory.
func copiedArchive(t *testing.T, n int) []byte {
	t.Helper()
	entries := make([]entry, n)
	for i := range entries {
		entries[i] = entry{name: "d/copied" + strconv.Itoa(i), content: strings.Repeat("0123456789abcdef", 256)}
	}
	return archive(t, entries...)
}

// TestSystemCallsOfFiles checks how many system calls a small file takes in each direction. In sandboxes, these calls
// take most of the time of cp.
//
// mission: A6
func TestSystemCallsOfFiles(t *testing.T) {
	if what := os.Getenv(copyOf); what != "" {
		copyTraced(t, strings.Split(what, " "))
		return
	}
	strace := testenv.RequireTool(t, "strace", "strace")
	for way, want := range map[string][]string{
		"in":  {"openat", "write", "close", "utimensat"},
		"out": {"openat", "fstat", "read", "close"},
	} {
		t.Run(way, func(t *testing.T) {
			const few, more = 10, 110
			before, after := traced(t, strace, way, few), traced(t, strace, way, more)
			got := map[string]int{}
			for name, n := range after {
				// The rest of a division is for calls that the directory takes.
				if calls := (n - before[name] + (more-few)/2) / (more - few); calls != 0 {
					got[name] = calls
				}
			}
			for _, name := range want {
				if got[name] != 1 {
					t.Errorf("%d calls of %s for each file, want 1", got[name], name)
				}
			}
			for name, n := range got {
				if !slices.Contains(want, name) {
					t.Errorf("%d calls of %s for each file, want none", n, name)
				}
			}
		})
	}
}

// copyTraced copies files as cp's helper in a sandbox does.
func copyTraced(t *testing.T, what []string) {
	t.Helper()
	n, err := strconv.Atoi(what[1])
	if err != nil {
		t.Fatal(err)
	}
	root := openRoot(t, what[2])
	if what[0] == "in" {
		err = tarfs.Unpack(root, ".", bytes.NewReader(copiedArchive(t, n)),
			tarfs.Options{Owners: os.Geteuid() == 0, SetID: true, NoUmask: true})
	} else {
		err = tarfs.Pack(root, ".", io.Discard)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// traced copies n files and returns the number of system calls that name the files, their directory or a descriptor of
// one, by the name of the call.
func traced(t *testing.T, strace, way string, n int) map[string]int {
	t.Helper()
	dir, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	if way == "out" {
		if err := tarfs.Unpack(openRoot(t, dir), ".", bytes.NewReader(copiedArchive(t, n)),
			tarfs.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), strace, "-f", "-y", "-e", "trace=%file,%desc", "-e", "signal=none", "-o",
		log, self, "-test.run", "^TestSystemCallsOfFiles$")
	cmd.Env = append(os.Environ(), copyOf+"="+way+" "+strconv.Itoa(n)+" "+dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("strace: %v: %s", err, out)
	}
	if files, err := os.ReadDir(filepath.Join(dir, "d")); err != nil || len(files) != n {
		t.Fatalf("%d files were copied, want %d: %v", len(files), n, err)
	}
	data, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	calls := map[string]int{}
	for line := range strings.Lines(string(data)) {
		_, call, _ := strings.Cut(strings.TrimSpace(line), " ") // behind the process id
		name, args, found := strings.Cut(strings.TrimSpace(call), "(")
		if found && strings.Contains(args, dir) && !strings.HasPrefix(name, "<...") {
			calls[strings.TrimPrefix(name, "new")]++
		}
	}
	return calls
}
