package modal

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// Sweep is the server's periodic cleanup.
var Sweep = (*Server).sweep

func TestSpoolKeepsTheLastBytes(t *testing.T) {
	s := newSpool(t.TempDir(), 256<<10)
	defer s.forget()
	data := make([]byte, 1<<20)
	for i := range data {
		data[i] = byte(i >> 8)
	}
	if n, err := s.Write(data); err != nil || n != len(data) {
		t.Fatalf("wrote %d, %v", n, err)
	}
	s.end()
	var got []byte
	first := int64(-1)
	err := s.copy(t.Context(), 0, make([]byte, 10_000), func(part []byte, start int64) error {
		if first < 0 {
			first = start
		}
		got = append(got, part...)
		return nil
	})
	if err != nil || first != 768<<10 || !bytes.Equal(got, data[first:]) {
		t.Errorf("%d bytes are kept from %d on, %v", len(got), first, err)
	}
	if last, start, err := s.kept(t.Context(), 1000); err != nil || start != 1<<20-1000 ||
		!bytes.Equal(last, data[start:]) {
		t.Errorf("the last bytes are %d from %d on, %v", len(last), start, err)
	}
}

// TestSpoolWaitsForReaders checks that a writer waits for its readers, so that they lose nothing.
func TestSpoolWaitsForReaders(t *testing.T) {
	s := newSpool(t.TempDir(), 128<<10)
	defer s.forget()
	if _, err := s.Write([]byte("begin")); err != nil {
		t.Fatal(err)
	}
	got := make(chan []byte, 1)
	reading := make(chan struct{})
	go func() {
		var all []byte
		_ = s.copy(t.Context(), 0, make([]byte, 4096), func(part []byte, _ int64) error {
			if len(all) == 0 {
				close(reading)
			}
			all = append(all, part...)
			return nil
		})
		got <- all
	}()
	<-reading
	data := bytes.Repeat([]byte("0123456789"), 100_000)
	if _, err := s.Write(data); err != nil {
		t.Fatal(err)
	}
	s.end()
	if all := <-got; !bytes.Equal(all, append([]byte("begin"), data...)) {
		t.Errorf("the reader got %d bytes of %d", len(all), len(data)+5)
	}
}

func TestImagesEnd(t *testing.T) {
	id := digestID(imageID, "x")
	if ended(id) {
		t.Error("an image without an end has ended")
	}
	if !ended(withEnd(id, time.Now().Add(-time.Second))) || ended(withEnd(id, time.Now().Add(time.Hour))) {
		t.Error("the end of an image is not what its ID says")
	}
	ttl := int64(-1)
	if got, err := snapshotIDOf("a", "b", &ttl); err != nil || ended(got) {
		t.Errorf("forever: %s, %v", got, err)
	}
	for _, bad := range []int64{0, -2, 1 << 40} {
		if _, err := snapshotIDOf("a", "b", &bad); errors.KindOf(err) != errors.Invalid {
			t.Errorf("a life of %d seconds: %v", bad, err)
		}
	}
}

func TestIDs(t *testing.T) {
	const box = "sbx_01m7x821ztydymw4atxggkzhmv" // which ends as IDs of tasks do
	for prefix, id := range map[string]string{sandboxID: sandboxOf(box), taskID: taskOf(box),
		containerID: containerID + ulidOf(box)} {
		if got, err := boxOf(id, prefix); err != nil || got != box {
			t.Errorf("%s is %s, %v", id, got, err)
		}
	}
	for _, bad := range []string{"", "sb-", "sb-x", "ta-01M7X821ZTYDYMW4ATXGGKZHMV", "sb-nGEijt9WbBMlGrsPH9FOaC",
		"sb-../../etc/passwd/01234567"} {
		if _, err := boxOf(bad, sandboxID); errors.KindOf(err) != errors.NotFound {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, bad := range []string{"", "vo-", "vo-n", "vo-n!", "st-nYQ"} {
		if _, err := nameOf(bad, volumeID, "Volume"); errors.KindOf(err) != errors.NotFound {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

func TestInputEnds(t *testing.T) {
	i := newStdin()
	i.leave()
	if err := i.write(t.Context(), 0, []byte("x"), false); errors.KindOf(err) != errors.Conflict {
		t.Errorf("input for nobody: %v", err)
	}
	full := newStdin()
	if err := full.write(t.Context(), 0, make([]byte, queued), false); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := full.write(ctx, queued, []byte("x"), false); err == nil {
		t.Error("more input than may wait was taken")
	}
}

// TestLimitsOfClients checks that a client's limits become the sandbox's limits, and that reservations do so only if
// they exceed the default.
//
// mission: A6
func TestLimitsOfClients(t *testing.T) {
	for name, c := range map[string]struct {
		asked pb.Resources_builder
		want  spec.Request
	}{
		"limits": {pb.Resources_builder{MilliCpu: 125, MilliCpuMax: 500, MemoryMb: 128, MemoryMbMax: 300,
			EphemeralDiskMb: 1000}, spec.Request{CPU: 0.5, Memory: 300 << 20, Disk: 1000 << 20}},
		"much reserved": {pb.Resources_builder{MilliCpu: 1500, MemoryMb: 3000},
			spec.Request{CPU: 1.5, Memory: 3000 << 20}},
		"little reserved": {pb.Resources_builder{MilliCpu: 125, MemoryMb: 128}, spec.Request{}},
	} {
		req, err := request(pb.Sandbox_builder{Resources: c.asked.Build()}.Build())
		if err != nil || req.CPU != c.want.CPU || req.Memory != c.want.Memory || req.Disk != c.want.Disk {
			t.Errorf("%s: %+v, %v", name, req, err)
		}
	}
}

func TestNetworksOfClients(t *testing.T) {
	allow := pb.NetworkAccess_builder{NetworkAccessType: pb.NetworkAccess_ALLOWLIST,
		AllowedCidrs: []string{"10.1.2.3/8"}, AllowedDomains: []string{"*.Example.com"}}.Build()
	for name, c := range map[string]struct {
		access  *pb.NetworkAccess
		blocked bool
		mode    string
		allow   string
	}{
		"open":         {pb.NetworkAccess_builder{NetworkAccessType: pb.NetworkAccess_OPEN}.Build(), false, "", ""},
		"nothing said": {nil, false, "", ""},
		"blocked": {pb.NetworkAccess_builder{NetworkAccessType: pb.NetworkAccess_BLOCKED}.Build(),
			false, "none", ""},
		"blocked, of old": {nil, true, "none", ""},
		"listed":          {allow, false, "allow", "10.0.0.0/8 *.example.com"},
		"an empty list": {pb.NetworkAccess_builder{NetworkAccessType: pb.NetworkAccess_ALLOWLIST}.Build(),
			false, "none", ""},
	} {
		n, err := networkOf(c.access, c.blocked)
		if err != nil || n.Mode != c.mode || strings.Join(n.Allow, " ") != c.allow {
			t.Errorf("%s: %+v, %v", name, n, err)
		}
	}
}
