package agent

import (
	"bytes"
	"crypto/rand"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestLargeRepository checks that a session of a directory with 600 MB of commits begins, and that neither the command
// line nor the server holds the commits in memory.
// mission: E3
func TestLargeRepository(t *testing.T) {
	testenv.Long(t)
	h := host.New(t, "gvisor", host.GVisor(t))
	const files, size, most = 600, 1 << 20, 64 << 10 // most in KiB
	dir := t.TempDir()
	host.RunGit(t, dir, "init", "-q", "-b", "main")
	for i := range files {
		f, err := os.Create(filepath.Join(dir, strconv.Itoa(i)))
		if err == nil {
			_, err = io.CopyN(f, rand.Reader, size)
		}
		if err != nil || f.Close() != nil {
			t.Fatal(err)
		}
	}
	host.RunGit(t, dir, "-c", "core.compression=0", "add", "-A")
	host.RunGit(t, dir, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q", "-m", "one")

	run := func(repo string, prompt string) (events string, peak int64) {
		t.Helper()
		cmd := h.Command(t.Context(), "agent", "--agent", "scripted", "--repo", repo, "-o", "json", prompt)
		var out, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &stderr
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s\n%s", err, stderr.String(), h.Log())
		}
		return out.String(), memoryOf(t, "/proc/"+strconv.Itoa(h.Server().PID)+"/status", "VmHWM:")
	}
	small := t.TempDir()
	host.RunGit(t, small, "init", "-q", "-b", "main")
	host.RunGit(t, small, "-c", "user.name=A", "-c", "user.email=a@example.org", "commit", "-q",
		"--allow-empty", "-m", "one")
	_, idle := run(small, "say hello")
	events, peak := run(dir, "/run git fsck --connectivity-only && ls | wc -l")
	if !strings.Contains(events, `"type":"tool.completed","id":"call_1","text":"`+strconv.Itoa(files)+`\n"`) {
		t.Errorf("%s", events)
	}
	if peak-idle > most {
		t.Errorf("the server had %d KiB, with a small repository %d KiB", peak, idle)
	}
	if left, err := os.ReadDir(filepath.Join(h.Data, "session-uploads", "claimed")); err != nil || len(left) > 0 {
		t.Errorf("%v are left, %v", left, err)
	}
	h.Must(append([]string{"end", "--discard"}, strings.Fields(h.Must("sessions", "-o", "name"))...)...)
}

// memoryOf returns a value of a process's status in KiB.
func memoryOf(t *testing.T, path, name string) int64 {
	t.Helper()
	status, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), name)
	n, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
