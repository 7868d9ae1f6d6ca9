package modalapi_test

import (
	"context"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/account"
)

// TestStreamsEndWithTheirKey checks that streams end with the key that opened them, in both directions and on both
// services, with the reason.
//
// mission: 9.1
func TestStreamsEndWithTheirKey(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Timeout: 5 * time.Minute})
	for how, life := range map[string]time.Duration{"revoked": 0, "expired": 4 * time.Second} {
		key, text, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: how, Life: life})
		if err != nil {
			t.Fatal(err)
		}
		w.id, w.secret = key.ID, text.Reveal()
		ctx, task := w.started(sb.SandboxID, pb.TaskExecStartRequest_builder{ExecId: how,
			CommandArgs:  []string{"sleep", "1000"},
			StdoutConfig: pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_PIPE})
		ctx, cancel := context.WithTimeout(ctx, time.Minute)
		defer cancel()
		output, err := w.router.TaskExecStdioRead(ctx, pb.TaskExecStdioReadRequest_builder{TaskId: task, ExecId: how,
			FileDescriptor: pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT}.Build())
		if err != nil {
			t.Fatal(err)
		}
		input, err := w.router.TaskExecStdinWriteStream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := w.router.TaskExecWait(ctx, pb.TaskExecWaitRequest_builder{TaskId: task, ExecId: how}.Build())
			waiting <- err
		}()
		if life == 0 {
			if err := w.ring.Revoke(t.Context(), account.Local(), key.ID); err != nil {
				t.Fatal(err)
			}
		}
		_, err = output.Recv()
		for name, err := range map[string]error{"output": err,
			"input": input.RecvMsg(new(pb.TaskExecStdinWriteStreamResponse)), "wait": <-waiting} {
			if status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), "key") {
				t.Errorf("%s: the %s ends with %v", how, name, err)
			}
		}
	}
}
