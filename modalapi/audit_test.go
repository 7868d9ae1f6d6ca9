package modalapi_test

import (
	"context"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/internal/testenv"
	"github.com/RelevanceAI/harvest/modalapi"
)

// calls are those that were audited.
type calls struct {
	mu  sync.Mutex
	all []modalapi.Call // guarded by mu
}

func (c *calls) add(_ context.Context, call modalapi.Call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, call)
}

// of returns the last call of a method.
func (c *calls) of(method string) (last modalapi.Call, n int) {
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

// Every method that changes or runs something is audited, whatever comes of it, and every refusal; reading is not.
//
// mission: 9.1
func TestCallsAreAudited(t *testing.T) {
	w := newWorld(t)
	control, _ := modalapi.Scopes()
	for name, scope := range control {
		method := "/modal.client.ModalClient/" + name
		if scope != account.Read && !modalapi.Continuing(name) {
			err := w.conn.Invoke(w.ctx(), method, &emptypb.Empty{}, &emptypb.Empty{})
			testenv.Eventually(t, "a line of "+name, func() bool { _, n := w.calls.of(method); return n == 1 })
			if got, _ := w.calls.of(method); got.Account != "personal" || got.KeyID != w.id || got.Address == "" {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		}
		// Without a key all of them are refused.
		_ = w.conn.Invoke(t.Context(), method, &emptypb.Empty{}, &emptypb.Empty{})
		testenv.Eventually(t, "a refusal of "+name, func() bool {
			got, _ := w.calls.of(method)
			return got.Code == codes.Unauthenticated && got.Account == "" && got.KeyID == ""
		})
	}
	list := "/modal.client.ModalClient/SandboxListV2"
	_, before := w.calls.of(list)
	if err := w.conn.Invoke(w.ctx(), list, &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
		t.Fatal(err)
	}
	if _, n := w.calls.of(list); n != before {
		t.Error("what is read is audited")
	}
}
