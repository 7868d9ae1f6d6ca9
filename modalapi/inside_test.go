package modalapi

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/sandbox"
	"github.com/RelevanceAI/harvest/secret"
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

func TestSealedDirectories(t *testing.T) {
	data := bytes.Repeat([]byte("directory"), 300_000) // of more than one part
	key := []byte("key")
	for name, size := range map[string]int{"nothing": 0, "one part exactly": partSize, "several": len(data)} {
		var sealedData bytes.Buffer
		if err := seal(&sealedData, key, bytes.NewReader(data[:size])); err != nil {
			t.Fatal(err)
		}
		raw := sealedData.Bytes()
		r, err := unseal(bytes.NewReader(raw), key)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, data[:size]) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		if size > 0 && bytes.Contains(raw, data[:64]) {
			t.Errorf("%s: it is not sealed", name)
		}
		for _, wrong := range [][]byte{nil, []byte("other")} {
			if _, err := unseal(bytes.NewReader(raw), wrong); errors.KindOf(err) != errors.Denied {
				t.Errorf("%s with the key %q: %v", name, wrong, err)
			}
		}
		if size == len(data) { // a part is missing at the end
			r, err := unseal(bytes.NewReader(raw[:1+saltSize+partSize+16]), key)
			if err == nil {
				_, err = io.ReadAll(r)
			}
			if errors.KindOf(err) != errors.Denied {
				t.Errorf("%s cut off: %v", name, err)
			}
		}
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
// mission: 8.4
func TestLimitsOfClients(t *testing.T) {
	for name, c := range map[string]struct {
		asked pb.Resources_builder
		want  sandbox.Request
	}{
		"limits": {pb.Resources_builder{MilliCpu: 125, MilliCpuMax: 500, MemoryMb: 128, MemoryMbMax: 300,
			EphemeralDiskMb: 1000}, sandbox.Request{CPU: 0.5, Memory: 300 << 20, Disk: 1000 << 20}},
		"much reserved": {pb.Resources_builder{MilliCpu: 1500, MemoryMb: 3000},
			sandbox.Request{CPU: 1.5, Memory: 3000 << 20}},
		"little reserved": {pb.Resources_builder{MilliCpu: 125, MemoryMb: 128}, sandbox.Request{}},
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

// kept returns a Server with only its stored data in dir, and the context of a caller.
func kept(t *testing.T, dir, key string) (*control, context.Context) {
	t.Helper()
	s := &Server{opts: Options{Dir: dir}, key: []byte(key), ctx: t.Context()}
	if err := errors.Join(s.openLoose(), s.openQueues()); err != nil {
		t.Fatal(err)
	}
	return &control{s: s}, context.WithValue(t.Context(), callerKey{},
		caller{Principal: account.Principal{Account: "acc"}})
}

// TestLooseSecrets checks that unnamed secrets live as long as they are used, across restarts, and no longer.
func TestLooseSecrets(t *testing.T) {
	dir := t.TempDir()
	c, ctx := kept(t, dir, "key")
	l := &c.s.loose
	old, err1 := l.add(ctx, "acc", secret.Pairs{"A": "value-of-old"})
	used, err2 := l.add(ctx, "acc", secret.Pairs{"A": "value-of-used"})
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(l.byID["acc "+used].path); err != nil || bytes.Contains(data, []byte("value-of-used")) {
		t.Errorf("the file has the value, or there is none: %v", err)
	}
	l.byID["acc "+old].used = time.Now().Add(-2 * looseLife)
	l.byID["acc "+used].used = time.Now().Add(-looseLife)
	if pairs, ok := l.get("acc", used); !ok || pairs["A"] != "value-of-used" {
		t.Errorf("a secret that is used has %v, %v", pairs, ok)
	}
	l.sweep()
	next, _ := kept(t, dir, "key")
	for name, l := range map[string]*loose{"this server": l, "the next": &next.s.loose} {
		if pairs, ok := l.get("acc", used); !ok || pairs["A"] != "value-of-used" {
			t.Errorf("%s: a secret that was used has %v, %v", name, pairs, ok)
		}
		if _, ok := l.get("acc", old); ok {
			t.Errorf("%s: a secret that nobody uses is there", name)
		}
		if _, ok := l.get("other", used); ok {
			t.Errorf("%s: another account has it", name)
		}
	}
	stranger, _ := kept(t, dir, "another key")
	left, err := filepath.Glob(filepath.Join(dir, "*"+looseEnd))
	if _, ok := stranger.s.loose.get("acc", used); ok || err != nil || len(left) != 0 {
		t.Errorf("with another key there is %v, files %v, %v", ok, left, err)
	}
	if next.s.loose.drop("acc", used); next.s.loose.drop("acc", used) {
		t.Error("a secret was dropped twice")
	}
}

// TestQueuesAreKept checks that queues keep their values across restarts, in files that do not grow with removed
// values. Unnamed queues end with their clients.
func TestQueuesAreKept(t *testing.T) {
	dir := t.TempDir()
	c, ctx := kept(t, dir, "key")
	queue := func(name string, how pb.ObjectCreationType) string {
		t.Helper()
		made, err := c.QueueGetOrCreate(ctx, pb.QueueGetOrCreateRequest_builder{DeploymentName: name,
			ObjectCreationType: how}.Build())
		if err != nil {
			t.Fatal(err)
		}
		return made.GetQueueId()
	}
	named := queue("jobs", pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING)
	loose := queue("", pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL)
	put := func(id, part string, values ...string) {
		t.Helper()
		req := pb.QueuePutRequest_builder{QueueId: id, PartitionKey: []byte(part)}
		for _, v := range values {
			req.Values = append(req.Values, []byte(v))
		}
		if _, err := c.QueuePut(ctx, req.Build()); err != nil {
			t.Fatal(err)
		}
	}
	get := func(id, part string, n int32) string {
		t.Helper()
		got, err := c.QueueGet(ctx, pb.QueueGetRequest_builder{QueueId: id, PartitionKey: []byte(part),
			NValues: n}.Build())
		if err != nil {
			t.Fatal(err)
		}
		return string(bytes.Join(got.GetValues(), []byte(" ")))
	}
	put(named, "", "a", "b", "c")
	put(named, "part", "x")
	put(named, "gone", "y")
	put(loose, "", "1")
	if got := get(named, "", 1); got != "a" {
		t.Errorf("first there comes %q", got)
	}
	if _, err := c.QueueClear(ctx, pb.QueueClearRequest_builder{QueueId: named,
		PartitionKey: []byte("gone")}.Build()); err != nil {
		t.Fatal(err)
	}
	file := c.s.queues.byID["acc "+named].path
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err == nil {
		_, err = f.WriteString(`{"v":["brok`) // by a server that was killed
		err = errors.Join(err, f.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	c, ctx = kept(t, dir, "key")
	items, err := c.QueueNextItems(ctx, pb.QueueNextItemsRequest_builder{QueueId: named, LastEntryId: "2"}.Build())
	if err != nil || len(items.GetItems()) != 1 || items.GetItems()[0].GetEntryId() != "3" {
		t.Errorf("behind the second value there is %v, %v", items, err)
	}
	if got := get(named, "", 5) + "," + get(named, "part", 5) + "," + get(named, "gone", 5) + "," + get(loose, "",
		5); got != "b c,x,,1" {
		t.Errorf("the next server has %q", got)
	}
	large := strings.Repeat("v", 600<<10)
	for range 3 {
		put(named, "", large)
	}
	if get(named, "", 3); c.s.queues.bytes != 0 {
		t.Errorf("there are %d bytes in empty queues", c.s.queues.bytes)
	}
	if info, err := os.Stat(file); err != nil || info.Size() > 1<<10 {
		t.Errorf("the file of an empty queue has %d bytes, %v", info.Size(), err)
	}
	put(loose, "", "2")
	c.s.queues.byID["acc "+loose].heard = time.Now().Add(-2 * ephemeral)
	c.s.queues.sweep(ctx)
	if _, err := c.QueueHeartbeat(ctx,
		pb.QueueHeartbeatRequest_builder{QueueId: loose}.Build()); errors.KindOf(err) != errors.NotFound ||
		c.s.queues.bytes != 0 {
		t.Errorf("a queue without a client: %v, %d bytes", err, c.s.queues.bytes)
	}
	put(named, "", "z")
	if _, err := c.QueueClear(ctx, pb.QueueClearRequest_builder{QueueId: named,
		AllPartitions: true}.Build()); err != nil {
		t.Fatal(err)
	}
	c, ctx = kept(t, dir, "key")
	if n, err := c.QueueLen(ctx, pb.QueueLenRequest_builder{QueueId: named, Total: true}.Build()); err != nil ||
		n.GetLen() != 0 {
		t.Errorf("a queue that was cleared has %v, %v", n, err)
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := c.QueuePut(ctx, pb.QueuePutRequest_builder{QueueId: named,
		Values: [][]byte{{1}}}.Build()); err == nil {
		t.Error("a value was taken that cannot be kept")
	}
}
