package modal_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"path"
	"strings"
	"sync"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/modal"
)

// calls has the audited calls.
type calls struct {
	mu  sync.Mutex
	all []modal.Call // guarded by mu
}

func (c *calls) add(_ context.Context, call modal.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, call)
}

// of returns the last call of a method.
func (c *calls) of(method string) (last modal.Call, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.all {
		if call.Method == method {
			last = call
			n++
		}
	}
	return last, n
}

// servedMethods returns the full names of the methods of a service, streams included.
func servedMethods(d grpc.ServiceDesc) []string {
	var all []string
	for _, m := range d.Methods {
		all = append(all, "/"+d.ServiceName+"/"+m.MethodName)
	}
	for _, m := range d.Streams {
		all = append(all, "/"+d.ServiceName+"/"+m.StreamName)
	}
	return all
}

// prefixed returns the last call whose method begins with prefix.
func (c *calls) prefixed(prefix string) (last modal.Call, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range c.all {
		if strings.HasPrefix(call.Method, prefix) {
			last = call
			n++
		}
	}
	return last, n
}

// TestCallsAreAudited checks that every method of Modal's services that changes or runs something is audited, with any
// result, and so is every refusal. Reads are not.
//
// mission: F6
func TestCallsAreAudited(t *testing.T) {
	w := newWorld(t)
	control, router := modal.Scopes()
	sb := w.create(nil)
	routed, _ := w.started(sb.SandboxID, pb.TaskExecStartRequest_builder{ExecId: "one", CommandArgs: []string{"true"}})
	key, owner := w.id, w.ctx()
	reader, text, err := w.ring.Create(t.Context(), account.Local(),
		account.Request{Name: "reader", Scopes: []account.Scope{account.Read}})
	if err != nil {
		t.Fatal(err)
	}
	w.id, w.secret = reader.ID, text.Reveal()
	reads := w.ctx()
	for service, c := range map[string]struct {
		methods []string
		scopes  map[string]account.Scope
		ctx     context.Context
		least   int
	}{
		"control": {servedMethods(pb.ModalClient_ServiceDesc), control, owner, 100},
		"router":  {servedMethods(pb.TaskCommandRouter_ServiceDesc), router, routed, 20},
	} {
		if len(c.methods) < c.least {
			t.Fatalf("%s has only %d methods", service, len(c.methods))
		}
		for _, method := range c.methods {
			name := path.Base(method)
			scope, here := c.scopes[name]
			if scope != account.Read && !modal.Continuing(name) {
				_, before := w.calls.of(method)
				err := w.conn.Invoke(c.ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
				testenv.Eventually(t, "a line of "+name,
					func() bool { _, n := w.calls.of(method); return n == before+1 })
				if got, _ := w.calls.of(method); got.Account != "personal" || got.KeyID != key || got.Address == "" ||
					got.Code != status.Code(err) {
					t.Errorf("%s: %+v, %v", name, got, err)
				}
				if here && service == "control" {
					_ = w.conn.Invoke(reads, method, &emptypb.Empty{}, &emptypb.Empty{})
					testenv.Eventually(t, "a line of "+name+" without the scope", func() bool {
						got, _ := w.calls.of(method)
						return got.Code == codes.PermissionDenied && got.KeyID == reader.ID
					})
				}
			}
			// Without a key all of them are refused.
			_ = w.conn.Invoke(t.Context(), method, &emptypb.Empty{}, &emptypb.Empty{})
			testenv.Eventually(t, "a refusal of "+name, func() bool {
				got, _ := w.calls.of(method)
				return got.Code == codes.Unauthenticated && got.Account == "" && got.KeyID == ""
			})
		}
	}
	list := "/modal.client.ModalClient/SandboxListV2"
	_, before := w.calls.of(list)
	if err := w.conn.Invoke(reads, list, &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
		t.Fatal(err)
	}
	if _, n := w.calls.of(list); n != before {
		t.Error("what is read is audited")
	}
}

// TestConnectTokensAreAudited checks that requests with a connect token are audited with the port and the sandbox,
// including refused ones.
func TestConnectTokensAreAudited(t *testing.T) {
	w := newWorld(t)
	sb := w.create(nil)
	token, err := w.control.SandboxCreateConnectTokenV2(w.ctx(),
		pb.SandboxCreateConnectTokenRequest_builder{SandboxId: sb.SandboxID}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if got := connected(t,
		token); got != http.StatusBadGateway { // no port can be reached in the sandboxes of this engine
		t.Errorf("with a token: %d", got)
	}
	_, n := w.calls.prefixed("connect/")
	got, _ := w.calls.prefixed("connect/")
	if n != 1 || got.Account != "personal" || got.KeyID != w.id || !strings.HasSuffix(got.Method, "/8080") ||
		got.Address == "" || got.Code != codes.Unavailable {
		t.Errorf("%d lines, %+v", n, got)
	}
	if got := connected(t, pb.SandboxCreateConnectTokenResponse_builder{Url: token.GetUrl(),
		Token: "CANARY." + token.GetToken()}.Build()); got != http.StatusUnauthorized {
		t.Errorf("with a wrong token: %d", got)
	}
	got, n = w.calls.prefixed("connect/")
	if n != 2 || got.Account != "" || got.KeyID != "" || got.Address == "" || got.Code != codes.Unauthenticated ||
		strings.Contains(got.Method, "CANARY") {
		t.Errorf("%d lines, %+v", n, got)
	}
}

// TestTransfersAreAudited checks the lines of requests of URLs: an upload has one when it is complete, and refusals
// have one. Parts of an upload, and downloads, have none.
//
// mission: F6
func TestTransfersAreAudited(t *testing.T) {
	w := newWorld(t)
	id := w.blob("CANARY content of a blob")
	complete, n := w.calls.prefixed("transfer/")
	if n != 1 || complete.Method != "transfer/complete" || complete.Account != "personal" || complete.KeyID != w.id ||
		!strings.HasPrefix(complete.Address, "127.0.0.1:") || complete.Code != codes.OK {
		t.Errorf("an upload: %d lines, %+v", n, complete)
	}
	key, text, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "revoked", Account: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	get, err := w.control.BlobGet(w.ctx(), pb.BlobGetRequest_builder{BlobId: id}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if code, _, body := w.request(http.MethodGet, get.GetDownloadUrl(), nil); code != http.StatusOK {
		t.Fatalf("a download: %d %s", code, body)
	}
	if _, after := w.calls.prefixed("transfer/"); after != n {
		t.Error("a download is audited")
	}
	if code, _, _ := w.request(http.MethodGet, get.GetDownloadUrl()+"x", nil); code != http.StatusForbidden {
		t.Errorf("a changed URL: %d", code)
	}
	if got, after := w.calls.prefixed("transfer/"); after != n+1 || got.Account != "" || got.KeyID != "" ||
		got.Address == "" || got.Code != codes.PermissionDenied || strings.Contains(got.Method, "CANARY") {
		t.Errorf("a changed URL: %d lines, %+v", after-n, got)
	}
	w.id, w.secret = key.ID, text.Reveal()
	sum := sha256.Sum256([]byte("theirs"))
	begun, err := w.control.BlobCreate(w.ctx(), pb.BlobCreateRequest_builder{
		ContentSha256Base64: base64.StdEncoding.EncodeToString(sum[:]), ContentLength: 6}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.ring.Revoke(t.Context(), account.Local(), key.ID); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ op, method, url string }{
		{"part", http.MethodPut, begun.GetMultiparts().GetItems()[0].GetUploadUrls()[0]},
		{"complete", http.MethodPost, begun.GetMultiparts().GetItems()[0].GetCompletionUrl()},
	} {
		_, before := w.calls.of("transfer/" + c.op)
		if code, _, _ := w.request(c.method, c.url, []byte("theirs")); code != http.StatusUnauthorized {
			t.Errorf("%s with a revoked key: %d", c.op, code)
		}
		if got, after := w.calls.of("transfer/" + c.op); after != before+1 || got.Account != "acme" ||
			got.KeyID != key.ID || got.Address == "" || got.Code != codes.Unauthenticated {
			t.Errorf("%s with a revoked key: %d lines, %+v", c.op, after-before, got)
		}
	}
}
