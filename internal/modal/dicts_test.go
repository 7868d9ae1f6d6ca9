package modal_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"maps"
	"math"
	"strings"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/store/dicts"
)

// python is the context of a call of Python's SDK, with a new idempotency key.
func (w *world) python() context.Context { return w.pythonWith(rand.Text()) }

// pythonWith is python with that idempotency key, as an SDK retries.
func (w *world) pythonWith(key string) context.Context {
	return metadata.AppendToOutgoingContext(w.t.Context(), "x-modal-client-type", "1", "x-modal-client-version",
		"1.5.4",
		"x-modal-token-id", w.id, "x-modal-token-secret", w.secret, "x-idempotency-key", key)
}

// asOther makes the world's calls those of a new key of another account, until the returned function is called.
func (w *world) asOther(name string, scopes ...account.Scope) (back func()) {
	w.t.Helper()
	id, secret := w.id, w.secret
	key, text, err := w.ring.Create(w.t.Context(), account.Local(),
		account.Request{Name: name, Account: name, Scopes: scopes})
	if err != nil {
		w.t.Fatal(err)
	}
	w.id, w.secret = key.ID, text.Reveal()
	return func() { w.id, w.secret = id, secret }
}

func (w *world) dict(name string, how pb.ObjectCreationType) (string, error) {
	got, err := w.control.DictGetOrCreate(w.python(), pb.DictGetOrCreateRequest_builder{DeploymentName: name,
		ObjectCreationType: how}.Build())
	if err == nil && (got.GetMetadata().GetName() != name || got.GetMetadata().GetCreationInfo().GetCreatedAt() == 0) {
		w.t.Errorf("the metadata of %q: %v", name, got.GetMetadata())
	}
	return got.GetDictId(), err
}

const ifMissing = pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING

func (w *world) madeDict(name string) string {
	w.t.Helper()
	id, err := w.dict(name, ifMissing)
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// put writes pairs of key and value, as Dict.put does with one, and Dict.update with several.
func (w *world) put(id string, onlyMissing bool, pairs ...string) (bool, error) {
	req := pb.DictUpdateRequest_builder{DictId: id, IfNotExists: onlyMissing}
	for i := 0; i < len(pairs); i += 2 {
		req.Updates = append(req.Updates, pb.DictEntry_builder{Key: []byte(pairs[i]),
			Value: []byte(pairs[i+1])}.Build())
	}
	got, err := w.control.DictUpdate(w.python(), req.Build())
	return got.GetCreated(), err
}

// contents reads a Dict as items, keys or values of Python's SDK do.
func (w *world) contents(id string, keys, values bool) (map[string]string, error) {
	stream, err := w.control.DictContents(w.python(), pb.DictContentsRequest_builder{DictId: id, Keys: keys,
		Values: values}.Build())
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for i := 0; ; i++ {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		key := string(e.GetKey())
		if !keys {
			key = fmt.Sprint(i)
		}
		all[key] = string(e.GetValue())
	}
}

// TestPythonDicts calls what modal.Dict of Python's SDK calls, in its order.
func TestPythonDicts(t *testing.T) {
	w := newWorld(t)
	if _, err := w.dict("kv", 0); status.Code(err) != codes.NotFound {
		t.Errorf("from_name of a missing one: %v", err)
	}
	id := w.madeDict("kv")
	if !strings.HasPrefix(id, "di-") || w.madeDict("kv") != id {
		t.Errorf("the ID is %s, then %s", id, w.madeDict("kv"))
	}
	if _, err := w.dict("kv", pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS); status.Code(err) !=
		codes.AlreadyExists {
		t.Errorf("objects.create of an existing one: %v", err)
	}
	if _, err := w.dict("no name", ifMissing); status.Code(err) != codes.InvalidArgument {
		t.Errorf("an invalid name: %v", err)
	}
	for _, c := range []struct {
		onlyMissing, created bool
		value                string
	}{{false, true, "1"}, {false, true, "2"}, {true, false, "3"}} {
		if created, err := w.put(id, c.onlyMissing, "k", c.value); err != nil || created != c.created {
			t.Errorf("put %+v: %v, %v", c, created, err)
		}
	}
	if _, err := w.put(id, false, "a", "A", "b", "\x00\xff"); err != nil {
		t.Error(err)
	}
	get, err := w.control.DictGet(w.python(), pb.DictGetRequest_builder{DictId: id, Key: []byte("k")}.Build())
	if err != nil || !get.GetFound() || string(get.GetValue()) != "2" {
		t.Errorf("get: %v, %v", get, err)
	}
	if get, err = w.control.DictGet(w.python(), pb.DictGetRequest_builder{DictId: id,
		Key: []byte("x")}.Build()); err != nil ||
		get.GetFound() {
		t.Errorf("get of a missing key: %v, %v", get, err)
	}
	has, err := w.control.DictContains(w.python(), pb.DictContainsRequest_builder{DictId: id, Key: []byte("a")}.Build())
	if err != nil || !has.GetFound() {
		t.Errorf("contains: %v, %v", has, err)
	}
	items, err := w.contents(id, true, true)
	if want := map[string]string{"k": "2", "a": "A", "b": "\x00\xff"}; err != nil || !maps.Equal(items, want) {
		t.Errorf("items: %q, %v", items, err)
	}
	keys, err := w.contents(id, true, false)
	if want := map[string]string{"k": "", "a": "", "b": ""}; err != nil || !maps.Equal(keys, want) {
		t.Errorf("keys: %q, %v", keys, err)
	}
	values, err := w.contents(id, false, true)
	if want := map[string]string{"0": "A", "1": "\x00\xff", "2": "2"}; err != nil || !maps.Equal(values, want) {
		t.Errorf("values: %q, %v", values, err)
	}
	w.popTwice(id, "k", "2")
	if n, err := w.control.DictLen(w.python(), pb.DictLenRequest_builder{DictId: id}.Build()); err != nil ||
		n.GetLen() != 2 {
		t.Errorf("len: %v, %v", n, err)
	}
	byID, err := w.control.DictGetById(w.python(), pb.DictGetByIdRequest_builder{DictId: id}.Build())
	if err != nil || byID.GetDictId() != id || byID.GetMetadata().GetName() != "kv" {
		t.Errorf("from_id: %v, %v", byID, err)
	}
	if _, err := w.control.DictClear(w.python(), pb.DictClearRequest_builder{DictId: id}.Build()); err != nil {
		t.Error(err)
	}
	if items, err := w.contents(id, true, true); err != nil || len(items) != 0 {
		t.Errorf("after clear: %q, %v", items, err)
	}
	if _, err := w.control.DictDelete(w.python(), pb.DictDeleteRequest_builder{DictId: id}.Build()); err != nil {
		t.Error(err)
	}
	if _, err := w.put(id, false, "k", "1"); status.Code(err) != codes.NotFound {
		t.Errorf("put after delete: %v", err)
	}
	if _, err := w.contents(id, true, true); status.Code(err) != codes.NotFound {
		t.Errorf("items after delete: %v", err)
	}
}

// popTwice pops a key, repeats the request as an SDK does that lost the answer, and pops it again.
func (w *world) popTwice(id, key, want string) {
	w.t.Helper()
	req := pb.DictPopRequest_builder{DictId: id, Key: []byte(key)}.Build()
	for range 2 {
		got, err := w.control.DictPop(w.pythonWith("one"), req)
		if err != nil || !got.GetFound() || string(got.GetValue()) != want {
			w.t.Errorf("pop: %v, %v", got, err)
		}
	}
	if got, err := w.control.DictPop(w.python(), req); err != nil || got.GetFound() {
		w.t.Errorf("pop of a missing key: %v, %v", got, err)
	}
}

// TestDictsOfClients checks ephemeral Dicts, lists, environments and restarts, and that accounts are apart.
//
// mission: A7
func TestDictsOfClients(t *testing.T) {
	w := newWorld(t)
	loose, err := w.dict("", pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.control.DictHeartbeat(w.python(),
		pb.DictHeartbeatRequest_builder{DictId: loose}.Build()); err != nil {
		t.Errorf("heartbeat: %v", err)
	}
	if _, err := w.put(loose, false, "k", "v"); err != nil {
		t.Error(err)
	}
	for i := range 25 {
		w.madeDict(fmt.Sprintf("d%02d", i))
	}
	dev, err := w.control.DictGetOrCreate(w.python(), pb.DictGetOrCreateRequest_builder{DeploymentName: "d00",
		EnvironmentName: "dev", ObjectCreationType: ifMissing}.Build())
	if err != nil || dev.GetDictId() == w.madeDict("d00") {
		t.Errorf("one of another environment: %v, %v", dev, err)
	}
	list := func(env string) func(before float64) (names []string, at []float64, err error) {
		return func(before float64) (names []string, at []float64, err error) {
			got, err := w.control.DictList(w.python(), pb.DictListRequest_builder{EnvironmentName: env,
				Pagination: pb.ListPagination_builder{MaxObjects: 10, CreatedBefore: before}.Build()}.Build())
			for _, d := range got.GetDicts() {
				names, at = append(names, d.GetName()), append(at, d.GetMetadata().GetCreationInfo().GetCreatedAt())
			}
			return names, at, err
		}
	}
	paged(t, math.Inf(1), 10, 25, list("main"))
	if names, _, err := list("dev")(0); err != nil || len(names) != 1 {
		t.Errorf("the other environment has %v, %v", names, err)
	}
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	w.sdk.Close()
	w.serve()
	if items, err := w.contents(loose, true, true); err != nil || items["k"] != "v" {
		t.Errorf("after a restart: %q, %v", items, err)
	}
	defer w.asOther("acme")()
	if _, err := w.contents(loose, true, true); status.Code(err) != codes.NotFound {
		t.Errorf("another account reads: %v", err)
	}
	if _, err := w.put(loose, false, "k", "w"); status.Code(err) != codes.NotFound {
		t.Errorf("another account writes: %v", err)
	}
	if names, _, err := list("main")(0); err != nil || len(names) != 0 {
		t.Errorf("another account lists %v, %v", names, err)
	}
}

// TestDictLimits checks that updates over the documented limits are refused, with the text from which Python's SDK
// recognizes a request that is too large.
func TestDictLimits(t *testing.T) {
	w := newWorld(t)
	id := w.madeDict("kv")
	many := make([]string, 2*(dicts.MostEntries+1))
	for i := range many {
		many[i] = fmt.Sprint(i)
	}
	if _, err := w.put(id, false, many...); status.Code(err) != codes.InvalidArgument {
		t.Errorf("too many entries: %v", err)
	}
	if _, err := w.put(id, false, strings.Repeat("k", 1<<20), "v"); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a large key: %v", err)
	}
	if n, err := w.control.DictLen(w.python(), pb.DictLenRequest_builder{DictId: id}.Build()); err != nil ||
		n.GetLen() != 0 {
		t.Errorf("len: %v, %v", n, err)
	}
	defer w.asOther("personal", account.Read)()
	if _, err := w.put(id, false, "k", "v"); status.Code(err) != codes.PermissionDenied {
		t.Errorf("a reader writes: %v", err)
	}
	if _, err := w.control.DictPop(w.python(), pb.DictPopRequest_builder{DictId: id,
		Key: []byte("k")}.Build()); status.Code(err) !=
		codes.PermissionDenied {
		t.Errorf("a reader pops: %v", err)
	}
}
