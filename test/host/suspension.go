package host

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// answering is a program that answers on port 8000 with its environment, a number that each start of it draws, and a
// file.
const answering = `exec python3 -c '
import http.server, os, uuid
drawn = uuid.uuid4().hex
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(" ".join([os.environ["WHO"], drawn, open("/root/file").read()]).encode())
    def log_message(self, *args): pass
http.server.ThreadingHTTPServer(("127.0.0.1", 8000), Handler).serve_forever()
'`

// Suspension suspends a sandbox and wakes it by requests to its port: by hand, when it is idle, and after the server
// was killed. processes says whether its processes are kept. left returns what the engine has of it. flags are those of
// its creation.
func Suspension(t *testing.T, h *Host, processes bool, left func() []string, flags ...string) {
	t.Helper()
	created := append([]string{"sandbox", "create", "--name", "site", "--env", "WHO=environment-of-the-sandbox", "-p",
		"8000", "--idle-timeout", "1h", "--idle-action", "suspend", "--start",
		"[ -e /root/file ] || echo first >/root/file; " + answering}, flags...)
	h.Must(created...)
	box := h.Sandbox("site")
	first := h.answer(t, box.ID)
	if !strings.HasPrefix(first, "environment-of-the-sandbox ") || !strings.HasSuffix(first, " first\n") {
		t.Fatalf("it answers %q", first)
	}
	drawn := strings.Fields(first)[1]
	if len(left()) == 0 {
		t.Error("the engine has nothing of a sandbox that runs")
	}
	asleep := func() {
		t.Helper()
		if got := h.Sandbox("site"); got.Status != "suspended" || got.ID != box.ID {
			t.Fatalf("%s is %s (%s)", got.ID, got.Status, got.Reason)
		}
		testenv.Eventually(t, "the engine has nothing of it", func() bool { return len(left()) == 0 })
	}
	awake := func(content string) {
		t.Helper()
		got := strings.Fields(h.answer(t, box.ID))
		if len(got) != 3 || got[0] != "environment-of-the-sandbox" || got[2] != content {
			t.Fatalf("after it woke it answers %q, want the file %q", got, content)
		}
		if (got[1] == drawn) != processes {
			t.Errorf("its processes continue: %t", got[1] == drawn)
		}
		drawn = got[1]
		if got := h.Sandbox("site"); got.Status != "running" || got.ID != box.ID {
			t.Errorf("%s is %s", got.ID, got.Status)
		}
	}
	h.Must("sandbox", "suspend", "site")
	asleep()
	awake("first")

	// Its files as they were last, and a server that was killed meanwhile.
	h.Must("sandbox", "exec", "site", "--", "sh", "-c", "echo second >/root/file")
	h.Must("sandbox", "suspend", "site")
	h.Kill()
	asleep()
	awake("second")

	h.Must("sandbox", "extend", "site", "--idle-timeout", "2s")
	testenv.Eventually(t, "the idle sandbox is suspended", func() bool {
		return h.Sandbox("site").Status == "suspended"
	})
	asleep()
	if got := h.Must("sandbox", "exec", "site", "--", "sh", "-c", "echo $WHO; cat /root/file"); got !=
		"environment-of-the-sandbox\nsecond" {
		t.Errorf("a command that wakes it prints %q", got)
	}
	h.Must("sandbox", "extend", "site", "--idle-timeout", "1h")
	awake("second")

	h.Must("sandbox", "suspend", "site")
	h.Must("sandbox", "rm", "site")
	if got := h.Must("image", "ls", "-o", "json"); strings.Contains(got, box.ID) {
		t.Errorf("its end leaves an image: %s", got)
	}
	if found := InFiles(t, h.Data, "environment-of-the-sandbox"); len(found) > 0 {
		t.Errorf("its environment is in %q", found)
	}
}

// answer returns what port 8000 of a sandbox answers.
func (h *Host) answer(t *testing.T, id string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(context.WithoutCancel(t.Context()), http.MethodGet,
		fmt.Sprintf("http://harvest/v1/sandboxes/%s/ports/8000/", id), nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := h.OverSocket().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("status %d: %s, %v", resp.StatusCode, body, err)
	}
	return string(body)
}
