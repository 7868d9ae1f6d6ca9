package credentials

import (
	"bytes"
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

// sealed checks that no value is in a sandbox: in a file that has changed, an environment or an argument.
func (w *world) sealed(t *testing.T, box string) {
	t.Helper()
	for script, has := range map[string]string{
		`echo it is sea""rched >/root/mark
find / /tmp /dev/shm -xdev -type f -cnewer /etc/hostname -not -path /go-client -exec cat {} + 2>/dev/null`: "it is searched",
		"cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline": "API_TOKEN=",
	} {
		out, _, _ := w.Run("sandbox", "exec", box, "--", "sh", "-c", script)
		if found := within([]byte(out)); found != "" || !strings.Contains(out, has) {
			t.Errorf("%s has %q in the %d bytes of %s", box, found, len(out), script)
		}
	}
}

// sealedHere checks that no value is on this machine outside of the server: in the data directory, except for what was
// there before, or in the arguments and environments of Harvest's processes.
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
	}
	if searched == 0 {
		t.Error("no process of Harvest was found")
	}
}
