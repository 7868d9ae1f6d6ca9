package modal

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
)

// typing gives commands of a sandbox input without an SDK, which would try by itself.
type typing struct {
	t      *testing.T
	ctx    context.Context
	task   string
	router pb.TaskCommandRouterClient
}

func (m *modalClient) typing(t *testing.T, sb *modal.Sandbox, address string) *typing {
	t.Helper()
	ctx, control := plain(m.h, t)
	y := &typing{t: t, router: pb.NewTaskCommandRouterClient(modaltest.Dial(t, address))}
	y.ctx, y.task = modaltest.Router(ctx, t, control, sb.SandboxID)
	return y
}

func (y *typing) start(id string, args ...string) {
	y.t.Helper()
	req := pb.TaskExecStartRequest_builder{TaskId: y.task, ExecId: id, CommandArgs: args,
		StdoutConfig: pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_PIPE}.Build()
	if _, err := y.router.TaskExecStart(y.ctx, req); err != nil {
		y.t.Fatal(err)
	}
}

func (y *typing) write(id string, offset int, data []byte, eof bool) error {
	_, err := y.router.TaskExecStdinWrite(y.ctx, pb.TaskExecStdinWriteRequest_builder{TaskId: y.task, ExecId: id,
		Offset: uint64(offset), Data: data, Eof: eof}.Build())
	return err
}

// had returns how much input a command has received.
func (y *typing) had(id string) int {
	y.t.Helper()
	got, err := y.router.TaskExecStdinStatus(y.ctx, pb.TaskExecStdinStatusRequest_builder{TaskId: y.task,
		ExecId: id}.Build())
	if err != nil {
		y.t.Fatal(err)
	}
	return int(got.GetNumBytesWritten())
}

// said returns the first n bytes of a command's output, or all if n is 0.
func (y *typing) said(id string, n int) string {
	y.t.Helper()
	return modaltest.Output(y.ctx, y.t, y.router, y.task, id, n)
}

// typed gives commands of a sandbox input before the server is killed: to one that reads it, and to one that does not.
// The returned function continues them at the next server, with no byte lost or repeated.
func (m *modalClient) typed(t *testing.T, sb *modal.Sandbox, address string) (goOn func()) {
	y := m.typing(t, sb, address)
	y.start("reads", "cat")
	if err := y.write("reads", 0, []byte("one\n"), false); err != nil {
		t.Fatal(err)
	}
	if got := y.said("reads", 4); got != "one\n" {
		t.Fatalf("it said %q", got)
	}
	y.start("waits", "sh", "-c",
		"dd bs=16 count=1 2>/dev/null; while ! [ -e /read ]; do sleep 0.1; done; exec sha256sum")
	line := []byte("0123456789abcde\n")
	data := bytes.Repeat(line, 1<<16)
	if err := y.write("waits", 0, data, false); err != nil {
		t.Fatal(err)
	}
	if got := y.said("waits", len(line)); got != string(line) { // some has come, at least
		t.Fatalf("it said %q", got)
	}
	return func() {
		y := m.typing(t, sb, address)
		if had := y.had("reads"); had != 4 {
			t.Errorf("the command that reads has had %d bytes", had)
		}
		if err := errors.Join(y.write("reads", 0, []byte("one\n"), false),
			y.write("reads", 4, []byte("two\n"), true)); err != nil {
			t.Error(err)
		}
		if got := y.said("reads", 0); got != "one\ntwo\n" {
			t.Errorf("it said %q", got)
		}
		had := y.had("waits")
		if had == 0 || had >= len(data) {
			t.Fatalf("the command that waits has had %d bytes", had)
		}
		if err := y.write("waits", len(data), nil, true); status.Code(err) != codes.DataLoss ||
			!strings.Contains(err.Error(), "the server was restarted") {
			t.Errorf("input behind what was lost: %v", err)
		}
		if err := y.write("waits", had, data[had:], true); err != nil {
			t.Fatal(err)
		}
		y.start("read", "touch", "/read")
		sum := sha256.Sum256(data[len(line):])
		if got := y.said("waits", 0); !strings.HasPrefix(got, string(line)+hex.EncodeToString(sum[:])) {
			t.Errorf("other bytes came: %q", got)
		}
	}
}
