package modal_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// outputFrom is a command's output from an offset to the end.
func (w *world) outputFrom(ctx context.Context, task, exec string, offset int) ([]byte, error) {
	w.t.Helper()
	stream, err := w.router.TaskExecStdioRead(ctx, pb.TaskExecStdioReadRequest_builder{TaskId: task, ExecId: exec,
		Offset: uint64(offset)}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	var all []byte
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return all, err
		}
		all = append(all, part.GetData()...)
	}
}

// TestMoreOutputThanIsKeptOverARestart checks that the next server, for commands with more output than is stored,
// returns the data at an offset or reports that it is missing. It knows the offsets if a command's output is one
// stream, and not if it is two.
//
// mission: A4
func TestMoreOutputThanIsKeptOverARestart(t *testing.T) {
	testenv.Long(t)
	w := newWorld(t)
	var numbers bytes.Buffer
	for i := range 5 * keptOutput / 7 {
		fmt.Fprintf(&numbers, "%06d\n", i+1)
	}
	script := func(id string) []string {
		return []string{"sh", "-c", fmt.Sprintf("seq -w 1 %d; touch %s; read line; echo last >&2", 5*keptOutput/7, id)}
	}
	sb := w.create(&modal.SandboxCreateParams{Command: script("main"), Timeout: time.Minute})
	terminal := script("terminal")
	terminal[2] = "stty raw -echo; " + terminal[2]
	const one, two = pb.TaskExecStderrConfig_TASK_EXEC_STDERR_CONFIG_STDOUT,
		pb.TaskExecStderrConfig_TASK_EXEC_STDERR_CONFIG_PIPE
	for id, c := range map[string]pb.TaskExecStartRequest_builder{
		"one": {CommandArgs: script("one"), StderrConfig: one}, "two": {CommandArgs: script("two"), StderrConfig: two},
		"terminal": {CommandArgs: terminal, PtyInfo: pb.PTYInfo_builder{Enabled: true, WinszRows: 24,
			WinszCols: 80}.Build()},
		"little": {CommandArgs: []string{"sh", "-c", "echo first >&2; touch little; read line; echo last"},
			StderrConfig: one},
	} {
		c.ExecId = id
		w.started(sb.SandboxID, c)
	}
	w.output(sb, "sh", "-c", "while ! [ -e main -a -e one -a -e two -a -e terminal -a -e little ]; do sleep 0.1; done")
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	w.sdk.Close()
	w.serve()
	ctx, task := w.started(sb.SandboxID, pb.TaskExecStartRequest_builder{ExecId: "true", CommandArgs: []string{"true"}})
	many := numbers.Len()
	for _, id := range []string{"one", "terminal", "two", "little"} {
		if offset := many - 1; id == "one" ||
			id == "terminal" { // the two streams have no common order, so all of the first has arrived before the command continues
			stream, err := w.router.TaskExecStdioRead(ctx, pb.TaskExecStdioReadRequest_builder{TaskId: task, ExecId: id,
				Offset: uint64(offset)}.Build())
			if err != nil {
				t.Fatal(err)
			}
			if part, err := stream.Recv(); err != nil || string(part.GetData()) != "\n" {
				t.Fatalf("%s, from %d: %q, %v", id, offset, part.GetData(), err)
			}
		}
		if _, err := w.router.TaskExecStdinWrite(ctx, pb.TaskExecStdinWriteRequest_builder{TaskId: task, ExecId: id,
			Data: []byte("go on\n")}.Build()); err != nil {
			t.Fatal(err)
		}
	}
	for id, whole := range map[string]string{"one": numbers.String() + "last\n",
		"terminal": numbers.String() + "last\n", "little": "first\nlast\n"} {
		offsets := map[int]codes.Code{0: codes.DataLoss, keptOutput: codes.DataLoss, many - keptOutput/2: codes.OK,
			many - 3: codes.OK, many + 2: codes.OK, len(whole): codes.OK}
		if id == "little" {
			offsets = map[int]codes.Code{0: codes.OK, 6: codes.OK}
		}
		for offset, code := range offsets {
			got, err := w.outputFrom(ctx, task, id, offset)
			if status.Code(err) != code || code == codes.OK && string(got) != whole[offset:] {
				t.Errorf("%s, from %d: %d bytes, %.20q, %v; want %d, %.20q", id, offset, len(got), got, err,
					len(whole)-offset, whole[offset:])
			}
		}
	}
	for _, offset := range []int{0, many - 3, many} {
		if got, err := w.outputFrom(ctx, task, "two", offset); status.Code(err) != codes.DataLoss || len(got) > 0 ||
			!strings.Contains(err.Error(), "write it to a file") {
			t.Errorf("of two streams, from %d: %.20q, %v", offset, got, err)
		}
	}
	stream, err := w.router.SandboxStdioReadV2(ctx, pb.SandboxStdioReadV2Request_builder{TaskId: task}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if part, err := stream.Recv(); status.Code(err) != codes.DataLoss {
		t.Errorf("of the sandbox's own command: %.20q from %d, %v", part.GetData(), part.GetStartingOffset(), err)
	}
	log, err := w.control.AppFetchLogs(w.ctx(), pb.AppFetchLogsRequest_builder{SandboxId: sb.SandboxID,
		Limit: 2}.Build())
	if err != nil || len(log.GetBatches()) != 1 || len(log.GetBatches()[0].GetItems()) != 2 {
		t.Errorf("the log ends with %v, %v", log, err)
	}
}
