package modal_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestConnectionsAnswerEarly sends the end of a request with a connect token after the beginning of the answer.
func TestConnectionsAnswerEarly(t *testing.T) {
	w := newWorld(t)
	w.ports = true
	w.reopen()
	sb := w.create(nil)
	inside := httptest.NewServer(http.HandlerFunc(testenv.AnswerEarly))
	defer inside.Close()
	_, text, err := net.SplitHostPort(inside.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		t.Fatal(err)
	}
	token, err := w.control.SandboxCreateConnectTokenV2(w.ctx(), pb.SandboxCreateConnectTokenRequest_builder{
		SandboxId: sb.SandboxID, Port: new(uint32(port))}.Build())
	if err != nil {
		t.Fatal(err)
	}
	testenv.EarlyAnswer(t, token.GetUrl(), "Authorization", "Bearer "+token.GetToken())
}
