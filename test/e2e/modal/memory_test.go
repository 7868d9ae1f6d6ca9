package modal

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
)

// hiddenInMemory is a value that only memory and environment of a sandbox have.
const hiddenInMemory = "only-in-memory-of-the-sandbox"

// counting counts requests at port 8081, in memory alone. A request for /exit ends it.
const counting = `
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    n = 0
    born = os.urandom(8).hex()
    def do_GET(self):
        if self.path == "/exit":
            print("asked to exit", flush=True)
            os._exit(7)
        Handler.n += 1
        body = f"{Handler.n} {Handler.born} {len(os.environ['HIDDEN'])}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *args):
        pass
server = http.server.HTTPServer(("0.0.0.0", 8081), Handler)
print("serves", flush=True)
server.serve_forever()
`

// TestModalMemory checks that snapshots of memory work with Modal's Go SDK, on gVisor: the server is killed in between,
// and two sandboxes continue from the state of the first one.
//
// mission: A4, A10
func TestModalMemory(t *testing.T) {
	testenv.Long(t)
	h := modalhost.WithBase(t)
	m := newModalClient(t, h, "memory")
	t.Run("goes on", m.goesOn)
	t.Run("refused", m.memoryRefused)
}

// counter makes a sandbox that counts.
func (m *modalClient) counter(t *testing.T) *modal.Sandbox {
	t.Helper()
	sb := m.create(t, "base", &modal.SandboxCreateParams{
		Name: "counter", Tags: map[string]string{"team": "a"}, Command: []string{"python3", "-c", counting},
		Env:              map[string]string{"HIDDEN": hiddenInMemory},
		UnencryptedPorts: []int{8081}, Timeout: 10 * time.Minute, ExperimentalEnableSnapshot: true,
	})
	if line, err := bufio.NewReader(sb.Stdout).ReadString('\n'); err != nil || line != "serves\n" {
		t.Fatalf("%q, %v", line, err)
	}
	return sb
}

// asked sends a request to a sandbox that counts.
func (m *modalClient) asked(t *testing.T, sb *modal.Sandbox, path string) (string, error) {
	t.Helper()
	tunnels, err := sb.Tunnels(t.Context(), time.Minute, nil)
	if err != nil {
		t.Fatal(err)
	}
	host, port, err := tunnels[8081].TCPSocket()
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get(fmt.Sprintf("http://%s:%d%s", host, port, path))
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func (m *modalClient) goesOn(t *testing.T) {
	sb := m.counter(t)
	self := ""
	for n := 1; n <= 3; n++ {
		got, err := m.asked(t, sb, "/")
		count, rest, ok := strings.Cut(got, " ")
		if err != nil || !ok || count != fmt.Sprint(n) {
			t.Fatalf("it counts %q, %v", got, err)
		}
		self = rest
	}
	m.run(t, sb, "echo kept >/kept")
	snapshot, err := sb.ExperimentalSnapshot(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if code, err := sb.Wait(t.Context(), nil); err != nil || code != 137 {
		t.Errorf("the sandbox ended with %d, %v", code, err)
	}
	m.private(t)
	m.killServer(t)
	found, err := m.sdk.SandboxSnapshots.FromID(t.Context(), snapshot.SnapshotID, nil)
	if err != nil {
		t.Fatal(err)
	}
	one, other := m.restored(t, found, nil), m.restored(t, found, new(string))
	if _, err := m.sdk.Sandboxes.ExperimentalFromSnapshot(t.Context(), found,
		nil); status.Code(err) != codes.AlreadyExists {
		t.Errorf("a third with the name of the first: %v", err)
	}
	if got, err := m.sdk.Sandboxes.FromName(t.Context(), "memory", "counter", nil); err != nil ||
		got.SandboxID != one.SandboxID {
		t.Errorf("the name means %v, %v", got, err)
	}
	for i, want := range []string{"4 ", "5 ", "6 "} {
		if got, err := m.asked(t, one, "/"); err != nil || got != want+self {
			t.Errorf("one counts %q, %v; want %q", got, err, want+self)
		}
		if got, err := m.asked(t, other, "/"); i == 0 && (err != nil || got != want+self) {
			t.Errorf("the other counts %q, %v; want %q", got, err, want+self)
		}
	}
	if out, code := m.run(t, one, `cat /kept; echo "$HIDDEN"`); code != 0 || out != "kept\n"+hiddenInMemory+"\n" {
		t.Errorf("a command says %q, %d", out, code)
	}
	if tags, err := one.GetTags(t.Context(), nil); err != nil || tags["team"] != "a" {
		t.Errorf("it has the tags %v, %v", tags, err)
	}
	m.killServer(t) // the next server takes over restored sandboxes, too
	one, err = m.sdk.Sandboxes.FromID(t.Context(), one.SandboxID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := m.asked(t, one, "/"); err != nil || got != "7 "+self {
		t.Errorf("after another restart, one counts %q, %v", got, err)
	}
	_, _ = m.asked(t, one, "/exit") // it sends no answer
	if code, err := one.Wait(t.Context(), nil); err != nil || code != 7 {
		t.Errorf("its command ended with %d, %v", code, err)
	}
	if out, err := io.ReadAll(one.Stdout); err != nil || string(out) != "asked to exit\n" {
		t.Errorf("it said %q, %v", out, err)
	}
	if got, err := m.asked(t, other, "/"); err != nil || got != "7 "+self {
		t.Errorf("the other counts %q, %v", got, err)
	}
	if said := m.h.Log.All(); strings.Contains(said, hiddenInMemory) {
		t.Error("the servers' log has what was in memory")
	}
}

// restored makes a sandbox from a snapshot of memory.
func (m *modalClient) restored(t *testing.T, from *modal.SandboxSnapshot, name *string) *modal.Sandbox {
	t.Helper()
	sb, err := m.sdk.Sandboxes.ExperimentalFromSnapshot(t.Context(), from,
		&modal.SandboxExperimentalFromSnapshotParams{Name: name})
	if err != nil {
		t.Fatal(err)
	}
	return ending(t, sb)
}

// killServer kills the server, and starts another one at the address that clients use.
func (m *modalClient) killServer(t *testing.T) {
	t.Helper()
	for _, pair := range m.h.Modal {
		if address, ok := strings.CutPrefix(pair, "MODAL_SERVER_URL=http://"); ok {
			m.h.Environ = append(m.h.Environ, "HARVEST_MODAL_LISTEN="+address)
		}
	}
	if err := m.h.Up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-m.h.Ended
	m.h.Start()
}

// private: other users of this machine cannot read checkpoints, and their records contain no memory.
func (m *modalClient) private(t *testing.T) {
	t.Helper()
	top, records := filepath.Join(m.h.Data(), "checkpoints"), 0
	err := filepath.WalkDir(top, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if info, err := d.Info(); err != nil || d.IsDir() && info.Mode().Perm() != 0o700 {
			t.Errorf("%s has the mode %v, %v", name, info.Mode(), err)
		}
		if d.Name() == "record.json" {
			records++
			if b, err := os.ReadFile(name); err != nil || strings.Contains(string(b), hiddenInMemory) {
				t.Errorf("the record is %s, %v", b, err)
			}
		}
		return nil
	})
	if err != nil || records != 1 {
		t.Errorf("there are %d checkpoints, %v", records, err)
	}
}

// memoryRefused: unsupported state is reported, and nothing is left of the attempt.
func (m *modalClient) memoryRefused(t *testing.T) {
	refused := func(what string, sb *modal.Sandbox, code codes.Code, words string) {
		t.Helper()
		_, err := sb.ExperimentalSnapshot(t.Context(), nil)
		if status.Code(err) != code || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", what, err)
		}
		if out, code := m.run(t, sb, "echo goes on"); code != 0 || out != "goes on\n" {
			t.Errorf("%s: afterwards a command says %q, %d", what, out, code)
		}
	}
	refused("without being asked for", m.create(t, "base", nil), codes.FailedPrecondition,
		"experimental_enable_snapshot")
	vol, err := m.sdk.Volumes.FromName(t.Context(), "memory", &modal.VolumeFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	with := m.create(t, "base", &modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/data": vol},
		ExperimentalEnableSnapshot: true})
	refused("a volume", with, codes.Unimplemented, "Create it without volumes")
	sb := m.create(t, "base", &modal.SandboxCreateParams{ExperimentalEnableSnapshot: true})
	p, err := sb.Exec(t.Context(), []string{"sh", "-c", "echo runs; exec sleep 1000"},
		&modal.SandboxExecParams{PTY: true})
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(p.Stdout).ReadString('\n'); err != nil {
		t.Fatalf("%q, %v", line, err)
	}
	refused("a terminal", sb, codes.FailedPrecondition, "start it without a terminal")
	ctx, client := plain(m.h, t)
	for what, id := range map[string]string{"none": "sn-01BX5ZZKBKACTAV9WEVGEMMVRY", "no ID": "sn-../../x"} {
		_, err := client.SandboxRestoreV2(ctx, pb.SandboxRestoreV2Request_builder{SnapshotId: id}.Build())
		_, gone := client.SandboxSnapshotGet(ctx, pb.SandboxSnapshotGetRequest_builder{SnapshotId: id}.Build())
		if status.Code(err) != codes.NotFound || status.Code(gone) != codes.NotFound {
			t.Errorf("%s: %v, %v", what, err, gone)
		}
	}
	// The first generation's calls, which Go's SDK has for sandboxes of that generation.
	first := m.create(t, "base", &modal.SandboxCreateParams{Command: []string{"sleep", "1000"},
		ExperimentalEnableSnapshot: true})
	taken, err := client.SandboxSnapshot(ctx, pb.SandboxSnapshotRequest_builder{SandboxId: first.SandboxID}.Build())
	if err != nil {
		t.Fatal(err)
	}
	waited, err := client.SandboxSnapshotWait(ctx,
		pb.SandboxSnapshotWaitRequest_builder{SnapshotId: taken.GetSnapshotId(), Timeout: 55}.Build())
	if err != nil || waited.GetResult().GetStatus() != pb.GenericResult_GENERIC_STATUS_SUCCESS {
		t.Errorf("the snapshot ended with %v, %v", waited, err)
	}
	mounts := []*pb.VolumeMount{pb.VolumeMount_builder{VolumeId: vol.VolumeID, MountPath: "/data"}.Build()}
	_, err = client.SandboxRestore(ctx, pb.SandboxRestoreRequest_builder{SnapshotId: taken.GetSnapshotId(),
		ReplaceVolumeMounts: true, VolumeMounts: mounts}.Build())
	if status.Code(err) != codes.Unimplemented {
		t.Errorf("with a volume: %v", err)
	}
	for what, err := range m.ofAnother(t, taken.GetSnapshotId()) {
		if status.Code(err) != codes.NotFound {
			t.Errorf("another account's %s: %v", what, err)
		}
	}
	again, err := client.SandboxRestore(ctx,
		pb.SandboxRestoreRequest_builder{SnapshotId: taken.GetSnapshotId()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	id, err := m.sdk.Sandboxes.FromID(t.Context(), again.GetSandboxId(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if code, err := id.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil || code != 137 {
		t.Errorf("what was restored ended with %d, %v", code, err)
	}
	if _, err := m.sdk.Sandboxes.FromName(t.Context(), "memory", "counter", nil); err == nil ||
		!errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("the name of one that has ended: %v", err)
	}
}

// ofAnother returns the errors that another account gets for a snapshot of memory.
func (m *modalClient) ofAnother(t *testing.T, id string) map[string]error {
	t.Helper()
	_, ctx, client := m.withKey(t, "other", "--account", "acme")
	_, get := client.SandboxSnapshotGet(ctx, pb.SandboxSnapshotGetRequest_builder{SnapshotId: id}.Build())
	_, wait := client.SandboxSnapshotWait(ctx, pb.SandboxSnapshotWaitRequest_builder{SnapshotId: id}.Build())
	_, restore := client.SandboxRestore(ctx, pb.SandboxRestoreRequest_builder{SnapshotId: id}.Build())
	_, second := client.SandboxRestoreV2(ctx, pb.SandboxRestoreV2Request_builder{SnapshotId: id}.Build())
	return map[string]error{"get": get, "wait": wait, "restore": restore, "restore of the second generation": second}
}

// TestModalMemoryIsMadeOnce checks that a client whose server is killed during a snapshot of memory gets the snapshot
// from the next server by its automatic retry, and that there is no second one. The sandbox keeps running until then.
//
// mission: A8, A10
func TestModalMemoryIsMadeOnce(t *testing.T) {
	testenv.Long(t)
	h := modalhost.Of(t, testenv.FaultBinary(t))
	m := newModalClient(t, h, "killed")
	ordinary := h.Environ
	for i, point := range []string{"checkpoint.begun", "checkpoint.made", "checkpoint.recorded"} {
		h.Environ = append(ordinary[:len(ordinary):len(ordinary)], "HARVEST_FAULT="+point)
		m.killServer(t)
		sb := m.create(t, "base", &modal.SandboxCreateParams{Command: []string{"sh", "-c",
			"echo runs; exec sleep 1000"}, ExperimentalEnableSnapshot: true})
		taken := make(chan error, 1)
		var snapshot *modal.SandboxSnapshot
		go func() {
			var err error
			snapshot, err = sb.ExperimentalSnapshot(t.Context(), nil)
			taken <- err
		}()
		<-h.Ended
		h.Environ = append(h.Environ, "HARVEST_FAULT=")
		h.Start()
		if err := <-taken; err != nil {
			t.Fatalf("%s: %v", point, err)
		}
		if code, err := sb.Wait(t.Context(), nil); err != nil || code != 137 {
			t.Errorf("%s: the sandbox ended with %d, %v", point, code, err)
		}
		entries, err := os.ReadDir(filepath.Join(h.Data(), "checkpoints"))
		if err != nil || len(entries) != i+1 {
			t.Errorf("%s: there are %v, %v", point, entries, err)
		}
		again := m.restored(t, snapshot, nil)
		if out, code := m.run(t, again, "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"); code != 0 ||
			!strings.Contains(out, "sleep 1000") {
			t.Errorf("%s: in what was restored runs %q, %d", point, out, code)
		}
	}
}

// remembers: a sandbox with a network keeps that network and its client's allowlist.
func (m *modalClient) remembers(t *testing.T) {
	sb := m.create(t, "python:3.12-alpine", &modal.SandboxCreateParams{
		Command: []string{"sleep", "1000"}, OutboundCIDRAllowlist: &modal.Allowlist{Entries: []string{siteOne + "/32"}},
		ExperimentalEnableSnapshot: true,
	})
	if got := m.visited(t, sb, everywhere...); got != siteOne+"|80|" {
		t.Fatalf("it reaches %q", got)
	}
	snapshot, err := sb.ExperimentalSnapshot(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got := m.visited(t, m.restored(t, snapshot, nil), everywhere...); got != siteOne+"|80|" {
			t.Errorf("restored, it reaches %q", got)
		}
	}
}
