package cli

import (
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/test/host"
)

// TestCanary checks that secrets for sandboxes and commands are not written to disk, logged, or visible in the
// arguments of a process.
// mission: F4, F6
func TestCanary(t *testing.T) {
	t.Parallel()
	h := host.New(t, "gvisor", host.GVisor(t))
	const sandbox, command, input, named = "CANARY-1b7e5c90aa", "CANARY-2f6d813b44", "CANARY-3c9a70e2d1",
		"CANARY-4d0b61f3e8"
	h.Env.Setenv("ANTHROPIC_API_KEY", named) // which makes a secret of it
	h.Env.Setenv("SANDBOX_TOKEN", sandbox)
	h.Env.Setenv("COMMAND_TOKEN", command)
	h.Must("sandbox", "create", "--name", "box", "-e", "SANDBOX_TOKEN", "--secret", "anthropic")
	cmd := h.Command(t.Context(), "sandbox", "exec", "-i", "-e", "COMMAND_TOKEN", "box", "--", "sh", "-c",
		`read line; test -n "$SANDBOX_TOKEN" && test -n "$COMMAND_TOKEN" && test -n "$line" && test `+
			`"$ANTHROPIC_API_KEY" = CANARY-"4d0b61f3e8" && echo they are there; read more`)
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
	host.Expect(t, out, "they are there")
	found := append(host.InFiles(t, h.Data, sandbox, command, input, named),
		host.InArguments(t, sandbox, command, input, named)...)
	_ = in.Close()
	_ = cmd.Wait()
	// Failures combine texts of many sources: errors, logs, records.
	_, stderr, _ := h.Run("sandbox", "exec", "-e", "COMMAND_TOKEN", "-w", "/nowhere", "box", "--", "true")
	_, missing, code := h.Run("sandbox", "create", "--secret", "none", "--secret", "anthropic")
	if code != 4 || !strings.Contains(missing, `there is no secret "none"`) {
		t.Errorf("a missing secret: exit code %d, %s", code, missing)
	}
	_, other, _ := h.Run("sandbox", "create", "--name", "box", "-e", "SANDBOX_TOKEN")
	h.Must("sandbox", "rm", "box")
	found = append(found, host.InFiles(t, h.Data, sandbox, command, input, named)...)
	for _, where := range found {
		t.Errorf("a secret is in %s", where)
	}
	for _, text := range []string{stderr, other, missing, h.Must("sandbox", "ls", "-o", "json", "--all")} {
		if strings.Contains(text, "CANARY-") {
			t.Errorf("a secret is in the output %q", text)
		}
	}
}
