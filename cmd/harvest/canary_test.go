package main

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Secrets that are given to sandboxes and commands must not be written to disk, logged, or seen in the arguments of a process.
// mission: F4, F6
func TestCanary(t *testing.T) {
	t.Parallel()
	h := newHost(t, "gvisor", gvisorSetup(t))
	const sandbox, command, input, named = "CANARY-1b7e5c90aa", "CANARY-2f6d813b44", "CANARY-3c9a70e2d1", "CANARY-4d0b61f3e8"
	h.env.Setenv("ANTHROPIC_API_KEY", named) // which makes a secret of it
	h.env.Setenv("SANDBOX_TOKEN", sandbox)
	h.env.Setenv("COMMAND_TOKEN", command)
	h.must("sandbox", "create", "--name", "box", "-e", "SANDBOX_TOKEN", "--secret", "anthropic")
	cmd := h.command(t.Context(), "sandbox", "exec", "-i", "-e", "COMMAND_TOKEN", "box", "--", "sh", "-c",
		`read line; test -n "$SANDBOX_TOKEN" && test -n "$COMMAND_TOKEN" && test -n "$line" && test "$ANTHROPIC_API_KEY" = CANARY-"4d0b61f3e8" && echo they are there; read more`)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if _, err := in.Write([]byte(input + "\n")); err != nil {
		t.Fatal(err)
	}
	expect(t, out, "they are there")
	found := append(inFiles(t, h.data, sandbox, command, input, named), inArguments(t, sandbox, command, input, named)...)
	_ = in.Close()
	_ = cmd.Wait()
	// What fails is where texts come together: errors, logs, records.
	_, stderr, _ := h.run("sandbox", "exec", "-e", "COMMAND_TOKEN", "-w", "/nowhere", "box", "--", "true")
	_, missing, code := h.run("sandbox", "create", "--secret", "none", "--secret", "anthropic")
	if code != 4 || !strings.Contains(missing, `there is no secret "none"`) {
		t.Errorf("a missing secret: exit code %d, %s", code, missing)
	}
	_, other, _ := h.run("sandbox", "create", "--name", "box", "-e", "SANDBOX_TOKEN")
	h.must("sandbox", "rm", "box")
	found = append(found, inFiles(t, h.data, sandbox, command, input, named)...)
	for _, where := range found {
		t.Errorf("a secret is in %s", where)
	}
	for _, text := range []string{stderr, other, missing, h.must("sandbox", "ls", "-o", "json", "--all")} {
		if strings.Contains(text, "CANARY-") {
			t.Errorf("a secret is in the output %q", text)
		}
	}
}

// inFiles returns the files below dir that hold one of the texts.
func inFiles(t *testing.T, dir string, texts ...string) (found []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || strings.HasSuffix(path, ".erofs") {
			return nil // gone meanwhile, or an image that was there before
		}
		b, err := os.ReadFile(path)
		for _, text := range texts {
			if err == nil && bytes.Contains(b, []byte(text)) {
				found = append(found, path)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// inArguments returns the processes of this machine that have one of the texts in their arguments.
func inArguments(t *testing.T, texts ...string) (found []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, _ := os.ReadFile(file)
		for _, text := range texts {
			if bytes.Contains(b, []byte(text)) {
				found = append(found, file+": "+strings.ReplaceAll(string(b), "\x00", " "))
			}
		}
	}
	return found
}
