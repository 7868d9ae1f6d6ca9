package server

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host"
)

// memory returns the server's peak memory in bytes.
func memory(h *host.Host) int64 {
	h.T.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Server().PID))
	if err != nil {
		h.T.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "VmHWM:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		h.T.Fatal(err)
	}
	return kib << 10
}

// TestTenThousandConnections checks that ten thousand silent or stalled connections do not block other clients, and
// cost no more than necessary.
func TestTenThousandConnections(t *testing.T) {
	testenv.Long(t)
	const many = 10_000
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if limit.Max < many+500 {
		t.Skipf("a process may have %d open files; allow %d: ulimit -n", limit.Max, many+500)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	h := host.New(t, "fake", host.GVisor(t)) // with the ordinary binary: the race detector's memory is its own
	url := h.Up()
	address := strings.TrimPrefix(url, "http://")
	before := memory(h)
	conns := make([]net.Conn, 0, many)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for i := range many {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatalf("connection %d: %v", i, err)
		}
		conns = append(conns, c)
		if i%2 == 0 { // the other half sends nothing at all
			if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	buf := make([]byte, 4096)
	for i := 0; i < many; i += 2 {
		if n, err := conns[i].Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), "HTTP/1.1 200 ") {
			t.Fatalf("connection %d: %q, %v", i, buf[:n], err)
		}
	}
	resp, err := http.Get(url + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("one more: %s", resp.Status)
	}
	if used := memory(h) - before; used > 500<<20 {
		t.Errorf("%d connections cost %d MiB", many, used>>20)
	}
}

// endless returns n bytes that are not kept in memory.
func endless(n int64) io.Reader { return io.LimitReader(zeros{}, n) }

type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

// TestLargeBodies checks that bodies of any size pass through, or are refused, without being held in memory.
// mission: F1
func TestLargeBodies(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.New(t, "fake", nil)
	url := h.Up()
	key := h.Must("key", "create", "large", "--quiet")
	id := h.Must("sandbox", "create")
	before := memory(h)
	c, err := client.At(url, key)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	size := int64(5 << 30)
	var disk syscall.Statfs_t
	if err := syscall.Statfs(h.Data, &disk); err != nil {
		t.Fatal(err)
	}
	if free := int64(disk.Bavail) * disk.Bsize; free < 4*size {
		t.Logf("only 1 GiB is uploaded, since the disk has only %d MiB free", free>>20)
		size = 1 << 30
	}
	wrote, err := c.WriteFile(t.Context(), id, "/tmp/large", 0, size, endless(size))
	if err != nil || wrote.Size != size {
		t.Errorf("an upload of %d bytes: %+v, %v", size, wrote, err)
	}
	if err := c.RemoveFile(t.Context(), id, "/tmp/large", false); err != nil {
		t.Error(err)
	}
	// 1 GiB in place of a JSON document.
	for _, length := range []int64{1 << 30, -1} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+api.Sandboxes, endless(1<<30))
		if err != nil {
			t.Fatal(err)
		}
		req.ContentLength = length
		req.Header.Set("Authorization", "Bearer "+key)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusRequestEntityTooLarge {
			t.Errorf("a body of 1 GiB, said to be %d: %s", length, resp.Status)
		}
	}
	if used := memory(h) - before; used > 200<<20 {
		t.Errorf("the server took %d MiB for them", used>>20)
	}
}

// TestReaderThatNeverReads checks that a client that never reads neither fills the server's memory nor delays other
// clients, and that its command ends when it disconnects.
func TestReaderThatNeverReads(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	h := host.New(t, "fake", nil)
	url := h.Up()
	key := h.Must("key", "create", "slow", "--quiet")
	id := h.Must("sandbox", "create")
	before := memory(h)
	mark := make([]byte, 8)
	_, _ = rand.Read(mark)
	body := fmt.Sprintf(`{"args":["sh","-c","yes %s"]}`, hex.EncodeToString(mark))
	var conns []net.Conn
	for range 5 {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := fmt.Fprintf(conn,
			"POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s\r\nAccept: text/event-stream\r\n"+
				"Content-Length: %d\r\n\r\n%s",
			api.Path(api.SandboxExec, id), key, len(body), body); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 4096)); err != nil { // and nothing more
			t.Fatal(err)
		}
		conns = append(conns, conn)
	}
	for range 20 {
		if got := h.Must("sandbox", "exec", id, "--", "echo", "others"); got != "others" {
			t.Errorf("others get %q", got)
		}
	}
	if used := memory(h) - before; used > 200<<20 {
		t.Errorf("five readers that do not read cost %d MiB", used>>20)
	}
	for _, conn := range conns {
		conn.Close()
	}
	testenv.Eventually(t, "the commands of closed connections have ended",
		func() bool { return h.Server().Commands == 0 })
}
