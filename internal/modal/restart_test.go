package modal_test

import (
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	modalapi "github.com/RelevanceAI/harvest/internal/modal"
	"github.com/RelevanceAI/harvest/internal/store/records"
)

// TestWhatOutlivesTheServer checks that clients' objects exist after a restart of the server: names, tags, volumes,
// images, secrets and queues, including unnamed ones.
//
// mission: C1, F4
func TestWhatOutlivesTheServer(t *testing.T) {
	w := newWorld(t)
	if _, err := w.vault.Set(t.Context(), "personal", "keys", secret.Pairs{"NAMED": "named-value"},
		secret.Create); err != nil {
		t.Fatal(err)
	}
	vol, err := w.sdk.Volumes.FromName(t.Context(), "data", &modal.VolumeFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	sb := w.create(&modal.SandboxCreateParams{Name: "box", Tags: map[string]string{"team": "a"},
		Volumes: map[string]*modal.Volume{"/volume": vol}, Timeout: time.Minute})
	w.output(sb, "sh", "-c", "echo kept >volume/f")
	id := sb.SandboxID
	ctx, task := w.started(id, pb.TaskExecStartRequest_builder{ExecId: "runs",
		CommandArgs: []string{"sh", "-c", "read a; echo $a; read b; echo $b; exit 5"}})
	type input = pb.TaskExecStdinWriteRequest_builder
	if _, err := w.router.TaskExecStdinWrite(ctx,
		input{TaskId: task, ExecId: "runs", Data: []byte("one\n")}.Build()); err != nil {
		t.Fatal(err)
	}
	stream, err := w.router.TaskExecStdioRead(ctx, pb.TaskExecStdioReadRequest_builder{TaskId: task,
		ExecId: "runs"}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if part, err := stream.Recv(); err != nil || string(part.GetData()) != "one\n" {
		t.Fatalf("the command said %q, %v", part.GetData(), err)
	}
	jobs, err := w.sdk.Queues.FromName(t.Context(), "jobs", &modal.QueueFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	loose, err := w.sdk.Queues.Ephemeral(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	loose.CloseEphemeral()
	for _, q := range []*modal.Queue{jobs, loose} {
		if err := q.PutMany(t.Context(), []any{"a", "b", "c"}, nil); err != nil {
			t.Fatal(err)
		}
		if v, err := q.Get(t.Context(), nil); err != nil || v != "a" {
			t.Fatalf("the queue has %v, %v", v, err)
		}
	}
	made, err := w.control.SecretGetOrCreate(w.ctx(), pb.SecretGetOrCreateRequest_builder{
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL,
		EnvDict:            map[string]string{"LOOSE": "loose-value"},
	}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	w.sdk.Close()
	w.serve()
	again, err := w.sdk.Sandboxes.FromName(t.Context(), "app", "box", nil)
	if err != nil || again.SandboxID != id {
		t.Fatalf("by its name there is %+v, %v", again, err)
	}
	if tags, err := again.GetTags(t.Context(), nil); err != nil || len(tags) != 1 || tags["team"] != "a" {
		t.Errorf("the tags are %v, %v", tags, err)
	}
	for name, q := range map[string]string{"named": jobs.QueueID, "without a name": loose.QueueID} {
		if n, err := w.control.QueueLen(w.ctx(), pb.QueueLenRequest_builder{QueueId: q}.Build()); err != nil ||
			n.GetLen() != 2 {
			t.Errorf("the queue %s has %v, %v", name, n, err)
		}
	}
	keys, err := w.sdk.Secrets.FromName(t.Context(), "keys", nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, task = w.started(id, pb.TaskExecStartRequest_builder{
		ExecId: "env", CommandArgs: []string{"sh", "-c", "echo $NAMED $LOOSE"},
		SecretIds: []string{keys.SecretID, made.GetSecretId()},
	})
	if got := w.said(ctx, task, "env"); got != "named-value loose-value\n" {
		t.Errorf("a command has the secrets %q", got)
	}
	for _, in := range []input{{TaskId: task, ExecId: "runs", Data: []byte("one\n")},
		{TaskId: task, ExecId: "runs", Offset: 4, Data: []byte("two\n"), Eof: true}} {
		if _, err := w.router.TaskExecStdinWrite(ctx,
			in.Build()); err != nil { // the first was taken by the server before
			t.Fatal(err)
		}
	}
	if got := w.said(ctx, task, "runs"); got != "one\ntwo\n" {
		t.Errorf("a command that runs on has said %q", got)
	}
	if end, err := w.router.TaskExecWait(ctx, pb.TaskExecWaitRequest_builder{TaskId: task,
		ExecId: "runs"}.Build()); err != nil || end.GetCode() != 5 {
		t.Errorf("it ended with %v, %v", end, err)
	}
	if _, err := again.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil {
		t.Fatal(err)
	}
	if vol, err = w.sdk.Volumes.FromName(t.Context(), "data", nil); err != nil {
		t.Fatal(err)
	}
	other := w.create(&modal.SandboxCreateParams{Name: "box", Volumes: map[string]*modal.Volume{"/volume": vol}})
	if got := w.output(other, "cat", "volume/f"); got != "kept\n" {
		t.Errorf("the volume has %q", got)
	}
	_, err1 := w.control.SecretDelete(w.ctx(), pb.SecretDeleteRequest_builder{SecretId: made.GetSecretId()}.Build())
	_, err2 := w.control.QueueDelete(w.ctx(), pb.QueueDeleteRequest_builder{QueueId: loose.QueueID}.Build())
	if err := errors.Join(err1, err2, w.sdk.Queues.Delete(t.Context(), "jobs", nil)); err != nil {
		t.Error(err)
	}
	for _, kind := range []records.Kind{records.Secret, records.Queue, records.QueueValue} {
		if left, err := w.db.Records().IDs(t.Context(), kind); err != nil || len(left) != 0 {
			t.Errorf("there are left %v of %s, %v", left, kind, err)
		}
	}
}

// TestPutsThatComeAgain checks that a put into a queue whose answer was lost is done once, also if it is repeated at
// the next server, or at the one after that.
func TestPutsThatComeAgain(t *testing.T) {
	w := newWorld(t)
	q, err := w.sdk.Queues.FromName(t.Context(), "jobs", &modal.QueueFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	put := func(key string) {
		t.Helper()
		if _, err := w.control.QueuePut(w.ctx("x-idempotency-key", key), pb.QueuePutRequest_builder{QueueId: q.QueueID,
			Values: [][]byte{[]byte(key)}}.Build()); err != nil {
			t.Fatal(err)
		}
	}
	has := func(want int32) {
		t.Helper()
		if n, err := w.control.QueueLen(w.ctx(), pb.QueueLenRequest_builder{QueueId: q.QueueID}.Build()); err != nil ||
			n.GetLen() != want {
			t.Errorf("there are %d values, %v; want %d", n.GetLen(), err, want)
		}
	}
	put("one")
	put("one")
	has(1)
	for next := range int32(2) { // the second server reads the file that the first has rewritten
		if err := w.server.Close(); err != nil {
			t.Fatal(err)
		}
		w.serve()
		put("one")
		has(1 + next)
		put("more of server " + strconv.Itoa(int(next)))
		has(2 + next)
	}
	for range 3 { // taking a value does not repeat the put
		if _, err := w.control.QueueGet(w.ctx(), pb.QueueGetRequest_builder{QueueId: q.QueueID,
			NValues: 1}.Build()); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	w.serve()
	put("one")
	has(0)
}

// TestKeysThatHaveEnded checks that a revoked or expired key is refused, and so are the tokens that were made with it.
//
// mission: 6.10
func TestKeysThatHaveEnded(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Timeout: time.Minute})
	for name, life := range map[string]time.Duration{"revoked": 0, "expired": 3 * time.Second} {
		key, text, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: name, Life: life})
		if err != nil {
			t.Fatal(err)
		}
		w.id, w.secret = key.ID, text.Reveal()
		ctx, task := w.started(sb.SandboxID, pb.TaskExecStartRequest_builder{ExecId: name,
			CommandArgs: []string{"true"}})
		connect, err := w.control.SandboxCreateConnectTokenV2(w.ctx(),
			pb.SandboxCreateConnectTokenRequest_builder{SandboxId: sb.SandboxID}.Build())
		if err != nil {
			t.Fatal(err)
		}
		if got := connected(t,
			connect); got != http.StatusBadGateway { // no port can be reached in the sandboxes of this engine
			t.Errorf("%s: while there is the key, the connect token is answered with %d", name, got)
		}
		if life == 0 {
			if err := w.ring.Revoke(t.Context(), account.Local(), key.ID); err != nil {
				t.Fatal(err)
			}
		}
		for which, call := range map[string]func() error{
			"control": func() error { return second(w.control.SandboxListV2(w.ctx(), &pb.SandboxListRequest{})) },
			"router": func() error {
				return second(w.router.TaskExecPoll(ctx, pb.TaskExecPollRequest_builder{TaskId: task,
					ExecId: name}.Build()))
			},
		} {
			err := call()
			for err == nil && t.Context().Err() == nil { // until the time is over
				err = call()
			}
			if status.Code(err) != codes.Unauthenticated {
				t.Errorf("%s, %s: %v", name, which, err)
			}
		}
		got := connected(t, connect)
		for got == http.StatusBadGateway && t.Context().Err() == nil {
			got = connected(t, connect)
		}
		if got != http.StatusUnauthorized {
			t.Errorf("%s: the connect token is answered with %d", name, got)
		}
	}
}

// connected is the status with which a connect token is answered.
func connected(t *testing.T, token *pb.SandboxCreateConnectTokenResponse) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "GET", token.GetUrl(), nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token.GetToken())
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	return resp.StatusCode
}

// TestCreationsAtTheSameTime checks that one of several clients that request a name at the same time gets it, and that
// all attempts of one client get the same sandbox.
//
// mission: A6
func TestCreationsAtTheSameTime(t *testing.T) {
	w := newWorld(t)
	w.create(nil) // makes app and image
	app, err := w.control.AppGetOrCreate(w.ctx(), pb.AppGetOrCreateRequest_builder{AppName: "app"}.Build())
	if err != nil {
		t.Fatal(err)
	}
	img, err := w.control.ImageGetOrCreate(w.ctx(), pb.ImageGetOrCreateRequest_builder{
		AppId: app.GetAppId(), Image: pb.Image_builder{DockerfileCommands: []string{"FROM base"}}.Build(),
	}.Build())
	if err != nil {
		t.Fatal(err)
	}
	type answer struct {
		id  string
		err error
	}
	atOnce := func(n int, name string, more ...string) map[string]int {
		answers := make(chan answer, n)
		req := pb.SandboxCreateV2Request_builder{AppId: app.GetAppId(),
			Definition: pb.Sandbox_builder{ImageId: img.GetImageId(), Name: &name}.Build()}.Build()
		for range n {
			go func() {
				made, err := w.control.SandboxCreateV2(w.ctx(more...), req)
				answers <- answer{made.GetSandboxId(), err}
			}()
		}
		got := map[string]int{}
		for range n {
			if a := <-answers; a.err != nil {
				got[status.Code(a.err).String()]++
			} else {
				got[a.id]++
			}
		}
		return got
	}
	if got := atOnce(6, "one"); len(got) != 2 || got["AlreadyExists"] != 5 {
		t.Errorf("six clients with one name got %v", got)
	}
	if got := atOnce(6, "two", "x-idempotency-key", "key"); len(got) != 1 {
		t.Errorf("six attempts of one client got %v", got)
	}
	found, err := w.sdk.Sandboxes.FromName(t.Context(), "app", "one", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := found.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil {
		t.Fatal(err)
	}
	if got := atOnce(1, "one"); got["AlreadyExists"] != 0 {
		t.Errorf("the name of a sandbox that has ended is not free: %v", got)
	}
	if all, err := w.fleet.List(t.Context(), "personal", sandboxFilter); err != nil || len(all) != 3 {
		t.Errorf("there are %d sandboxes, %v", len(all), err)
	}
}

// TestWhatIsRefusedForGood checks that oversized messages and unknown policies are refused with a code that clients do
// not retry.
//
// mission: A9
func TestWhatIsRefusedForGood(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Timeout: time.Minute})
	ctx, task := w.started(sb.SandboxID, pb.TaskExecStartRequest_builder{ExecId: "cat", CommandArgs: []string{"cat"}})
	put := func(data []byte) error {
		req := pb.TaskExecStdinWriteRequest_builder{TaskId: task, ExecId: "cat", Data: data, Eof: true}.Build()
		return second(w.router.TaskExecStdinWrite(ctx, req, grpc.MaxCallSendMsgSize(200<<20)))
	}
	if err := put(make([]byte, 100<<20)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("a message of more than 100 MiB: %v", err)
	}
	if err := put([]byte("less")); err != nil {
		t.Errorf("after it: %v", err)
	}
	if got := w.said(ctx, task, "cat"); got != "less" {
		t.Errorf("there came %d bytes", len(got))
	}
	policy := pb.ExperimentalOutboundPolicy_builder{HeaderReplacements: []*pb.ExperimentalOutboundPolicy_HeaderReplacement{{}}}.Build()
	app, err := w.control.AppGetOrCreate(w.ctx(), pb.AppGetOrCreateRequest_builder{AppName: "app"}.Build())
	if err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"created with": second(w.control.SandboxCreateV2(w.ctx(), pb.SandboxCreateV2Request_builder{
			AppId: app.GetAppId(), Definition: pb.Sandbox_builder{ExperimentalOutboundPolicy: policy}.Build(),
		}.Build())),
		"changed to": second(w.router.TaskSetOutboundPolicy(ctx, pb.TaskSetExperimentalOutboundPolicyRequest_builder{
			TaskId: task, ExperimentalOutboundPolicy: policy,
		}.Build())),
	} {
		if status.Code(err) != codes.Unimplemented || len(status.Convert(err).Message()) < 40 {
			t.Errorf("an outbound policy that a sandbox is %s: %v", name, err)
		}
	}
}

// Equal snapshots are one image with several IDs: each ID ends by itself, and the image with the last.
func TestEqualSnapshots(t *testing.T) {
	w := newWorld(t)
	const one, two, short = "im-111111111111111100000000", "im-222222222222222200000000", "im-333333333333333300000001"
	w.images.change(true, func(names map[string]bool) {
		for _, id := range []string{one, two, short} {
			names["modal/"+id] = true
		}
	})
	there := func(id string) bool {
		t.Helper()
		_, err := w.control.ImageFromId(w.ctx(), pb.ImageFromIdRequest_builder{ImageId: id}.Build())
		if err != nil && status.Code(err) != codes.NotFound {
			t.Fatal(err)
		}
		return err == nil
	}
	remove := func(id string) {
		t.Helper()
		if _, err := w.control.ImageDelete(w.ctx(), pb.ImageDeleteRequest_builder{ImageId: id}.Build()); err != nil {
			t.Fatal(err)
		}
	}
	if !there(one) || !there(two) || there(short) {
		t.Fatalf("there are %v %v %v", there(one), there(two), there(short))
	}
	modalapi.Sweep(w.server, t.Context())
	if remove(one); there(one) || !there(two) {
		t.Errorf("after one is deleted there are %v %v", there(one), there(two))
	}
	if _, err := w.control.ImageDelete(w.ctx(),
		pb.ImageDeleteRequest_builder{ImageId: one}.Build()); status.Code(err) != codes.NotFound {
		t.Errorf("deleted twice: %v", err)
	}
	count := 0
	remove(two)
	w.images.change(true, func(names map[string]bool) { count = len(names) })
	if there(two) || count != 0 {
		t.Errorf("after both are deleted %v, with %d names", there(two), count)
	}
	// While the image also has a user's name, its ended IDs stay. Without that name, the next sweep removes them all.
	w.images.change(true, func(names map[string]bool) {
		names["modal/"+one], names["modal/"+short], names["team/kept"] = true, true, true
	})
	if !there(one) {
		t.Error("an ID that is there again is not found")
	}
	remove(one)
	modalapi.Sweep(w.server, t.Context())
	w.images.change(true, func(names map[string]bool) {
		count = len(names)
		delete(names, "team/kept")
	})
	if there(one) || count != 3 {
		t.Errorf("with another name: %v, %d names", there(one), count)
	}
	modalapi.Sweep(w.server, t.Context())
	w.images.change(true, func(names map[string]bool) { count = len(names) })
	if count != 0 {
		t.Errorf("what has ended has %d names", count)
	}
}
