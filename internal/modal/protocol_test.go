package modal_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// mission: 6.10
func TestWhoIsLetIn(t *testing.T) {
	w := newWorld(t)
	call := func(pairs ...string) error {
		_, err := w.control.ClientHello(metadata.AppendToOutgoingContext(t.Context(), pairs...), &emptypb.Empty{})
		return err
	}
	for name, pairs := range map[string][]string{
		"nothing":          {"x-modal-client-type", "9"},
		"an unknown key":   {"x-modal-token-id", w.id, "x-modal-token-secret", "hv_" + strings.Repeat("a", 52)},
		"another one's ID": {"x-modal-token-id", "key_other", "x-modal-token-secret", w.secret},
		"no secret":        {"x-modal-token-id", w.id},
	} {
		err := call(pairs...)
		if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "harvest modal env") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := call("x-modal-client-type", "9", "x-modal-client-type", "9", "x-modal-token-id", w.id,
		"x-modal-token-secret", w.secret); err != nil {
		t.Errorf("headers that come twice: %v", err)
	}
	for version, code := range map[string]codes.Code{
		"modal-go/0.10.0": codes.Unimplemented, "modal-js/v0.9.0": codes.Unimplemented, "modal-go/0.10.1": codes.OK,
		"modal-js/1.0.0": codes.OK,
		"modal-go/0.0.0": codes.OK, "modal-go/(devel)": codes.OK, "x": codes.OK, "": codes.OK,
	} {
		err := call("x-modal-libmodal-version", version, "x-modal-token-id", w.id, "x-modal-token-secret", w.secret)
		if status.Code(err) != code || code != codes.OK &&
			!strings.Contains(err.Error(), "Use version 0.10.1 or a newer one") {
			t.Errorf("the SDK %q: %v", version, err)
		}
	}
	for version, code := range map[string]codes.Code{
		"1.5.3": codes.FailedPrecondition, "1.4.10": codes.FailedPrecondition, "0.73.45": codes.FailedPrecondition,
		"1.5.3.dev12": codes.FailedPrecondition,
		"1.5.4":       codes.OK, "1.5.4rc1": codes.OK, "1.6.0.dev3": codes.OK, "2.0": codes.OK,
		"unknown": codes.OK, "": codes.OK,
	} {
		err := call("x-modal-client-type", "1", "x-modal-client-version", version, "x-modal-token-id", w.id,
			"x-modal-token-secret", w.secret)
		if status.Code(err) != code || code != codes.OK &&
			!strings.Contains(err.Error(),
				"modal-python "+version+" is too old for this server. Use version 1.5.4 or a newer one") {
			t.Errorf("the SDK for Python %q: %v", version, err)
		}
		if err := call("x-modal-client-type", "9", "x-modal-client-version", version, "x-modal-token-id", w.id,
			"x-modal-token-secret", w.secret); err != nil {
			t.Errorf("an SDK that is like that for Python %q: %v", version, err)
		}
	}
	for version, code := range map[string]codes.Code{"0.50.0": codes.FailedPrecondition,
		"1.5.4": codes.Unimplemented} { // with methods that only old clients call
		ctx := metadata.AppendToOutgoingContext(t.Context(), "x-modal-client-type", "1", "x-modal-client-version",
			version, "x-modal-token-id", w.id, "x-modal-token-secret", w.secret)
		if err := w.conn.Invoke(ctx, "/modal.client.ModalClient/ClientCreate", &emptypb.Empty{},
			&emptypb.Empty{}); status.Code(err) != code {
			t.Errorf("what only old SDKs call, by %s: %v", version, err)
		}
	}
	key, text, err := w.ring.Create(t.Context(), account.Local(),
		account.Request{Name: "reader", Scopes: []account.Scope{account.Read}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-modal-token-id", key.ID, "x-modal-token-secret",
		text.Reveal())
	if _, err := w.control.SandboxListV2(ctx, &pb.SandboxListRequest{}); err != nil {
		t.Errorf("a reader lists: %v", err)
	}
	if _, err := w.control.SandboxCreateV2(ctx,
		&pb.SandboxCreateV2Request{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a reader creates: %v", err)
	}
	token, err := w.control.AuthTokenGet(w.ctx(), &pb.AuthTokenGetRequest{})
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(token.GetToken(), ".")
	var claims struct{ Exp int64 }
	if body, err := base64.RawURLEncoding.DecodeString(parts[1]); err != nil || len(parts) != 3 ||
		json.Unmarshal(body, &claims) != nil || time.Until(time.Unix(claims.Exp, 0)) < time.Minute {
		t.Errorf("the token is %q, %v", token.GetToken(), err)
	}
	for _, header := range []string{"", "Bearer", "Bearer a.b.c",
		"Bearer " + token.GetToken()} { // the last one is for no sandbox
		_, err := w.router.TaskExecPoll(metadata.AppendToOutgoingContext(t.Context(), "authorization", header),
			&pb.TaskExecPollRequest{})
		if status.Code(err) != codes.Unauthenticated {
			t.Errorf("%q at the router: %v", header, err)
		}
	}
}

// TestAccountsDoNotSeeOneAnother checks that another account's objects appear not to exist, and that a token is valid
// for its sandbox only.
func TestAccountsDoNotSeeOneAnother(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Command: []string{"sleep", "60"}})
	key, text, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "other", Account: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-modal-token-id", key.ID, "x-modal-token-secret",
		text.Reveal())
	id := sb.SandboxID
	_, err1 := w.control.SandboxWaitV2(ctx, pb.SandboxWaitRequest_builder{SandboxId: id}.Build())
	_, err2 := w.control.SandboxTerminateV2(ctx, pb.SandboxTerminateRequest_builder{SandboxId: id}.Build())
	_, err3 := w.control.SandboxGetCommandRouterAccess(ctx,
		pb.SandboxGetCommandRouterAccessRequest_builder{SandboxId: &id}.Build())
	for i, err := range []error{err1, err2, err3} {
		if status.Code(err) != codes.NotFound {
			t.Errorf("call %d: %v", i, err)
		}
	}
	other := w.create(nil)
	access, err := w.control.SandboxGetCommandRouterAccess(w.ctx(),
		pb.SandboxGetCommandRouterAccessRequest_builder{SandboxId: &other.SandboxID}.Build())
	if err != nil {
		t.Fatal(err)
	}
	task := "ta-" + strings.TrimPrefix(id, "sb-") + "V"
	routed := w.routed(pb.CommandRouterAccess_builder{Jwt: access.GetJwt()}.Build())
	if _, err := w.router.TaskExecPoll(routed,
		pb.TaskExecPollRequest_builder{TaskId: task}.Build()); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a token for another sandbox: %v", err)
	}
}

// mission: A9
func TestWhatIsNotThereSaysSo(t *testing.T) {
	w := newWorld(t)
	for name, err := range map[string]error{
		"functions": second(w.control.FunctionGet(w.ctx(), &pb.FunctionGetRequest{})),
		"classes":   second(w.control.ClassGet(w.ctx(), &pb.ClassGetRequest{})),
		"volumes":   second(w.control.VolumeCommit(w.ctx(), &pb.VolumeCommitRequest{})),
	} {
		if status.Code(err) != codes.Unimplemented || len(status.Convert(err).Message()) < 40 {
			t.Errorf("%s: %v", name, err)
		}
	}
	sb := func(d pb.Sandbox_builder) error {
		app, err := w.control.AppGetOrCreate(w.ctx(), pb.AppGetOrCreateRequest_builder{AppName: "app",
			ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING}.Build())
		if err != nil {
			return err
		}
		_, err = w.control.SandboxCreateV2(w.ctx(), pb.SandboxCreateV2Request_builder{AppId: app.GetAppId(),
			Definition: d.Build()}.Build())
		return err
	}
	vm, relative, region := "vm", "relative", pb.SchedulerPlacement_builder{Regions: []string{"invalid-region"}}.Build()
	allow := func(cidr, domain string) *pb.NetworkAccess {
		n := pb.NetworkAccess_builder{NetworkAccessType: pb.NetworkAccess_ALLOWLIST}
		if cidr != "" {
			n.AllowedCidrs = []string{cidr}
		}
		if domain != "" {
			n.AllowedDomains = []string{domain}
		}
		return n.Build()
	}
	for name, c := range map[string]struct {
		d    pb.Sandbox_builder
		code codes.Code
	}{
		"a GPU":           {pb.Sandbox_builder{Resources: pb.Resources_builder{GpuConfig: pb.GPUConfig_builder{GpuType: "A100", Count: 1}.Build()}.Build()}, codes.Unimplemented},
		"a VM":            {pb.Sandbox_builder{Runtime: &vm}, codes.Unimplemented},
		"a bucket":        {pb.Sandbox_builder{CloudBucketMounts: []*pb.CloudBucketMount{pb.CloudBucketMount_builder{RequesterPays: true}.Build()}}, codes.Unimplemented},
		"a memory":        {pb.Sandbox_builder{EnableSnapshot: true}, codes.Unimplemented},
		"a domain":        {pb.Sandbox_builder{CustomDomain: "x.example"}, codes.Unimplemented},
		"two days":        {pb.Sandbox_builder{TimeoutSecs: 2 * 86400}, codes.InvalidArgument},
		"a relative path": {pb.Sandbox_builder{Workdir: &relative}, codes.InvalidArgument},
		"a region":        {pb.Sandbox_builder{SchedulerPlacement: region}, codes.InvalidArgument},
		"a cloud":         {pb.Sandbox_builder{CloudProviderStr: "invalid-cloud"}, codes.InvalidArgument},
		"a CIDR":          {pb.Sandbox_builder{NetworkAccess: allow("not-an-ip/8", "")}, codes.InvalidArgument},
		"a CIDR of IPv6":  {pb.Sandbox_builder{NetworkAccess: allow("x::/200", "")}, codes.InvalidArgument},
		"a name":          {pb.Sandbox_builder{NetworkAccess: allow("", "not a domain!")}, codes.InvalidArgument},
		"who connects":    {pb.Sandbox_builder{InboundCidrAllowlist: []string{"x"}}, codes.InvalidArgument},
		"no image":        {pb.Sandbox_builder{}, codes.NotFound},
		"another image":   {pb.Sandbox_builder{ImageId: "im-000000000000000000000000"}, codes.NotFound},
	} {
		if err := sb(c.d); status.Code(err) != c.code {
			t.Errorf("%s: %v, want %s", name, err, c.code)
		}
	}
}

func TestBuildsThatFailSayWhy(t *testing.T) {
	w := newWorld(t)
	w.images.fail, w.images.log = errors.Newf(errors.Invalid, "step 2 failed"), []string{"one", "two"}
	app, err := w.sdk.Apps.FromName(t.Context(), "app", &modal.AppFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.sdk.Images.FromRegistry("base", nil).DockerfileCommands([]string{"RUN false"},
		nil).Build(t.Context(), app, nil)
	if err == nil { // the first layer took the failure
		t.Fatal("a build that fails did not")
	}
	if !strings.Contains(err.Error(), "step 2 failed") {
		t.Errorf("the failure reads %v", err)
	}
	img, err := w.sdk.Images.FromRegistry("base", nil).DockerfileCommands([]string{"RUN true"},
		&modal.ImageDockerfileCommandsParams{Env: map[string]string{"A": "b"}}).Build(t.Context(), app, nil)
	if err != nil {
		t.Fatal(err)
	}
	stream, err := w.control.ImageJoinStreaming(w.ctx(), pb.ImageJoinStreamingRequest_builder{ImageId: img.ImageID,
		Timeout: 5}.Build())
	if err != nil {
		t.Fatal(err)
	}
	log := ""
	for {
		item, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range item.GetTaskLogs() {
			log += l.GetData()
		}
	}
	if log != "one\ntwo\n" {
		t.Errorf("the build said %q", log)
	}
	if err := img.Publish(t.Context(), "team-image", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := w.sdk.Images.FromName(t.Context(), "team-image", nil); err != nil {
		t.Errorf("an image by its name: %v", err)
	}
	if _, err := w.sdk.Images.FromName(t.Context(), "missing-image", nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("an image that there is not: %v", err)
	}
}

func TestQueues(t *testing.T) {
	w := newWorld(t)
	q, err := w.sdk.Queues.FromName(t.Context(), "jobs", &modal.QueueFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.PutMany(t.Context(), []any{"a", "b", "c"}, nil); err != nil {
		t.Fatal(err)
	}
	if n, err := q.Len(t.Context(), nil); err != nil || n != 3 {
		t.Errorf("%d values, %v", n, err)
	}
	seen := 0
	for _, err := range q.Iterate(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		seen++
	}
	if seen != 3 {
		t.Errorf("%d values were seen", seen)
	}
	if v, err := q.Get(t.Context(), nil); err != nil || v != "a" {
		t.Errorf("got %v, %v", v, err)
	}
	if err := q.Clear(t.Context(), nil); err != nil {
		t.Error(err)
	}
	zero := time.Duration(0)
	if _, err := q.Get(t.Context(), &modal.QueueGetParams{Timeout: &zero}); err == nil {
		t.Error("something came out of an empty queue")
	}
	for range 2 {
		ctx := w.ctx("x-idempotency-key", "again")
		if _, err := w.control.QueuePut(ctx, pb.QueuePutRequest_builder{QueueId: q.QueueID,
			Values: [][]byte{{1}}}.Build()); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := q.Len(t.Context(), nil); err != nil || n != 1 {
		t.Errorf("put twice with one key: %d values, %v", n, err)
	}
	many := make([][]byte, 5000)
	if _, err := w.control.QueuePut(w.ctx(), pb.QueuePutRequest_builder{QueueId: q.QueueID,
		Values: many}.Build()); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("more than fits: %v", err)
	}
	if err := w.sdk.Queues.Delete(t.Context(), "jobs", nil); err != nil {
		t.Error(err)
	}
	if _, err := w.sdk.Queues.FromName(t.Context(), "jobs", nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("a queue that was deleted: %v", err)
	}
}

// TestInputAtOffsets checks that input at offsets arrives once, however often it is sent, and that a broken stream
// leaves it open.
func TestInputAtOffsets(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Timeout: time.Minute})
	id := sb.SandboxID
	access, err := w.control.SandboxGetCommandRouterAccess(w.ctx(),
		pb.SandboxGetCommandRouterAccessRequest_builder{SandboxId: &id}.Build())
	if err != nil {
		t.Fatal(err)
	}
	ctx := w.routed(pb.CommandRouterAccess_builder{Jwt: access.GetJwt()}.Build())
	task := "ta-" + strings.TrimPrefix(id, "sb-") + "V"
	start := pb.TaskExecStartRequest_builder{
		TaskId: task, ExecId: "one", CommandArgs: []string{"cat"},
		StdoutConfig: pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_PIPE,
		StderrConfig: pb.TaskExecStderrConfig_TASK_EXEC_STDERR_CONFIG_STDOUT,
	}.Build()
	for range 2 { // the same ID is the same command
		if _, err := w.router.TaskExecStart(ctx, start); err != nil {
			t.Fatal(err)
		}
	}
	put := func(offset uint64, data string, eof bool) error {
		_, err := w.router.TaskExecStdinWrite(ctx, pb.TaskExecStdinWriteRequest_builder{TaskId: task, ExecId: "one",
			Offset: offset, Data: []byte(data), Eof: eof}.Build())
		return err
	}
	if err := errors.Join(put(0, "abc", false), put(0, "abc", false), put(2, "cde", false)); err != nil {
		t.Fatal(err)
	}
	if err := put(100, "x", false); status.Code(err) != codes.InvalidArgument {
		t.Errorf("with a gap: %v", err)
	}
	broken, cancel := context.WithCancel(ctx)
	stream, err := w.router.TaskExecStdinWriteStream(broken)
	if err != nil {
		t.Fatal(err)
	}
	msg := pb.TaskExecStdinWriteStreamRequest_builder{Start: pb.TaskExecStdinWriteStreamStart_builder{TaskId: task,
		ExecId: "one", Offset: 5}.Build()}.Build()
	if err := errors.Join(stream.Send(msg),
		stream.Send(pb.TaskExecStdinWriteStreamRequest_builder{Data: []byte("fg")}.Build())); err != nil {
		t.Fatal(err)
	}
	for { // until it has arrived
		st, err := w.router.TaskExecStdinStatus(ctx, pb.TaskExecStdinStatusRequest_builder{TaskId: task,
			ExecId: "one"}.Build())
		if err != nil {
			t.Fatal(err)
		}
		if st.GetNumBytesWritten() == 7 && !st.GetClosed() {
			break
		}
	}
	cancel()
	if err := put(7, "", true); err != nil {
		t.Fatal(err)
	}
	end, err := w.router.TaskExecWait(ctx, pb.TaskExecWaitRequest_builder{TaskId: task, ExecId: "one"}.Build())
	if err != nil || end.GetCode() != 0 || !end.HasCode() {
		t.Errorf("ended with %v, %v", end, err)
	}
	if poll, err := w.router.TaskExecPoll(ctx, pb.TaskExecPollRequest_builder{TaskId: task,
		ExecId: "one"}.Build()); err != nil || !poll.HasCode() {
		t.Errorf("poll says %v, %v", poll, err)
	}
	for offset, want := range map[uint64]string{0: "abcdefg", 4: "efg", 7: ""} {
		out, err := w.router.TaskExecStdioRead(ctx, pb.TaskExecStdioReadRequest_builder{TaskId: task, ExecId: "one",
			Offset: offset}.Build())
		if err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		for {
			part, err := out.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			got.Write(part.GetData())
		}
		if got.String() != want {
			t.Errorf("from %d: %q", offset, got.String())
		}
	}
	if _, err := w.router.TaskExecWait(ctx, pb.TaskExecWaitRequest_builder{TaskId: task,
		ExecId: "none"}.Build()); status.Code(err) != codes.NotFound {
		t.Errorf("a command that there is not: %v", err)
	}
}

func TestMessagesOf100MiB(t *testing.T) {
	testenv.Long(t)
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Timeout: time.Minute})
	p, err := sb.Exec(t.Context(), []string{"wc", "-c"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Stdin.Write(make([]byte, 99<<20)); err != nil {
		t.Fatal(err)
	}
	if err := p.Stdin.Close(); err != nil {
		t.Fatal(err)
	}
	if out, err := io.ReadAll(p.Stdout); err != nil || strings.TrimSpace(string(out)) != "103809024" {
		t.Errorf("%q bytes arrived, %v", out, err)
	}
}
