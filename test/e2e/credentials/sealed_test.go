package credentials

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/base/logf"
)

// within returns the form of a value that is in data, or "".
func within(data []byte) string {
	for _, v := range []string{gitToken, npmToken, pipToken, apiToken, nextToken} {
		for _, form := range logf.Forms(v) {
			if bytes.Contains(data, []byte(form)) {
				return form
			}
		}
	}
	return ""
}

// searches are scripts that print what a sandbox has: the files that have changed, and the arguments and environments
// of its processes. Each has a text that shows that it worked.
var searches = map[string]string{
	`echo it is sea""rched >/root/mark; find / /tmp /dev/shm -xdev -type f -cnewer /etc/hostname -not -path /go-client \
		-exec cat {} + 2>/dev/null`: "it is searched",
	"cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline": "API_TOKEN=",
}

// search returns the values in a sandbox.
func (w *world) search(t *testing.T, box string) (found []string) {
	t.Helper()
	for script, has := range searches {
		out, _, _ := w.Run("sandbox", "exec", box, "--", "sh", "-c", script)
		if !strings.Contains(out, has) {
			t.Errorf("%s: %q is not in the %d bytes of %s", box, has, len(out), script)
		}
		if value := within([]byte(out)); value != "" {
			found = append(found, value)
		}
	}
	return found
}

// sealed checks that no value is in a sandbox.
func (w *world) sealed(t *testing.T, box string) {
	t.Helper()
	if found := w.search(t, box); len(found) > 0 {
		t.Errorf("%s has the values %q", box, found)
	}
}

// heldInMemory reports whether a process, named by its directory in /proc, has a value in its memory.
func heldInMemory(t *testing.T, dir string) bool {
	t.Helper()
	maps, err := os.ReadFile(filepath.Join(dir, "maps"))
	mem, merr := os.Open(filepath.Join(dir, "mem"))
	if err != nil || merr != nil {
		return false // it has ended
	}
	defer mem.Close()
	const most = 64 << 20 // of a region
	searched := 0
	for line := range strings.Lines(string(maps)) {
		var begin, end uint64
		var mode string
		if _, err := fmt.Sscanf(line, "%x-%x %s", &begin, &end, &mode); err != nil {
			t.Fatal(err)
		}
		if !strings.HasPrefix(mode, "rw-p") {
			continue
		}
		b := make([]byte, min(end-begin, most))
		n, _ := mem.ReadAt(b, int64(begin))
		searched += n
		for _, v := range []string{gitToken, npmToken, pipToken, apiToken, nextToken} {
			if bytes.Contains(b[:n], []byte(v)) {
				return true
			}
		}
	}
	if searched == 0 {
		t.Errorf("nothing in the memory of %s can be read", dir)
	}
	return false
}

// sealedHere checks that no value is on this machine outside of the server: in the data directory, except for what was
// there before, in the arguments and environments of Harvest's processes, and in the memory of keepers.
func (w *world) sealedHere(t *testing.T, begun time.Time) {
	t.Helper()
	searched := 0
	err := filepath.WalkDir(w.Data, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return nil // gone meanwhile
		}
		info, err := d.Info()
		if err != nil || info.ModTime().Before(begun) {
			return nil
		}
		b, err := os.ReadFile(path)
		if found := within(b); err == nil && found != "" {
			t.Errorf("%s has the value %q", path, found)
		}
		searched++
		return nil
	})
	if err != nil || searched == 0 {
		t.Errorf("searched %d files: %v", searched, err)
	}
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	searched = 0
	for _, dir := range processes {
		args, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		env, _ := os.ReadFile(filepath.Join(dir, "environ"))
		if !bytes.Contains(args, []byte(w.Data)) && !bytes.Contains(env, []byte(w.Data)) {
			continue
		}
		searched++
		if found := within(append(args, env...)); found != "" {
			t.Errorf("the process %q has the value %q", args, found)
		}
		if bytes.HasPrefix(args, []byte("harvest-keeper")) && heldInMemory(t, dir) {
			t.Errorf("the keeper %q has a value in its memory", args)
		}
	}
	if searched == 0 {
		t.Error("no process of Harvest was found")
	}
}
