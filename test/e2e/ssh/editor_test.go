package ssh_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// editorScript does what an editor's extension for SSH sends to the shell of a host: it looks at the machine, puts a
// server there that outlives the connection, and prints where that listens.
const editorScript = `
echo "platform==$(uname -s)==$(uname -m)=="
mkdir -p "$HOME/.editor-server/bin" && cd "$HOME/.editor-server"
cat >bin/serve.py <<'EOF'
import http.server
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"from the editor's server")
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print("port", server.server_port, flush=True)
server.serve_forever()
EOF
if [ ! -e log ] || ! kill -0 "$(cat pid)" 2>/dev/null; then
	setsid nohup python3 bin/serve.py >log 2>&1 </dev/null &
	echo $! >pid
fi
until grep -q port log; do sleep 0.05; done
echo "listeningOn==$(cut -d' ' -f2 log)=="
`

// TestEditor connects as the extensions of editors do: a shell without a terminal that reads a script, a dynamic
// forward over the same connection to the server that the script has started, and later another connection that finds
// the server again. The sequence is that of VS Code's Remote-SSH, of which no part could be had here: ssh -T -D PORT
// HOST, with the script on standard input (https://code.visualstudio.com/docs/remote/troubleshooting).
func TestEditor(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	first := c.edit()
	if second := c.edit(); second != first {
		t.Errorf("the second connection finds a server at %q, the first at %q", second, first)
	}
}

// edit connects, checks that the server of the editor answers, disconnects, and returns the port of that server.
func (c *client) edit() string {
	c.t.Helper()
	ctx, cancel := context.WithCancel(c.t.Context())
	defer cancel()
	socks := freePort(c.t)
	cmd := c.command(ctx, "ssh", "-T", "-D", fmt.Sprintf("127.0.0.1:%d", socks), "-o", "ConnectTimeout=15",
		"dev.harvest")
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	in, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	if _, err := io.WriteString(in, editorScript); err != nil {
		c.t.Fatal(err)
	}
	port, lines := "", bufio.NewScanner(out)
	for port == "" && lines.Scan() {
		if rest, ok := strings.CutPrefix(lines.Text(), "listeningOn=="); ok {
			port = strings.TrimSuffix(rest, "==")
		}
	}
	through := fmt.Sprintf("socks5h://127.0.0.1:%d", socks)
	got := c.must("curl", "-sS", "-x", through, "http://127.0.0.1:"+port+"/")
	if got != "from the editor's server" {
		c.t.Errorf("the editor's server answers %q", got)
	}
	cancel()
	_ = cmd.Wait() // its signal is an error here
	return port
}

// TestBackground checks that what a command leaves behind runs on, and does not keep its client waiting if it has given
// up the standard streams.
func TestBackground(t *testing.T) {
	t.Parallel()
	c := newClient(t)
	c.must("ssh", "dev.harvest", "nohup sleep 1000 >/dev/null 2>&1 </dev/null &")
	if _, _, code := c.run("", "ssh", "dev.harvest", "pgrep -x sleep"); code != 0 {
		t.Error("the process that a command left behind has ended")
	}
	testenv.Eventually(t, "the sandbox has no command", func() bool {
		_, _, code := c.run("", "ssh", "dev.harvest", "pkill -x sleep")
		return code != 0
	})
}
