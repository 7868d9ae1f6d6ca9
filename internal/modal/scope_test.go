package modal_test

import (
	"encoding/base64"
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/modal"
)

// implemented returns the methods of a type of this package.
func implemented(t *testing.T, receiver string) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv == nil || !f.Name.IsExported() {
				continue
			}
			if star, ok := f.Recv.List[0].Type.(*ast.StarExpr); ok && star.X.(*ast.Ident).Name == receiver {
				found[f.Name.Name] = true
			}
		}
	}
	return found
}

// TestEveryMethodHasAScope checks that every method has a required scope, and that every row belongs to a method.
//
// mission: 6.10
func TestEveryMethodHasAScope(t *testing.T) {
	t.Parallel()
	control, router := modal.Scopes()
	for receiver, scopes := range map[string]map[string]account.Scope{"control": control, "router": router} {
		methods := implemented(t, receiver)
		if len(methods) < 10 {
			t.Fatalf("%s has only %d methods: the test looks at the wrong directory", receiver, len(methods))
		}
		for name := range methods {
			if scopes[name] == "" {
				t.Errorf("%s of %s has no scope; add a row to scope.go", name, receiver)
			}
		}
		for name := range scopes {
			if !methods[name] {
				t.Errorf("%s of %s has a scope, but does not exist", name, receiver)
			}
		}
	}
}

// TestTokensHaveNoMoreThanTheirKey checks that the token of a key has the scopes of the key, and ends no later.
func TestTokensHaveNoMoreThanTheirKey(t *testing.T) {
	w := newWorld(t)
	sb := w.create(nil)
	_, task := w.started(sb.SandboxID, pb.TaskExecStartRequest_builder{ExecId: "one", CommandArgs: []string{"true"}})
	key, text, err := w.ring.Create(t.Context(), account.Local(),
		account.Request{Name: "reader", Scopes: []account.Scope{account.Read}, Life: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	w.id, w.secret = key.ID, text.Reveal()
	access, err := w.control.SandboxGetCommandRouterAccess(w.ctx(),
		pb.SandboxGetCommandRouterAccessRequest_builder{SandboxId: &sb.SandboxID}.Build())
	if err != nil {
		t.Fatal(err)
	}
	routed := w.routed(pb.CommandRouterAccess_builder{Jwt: access.GetJwt()}.Build())
	if _, err := w.router.TaskExecStart(routed, pb.TaskExecStartRequest_builder{TaskId: task, ExecId: "two",
		CommandArgs: []string{"true"}}.Build()); status.Code(err) != codes.PermissionDenied {
		t.Errorf("the token of a reader runs a command: %v", err)
	}
	var claims struct{ Exp int64 }
	body, err := base64.RawURLEncoding.DecodeString(strings.Split(access.GetJwt(), ".")[1])
	if err != nil || json.Unmarshal(body, &claims) != nil || claims.Exp == 0 || claims.Exp > key.Expires.Unix() {
		t.Errorf("the token ends at %d, its key at %s: %v", claims.Exp, key.Expires, err)
	}
}

// TestConnectTokensNeedTheScopeExec checks that a key gets no token for a right that it lacks: a connect token leads to
// programs in the sandbox.
func TestConnectTokensNeedTheScopeExec(t *testing.T) {
	w := newWorld(t)
	sb := w.create(nil)
	for scope, want := range map[account.Scope]codes.Code{account.Read: codes.PermissionDenied,
		account.Write: codes.PermissionDenied, account.Exec: codes.OK} {
		key, text, err := w.ring.Create(t.Context(), account.Local(),
			account.Request{Name: string(scope), Scopes: []account.Scope{scope}})
		if err != nil {
			t.Fatal(err)
		}
		w.id, w.secret = key.ID, text.Reveal()
		req := pb.SandboxCreateConnectTokenRequest_builder{SandboxId: sb.SandboxID}.Build()
		for name, err := range map[string]error{
			"SandboxCreateConnectToken":   second(w.control.SandboxCreateConnectToken(w.ctx(), req)),
			"SandboxCreateConnectTokenV2": second(w.control.SandboxCreateConnectTokenV2(w.ctx(), req)),
		} {
			if status.Code(err) != want {
				t.Errorf("%s with the scope %s: %v", name, scope, err)
			}
		}
	}
}

// TestReadersTakeNothingFromQueues checks that a key with the scope read changes nothing: it sees a queue's length and
// its values, and cannot take any out.
func TestReadersTakeNothingFromQueues(t *testing.T) {
	w := newWorld(t)
	q, err := w.sdk.Queues.FromName(t.Context(), "q", nil)
	if err != nil {
		made, err := w.control.QueueGetOrCreate(w.ctx(), pb.QueueGetOrCreateRequest_builder{DeploymentName: "q",
			ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING}.Build())
		if err != nil {
			t.Fatal(err)
		}
		w.readQueue(made.GetQueueId())
		return
	}
	w.readQueue(q.QueueID)
}

func (w *world) readQueue(id string) {
	w.t.Helper()
	if _, err := w.control.QueuePut(w.ctx(),
		pb.QueuePutRequest_builder{QueueId: id, Values: [][]byte{[]byte("a")}}.Build()); err != nil {
		w.t.Fatal(err)
	}
	key, text, err := w.ring.Create(w.t.Context(), account.Local(),
		account.Request{Name: "reader", Scopes: []account.Scope{account.Read}})
	if err != nil {
		w.t.Fatal(err)
	}
	w.id, w.secret = key.ID, text.Reveal()
	if _, err := w.control.QueueGet(w.ctx(),
		pb.QueueGetRequest_builder{QueueId: id, NValues: 1}.Build()); status.Code(err) != codes.PermissionDenied {
		w.t.Errorf("a reader takes an item: %v", err)
	}
	if n, err := w.control.QueueLen(w.ctx(), pb.QueueLenRequest_builder{QueueId: id}.Build()); err != nil ||
		n.GetLen() != 1 {
		w.t.Errorf("the queue has %d items: %v", n.GetLen(), err)
	}
	if next, err := w.control.QueueNextItems(w.ctx(),
		pb.QueueNextItemsRequest_builder{QueueId: id}.Build()); err != nil || len(next.GetItems()) != 1 {
		w.t.Errorf("a reader sees %d items: %v", len(next.GetItems()), err)
	}
}
