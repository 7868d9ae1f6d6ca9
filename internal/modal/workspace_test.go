package modal_test

import (
	"fmt"
	"math"
	"slices"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/RelevanceAI/harvest/internal/base/secret"
)

func (w *world) queue(env, name string) string {
	w.t.Helper()
	got, err := w.control.QueueGetOrCreate(w.python(), pb.QueueGetOrCreateRequest_builder{DeploymentName: name,
		EnvironmentName: env, ObjectCreationType: ifMissing}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	return got.GetQueueId()
}

// TestPythonQueueList calls what "modal queue list" and Queue.objects.list call.
func TestPythonQueueList(t *testing.T) {
	w := newWorld(t)
	for i := range 25 {
		w.queue("", fmt.Sprintf("q%02d", i))
	}
	id := w.queue("dev", "q")
	if _, err := w.control.QueueGetOrCreate(w.python(), pb.QueueGetOrCreateRequest_builder{
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL}.Build()); err != nil {
		t.Fatal(err)
	}
	for i, part := range []string{"", "p", "p"} {
		if _, err := w.control.QueuePut(w.python(), pb.QueuePutRequest_builder{QueueId: id, PartitionKey: []byte(part),
			Values: [][]byte{{byte(i)}}}.Build()); err != nil {
			t.Fatal(err)
		}
	}
	list := func(env string, before float64, limit int32) []*pb.QueueListResponse_QueueInfo {
		t.Helper()
		got, err := w.control.QueueList(w.python(), pb.QueueListRequest_builder{EnvironmentName: env, TotalSizeLimit: 2,
			Pagination: pb.ListPagination_builder{MaxObjects: limit, CreatedBefore: before}.Build()}.Build())
		if err != nil {
			t.Fatal(err)
		}
		return got.GetQueues()
	}
	check := func() {
		t.Helper()
		paged(t, math.Inf(1), 10, 25, func(before float64) (names []string, at []float64, err error) {
			for _, q := range list("main", before, 10) {
				names, at = append(names, q.GetName()), append(at, q.GetMetadata().GetCreationInfo().GetCreatedAt())
			}
			return names, at, nil
		})
		if got := list("dev", 0, 0); len(got) != 1 || got[0].GetName() != "q" || got[0].GetQueueId() != id ||
			got[0].GetNumPartitions() != 2 || got[0].GetTotalSize() != 3 || got[0].GetMetadata().GetName() != "q" {
			t.Errorf("the other environment has %v", got)
		}
		byID, err := w.control.QueueGetById(w.python(), pb.QueueGetByIdRequest_builder{QueueId: id}.Build())
		if err != nil || byID.GetMetadata().GetName() != "q" ||
			byID.GetMetadata().GetCreationInfo().GetCreatedAt() == 0 {
			t.Errorf("from_id: %v, %v", byID, err)
		}
	}
	check()
	before := list("main", 0, 0)[0].GetCreatedAt()
	w.restart()
	check()
	if after := list("main", 0, 0)[0].GetCreatedAt(); math.Abs(after-before) > 1e-3 {
		t.Errorf("a restart changes the time of creation from %v to %v", before, after)
	}
	defer w.asOther("acme")()
	if got := list("main", 0, 0); len(got) != 0 {
		t.Errorf("another account lists %v", got)
	}
}

// restart replaces the server by another one, and connects the clients to it.
func (w *world) restart() {
	w.t.Helper()
	if err := w.server.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.sdk.Close()
	w.serve()
}

// TestPythonSecretUpdate calls what Secret.update calls: it adds and replaces keys, and leaves the others.
//
// mission: F4
func TestPythonSecretUpdate(t *testing.T) {
	w := newWorld(t)
	made, err := w.control.SecretGetOrCreate(w.python(), pb.SecretGetOrCreateRequest_builder{DeploymentName: "s",
		ObjectCreationType: ifMissing, EnvDict: map[string]string{"A": "one", "B": "two"}}.Build())
	if err != nil {
		t.Fatal(err)
	}
	update := func(id string, pairs ...string) error {
		req := pb.SecretUpdateRequest_builder{SecretId: id}
		for i := 0; i < len(pairs); i += 2 {
			u := pb.SecretUpdateRequest_Update_builder{Key: pairs[i]}
			if pairs[i+1] != "-" {
				u.Value = &pairs[i+1]
			}
			req.Updates = append(req.Updates, u.Build())
		}
		return second(w.control.SecretUpdate(w.python(), req.Build()))
	}
	if err := update(made.GetSecretId(), "B", "three", "C", "four", "A", "-"); err != nil {
		t.Fatal(err)
	}
	p, release, err := w.vault.Reveal(t.Context(), "personal", "s")
	if err != nil || len(p) != 2 || p["B"] != "three" || p["C"] != "four" {
		t.Errorf("the keys are %d, %v", len(p), err)
	}
	release()
	info, err := w.control.SecretGetInfo(w.python(),
		pb.SecretGetInfoRequest_builder{SecretId: made.GetSecretId()}.Build())
	if err != nil || !slices.Equal(info.GetMetadata().GetKeys(), []string{"B", "C"}) ||
		info.GetMetadata().GetName() != "s" {
		t.Errorf("info: %v, %v", info, err)
	}
	w.secretsOf("dev")
	for name, err := range map[string]error{
		"an invalid key": update(made.GetSecretId(), "A=B", "x"),
		"all keys":       update(made.GetSecretId(), "B", "-", "C", "-"),
	} {
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	defer w.asOther("acme")()
	if err := update(made.GetSecretId(), "B", "x"); status.Code(err) != codes.NotFound {
		t.Errorf("another account updates it: %v", err)
	}
}

// secretsOf checks that the list of an environment has its secrets only, with their names there.
func (w *world) secretsOf(env string) {
	w.t.Helper()
	if _, err := w.control.SecretGetOrCreate(w.python(), pb.SecretGetOrCreateRequest_builder{DeploymentName: "other",
		EnvironmentName: env, ObjectCreationType: ifMissing,
		EnvDict: map[string]string{"A": "a"}}.Build()); err != nil {
		w.t.Fatal(err)
	}
	got, err := w.control.SecretList(w.python(), pb.SecretListRequest_builder{EnvironmentName: env}.Build())
	if err != nil || len(got.GetItems()) != 1 || got.GetItems()[0].GetLabel() != "other" ||
		got.GetItems()[0].GetMetadata().GetName() != "other" {
		w.t.Errorf("the list of %s is %v, %v", env, got, err)
	}
}

// TestPythonTokenInfo calls what "modal token info" calls.
//
// mission: A7
func TestPythonTokenInfo(t *testing.T) {
	w := newWorld(t)
	got, err := w.control.TokenInfoGet(w.python(), &pb.TokenInfoGetRequest{})
	if err != nil || got.GetTokenId() != w.id || got.GetTokenName() != "test" || got.GetWorkspaceName() != "personal" ||
		got.GetCreatedAt().GetSeconds() == 0 || got.GetExpiresAt() != nil {
		t.Errorf("%v, %v", got, err)
	}
}

func (w *world) environments() (names []string) {
	w.t.Helper()
	got, err := w.control.EnvironmentList(w.python(), &emptypb.Empty{})
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range got.GetItems() {
		names = append(names, e.GetName())
	}
	slices.Sort(names)
	return names
}

func (w *world) renameEnv(from, to string) error {
	return second(w.control.EnvironmentUpdate(w.python(), pb.EnvironmentUpdateRequest_builder{CurrentName: from,
		Name: wrapperspb.String(to)}.Build()))
}

func (w *world) dictIn(env, name string, how pb.ObjectCreationType) (string, error) {
	got, err := w.control.DictGetOrCreate(w.python(), pb.DictGetOrCreateRequest_builder{DeploymentName: name,
		EnvironmentName: env, ObjectCreationType: how}.Build())
	return got.GetDictId(), err
}

// TestPythonEnvironments calls what "modal environment create|update|delete" call. Objects keep their environment when
// it is renamed, and a new environment of the earlier name is empty.
func TestPythonEnvironments(t *testing.T) {
	w := newWorld(t)
	create := func(name string) error {
		return second(w.control.EnvironmentCreate(w.python(), pb.EnvironmentCreateRequest_builder{Name: name}.Build()))
	}
	if err := create("dev"); err != nil {
		t.Fatal(err)
	}
	if err := create("dev"); status.Code(err) != codes.AlreadyExists {
		t.Errorf("created twice: %v", err)
	}
	id, err := w.dictIn("dev", "kv", ifMissing)
	if err != nil {
		t.Fatal(err)
	}
	queue := w.queue("dev", "q")
	if _, err := w.vault.Set(t.Context(), "personal", "dev.s", secret.Pairs{"A": "value"}, secret.Create); err != nil {
		t.Fatal(err)
	}
	if err := w.renameEnv("dev", "staging"); err != nil {
		t.Fatal(err)
	}
	if got := w.environments(); !slices.Equal(got, []string{"main", "staging"}) {
		t.Errorf("the environments are %v", got)
	}
	w.restart()
	if got, err := w.dictIn("staging", "kv", 0); err != nil || got != id {
		t.Errorf("the Dict is %s, %v, want %s", got, err, id)
	}
	if got := w.queue("staging", "q"); got != queue {
		t.Errorf("the queue is %s, want %s", got, queue)
	}
	if _, err := w.dictIn("dev", "kv", 0); status.Code(err) != codes.NotFound {
		t.Errorf("the old name still has the Dict: %v", err)
	}
	if again, err := w.dictIn("dev", "kv", ifMissing); err != nil || again == id {
		t.Errorf("a new one of the old name is %s, %v", again, err)
	}
	env, err := w.control.EnvironmentGetOrCreate(w.python(),
		pb.EnvironmentGetOrCreateRequest_builder{DeploymentName: "staging"}.Build())
	if err != nil || env.GetMetadata().GetName() != "staging" {
		t.Errorf("from_name: %v, %v", env, err)
	}
	list, err := w.control.DictList(w.python(), pb.DictListRequest_builder{EnvironmentName: "staging"}.Build())
	if err != nil || len(list.GetDicts()) != 1 || list.GetEnvironmentName() != "staging" {
		t.Errorf("the list is %v, %v", list, err)
	}
	for name, c := range map[string]struct {
		err  error
		code codes.Code
	}{
		"a taken name":             {w.renameEnv("staging", "dev"), codes.AlreadyExists},
		"an invalid name":          {w.renameEnv("staging", "a b"), codes.InvalidArgument},
		"the default environment":  {w.renameEnv("main", "other"), codes.Unimplemented},
		"an environment not there": {w.renameEnv("none", "other"), codes.NotFound},
		"a web suffix":             {w.suffix("staging", "x"), codes.Unimplemented},
		"delete one that is main":  {w.deleteEnv("main"), codes.Unimplemented},
		"delete one with a secret": {w.deleteEnv("staging"), codes.FailedPrecondition},
		"delete one not there":     {w.deleteEnv("none"), codes.NotFound},
	} {
		if status.Code(c.err) != c.code {
			t.Errorf("%s: %v", name, c.err)
		}
	}
	if err := w.vault.Delete(t.Context(), "personal", "dev.s"); err != nil {
		t.Fatal(err)
	}
	if err := w.deleteEnv("staging"); err != nil {
		t.Fatal(err)
	}
	if got := w.environments(); !slices.Equal(got, []string{"dev", "main"}) {
		t.Errorf("after the deletion the environments are %v", got)
	}
	if _, err := w.dictIn("staging", "kv", 0); status.Code(err) != codes.NotFound {
		t.Errorf("after the deletion: %v", err)
	}
	if _, err := w.control.QueueGetById(w.python(),
		pb.QueueGetByIdRequest_builder{QueueId: queue}.Build()); status.Code(err) !=
		codes.NotFound {
		t.Errorf("the queue after the deletion: %v", err)
	}
}

func (w *world) suffix(env, suffix string) error {
	return second(w.control.EnvironmentUpdate(w.python(), pb.EnvironmentUpdateRequest_builder{CurrentName: env,
		WebSuffix: wrapperspb.String(suffix)}.Build()))
}

func (w *world) deleteEnv(name string) error {
	return second(w.control.EnvironmentDelete(w.python(), pb.EnvironmentDeleteRequest_builder{Name: name}.Build()))
}
