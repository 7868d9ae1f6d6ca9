package kill

import (
	"io"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// TestInputIsLostWithTheServer checks that a command whose piped input a killed server has received ends, does not take
// a part of its input for all of it, and reports the reason to later clients. A command without input continues.
func TestInputIsLostWithTheServer(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	host.OnEngines(t, func(t *testing.T, h *host.Host) {
		h.Must("sandbox", "create", "--name", "box")
		other := h.Must("sandbox", "exec", "-d", "box", "--", "sh", "-c", "sleep 1; echo continued")
		cmd := h.Command(t.Context(), "sandbox", "exec", "-i", "box", "--", "sh", "-c",
			"read line; echo got $line; cat >/tmp/rest; touch /tmp/whole")
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
		if _, err := io.WriteString(in, "a line\nand a part of"); err != nil {
			t.Fatal(err)
		}
		host.Expect(t, out, "got a line\n")
		h.Kill()
		if err := cmd.Wait(); err == nil {
			t.Error("the client did not notice the end of the server")
		}
		_, stderr, code := h.Run("sandbox", "logs", "box") // of the command that was started last
		if code != 137 || !strings.Contains(stderr, "standard input was lost") {
			t.Errorf("logs: exit code %d, %s", code, stderr)
		}
		if out := h.Must("sandbox", "ps", "box"); !strings.Contains(out, "input lost") {
			t.Errorf("ps: %s", out)
		}
		if out := h.Must("sandbox", "exec", "box", "--", "sh", "-c", "test -e /tmp/whole || echo incomplete"); out !=
			"incomplete" {
			t.Error("the command took a part of its input for all of it")
		}
		if out := h.Must("sandbox", "logs", "box", other); out != "continued" {
			t.Errorf("a command without input: %q", out)
		}
	})
}
