package modal_test

import (
	"context"
	"crypto/rand"
	"io"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// pythonExec is a command of `modal container exec`.
type pythonExec struct {
	*world
	ctx    context.Context
	task   string
	id     string
	offset int // in the input
	out    testenv.Output
	err    testenv.Output
	ends   chan error // of the two streams
}

// containerExec calls what `modal container exec` calls until a command runs, and begins to read its output. The
// command line sends the same for sandboxes of both generations.
func (w *world) containerExec(task string, terminal bool, args ...string) (*pythonExec, error) {
	w.t.Helper()
	access, err := w.control.TaskGetCommandRouterAccess(w.python(),
		pb.TaskGetCommandRouterAccessRequest_builder{TaskId: task}.Build())
	if err != nil {
		return nil, err
	}
	if access.GetUrl() != w.url { // Python's SDK takes http:// as it is, and https:// with TLS even on loopback
		w.t.Errorf("the router is at %s, the server at %s", access.GetUrl(), w.url)
	}
	p := &pythonExec{world: w, task: task, id: rand.Text(), ends: make(chan error, 2),
		ctx: metadata.AppendToOutgoingContext(w.t.Context(), "authorization", "Bearer "+access.GetJwt())}
	req := pb.TaskExecStartRequest_builder{TaskId: task, ExecId: p.id, CommandArgs: args,
		StdoutConfig: pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_PIPE,
		StderrConfig: pb.TaskExecStderrConfig_TASK_EXEC_STDERR_CONFIG_PIPE}
	if terminal {
		req.PtyInfo = pb.PTYInfo_builder{Enabled: true, WinszRows: 33, WinszCols: 111, EnvTerm: "xterm-256color",
			EnvColorterm: "truecolor", EnvTermProgram: "tmux", PtyType: pb.PTYInfo_PTY_TYPE_SHELL}.Build()
	}
	if _, err := w.router.TaskExecStart(p.ctx, req.Build()); err != nil {
		return nil, err
	}
	go func() {
		p.ends <- p.read(&p.out, pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDOUT)
	}()
	go func() {
		p.ends <- p.read(&p.err, pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR)
	}()
	return p, nil
}

// read reads a stream of output until it ends.
func (p *pythonExec) read(to io.Writer, fd pb.TaskExecStdioFileDescriptor) error {
	stream, err := p.router.TaskExecStdioRead(p.ctx, pb.TaskExecStdioReadRequest_builder{TaskId: p.task, ExecId: p.id,
		FileDescriptor: fd}.Build())
	if err != nil {
		return err
	}
	for {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if len(part.GetData()) == 0 {
			return errors.Newf(errors.Internal, "a part of the output is empty, which is an error for the SDK")
		}
		if _, err := to.Write(part.GetData()); err != nil {
			return err
		}
	}
}

// typed sends keys, as the command line does for each read of its terminal.
func (p *pythonExec) typed(keys string) {
	p.t.Helper()
	if _, err := p.router.TaskExecStdinWrite(p.ctx, pb.TaskExecStdinWriteRequest_builder{TaskId: p.task, ExecId: p.id,
		Offset: uint64(p.offset), Data: []byte(keys)}.Build()); err != nil {
		p.t.Fatal(err)
	}
	p.offset += len(keys)
}

// streamsEnd waits for the end of both streams of output.
func (p *pythonExec) streamsEnd() {
	p.t.Helper()
	for range 2 {
		select {
		case err := <-p.ends:
			if err != nil {
				p.t.Error(err)
			}
		case <-time.After(testenv.Limit):
			p.t.Fatalf("the output does not end: %q, %q", p.out.String(), p.err.String())
		}
	}
}

// exited waits for the end of the command as ContainerProcess.wait does, and returns its exit code.
func (p *pythonExec) exited() int32 {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.ctx, time.Minute)
	defer cancel()
	got, err := p.router.TaskExecWait(ctx, pb.TaskExecWaitRequest_builder{TaskId: p.task, ExecId: p.id}.Build())
	if err != nil || !got.HasCode() {
		p.t.Fatalf("it ended with %v, %v", got, err)
	}
	return got.GetCode()
}

// containers calls what `modal container list` calls, and returns the IDs of the tasks.
func (w *world) containers() (ids []string) {
	w.t.Helper()
	got, err := w.control.TaskList(w.python(), pb.TaskListRequest_builder{EnvironmentName: "main"}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, task := range got.GetTasks() {
		ids = append(ids, task.GetTaskId())
	}
	return ids
}

// TestPythonContainerExec calls what `modal container exec` calls, with and without a terminal, for the containers that
// `modal container list` shows.
//
// mission: A4
func TestPythonContainerExec(t *testing.T) {
	w := newWorld(t)
	w.firstGeneration("sleep", "600")
	w.create(&modal.SandboxCreateParams{Command: []string{"sleep", "600"}})
	tasks := w.containers()
	if len(tasks) != 2 {
		t.Fatalf("the containers are %q", tasks)
	}
	for _, task := range tasks {
		p, err := w.containerExec(task, false, "sh", "-c", "echo out; echo err >&2; exit 5")
		if err != nil {
			t.Fatal(err)
		}
		if code := p.exited(); code != 5 {
			t.Errorf("%s: exit code %d", task, code)
		}
		p.streamsEnd()
		if out, err := p.out.String(), p.err.String(); out != "out\n" || err != "err\n" {
			t.Errorf("%s: %q, %q", task, out, err)
		}
		w.terminalOf(task)
	}
	for _, task := range tasks {
		if _, err := w.control.ContainerStop(w.python(),
			pb.ContainerStopRequest_builder{TaskId: task}.Build()); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, "the container is not in the list", func() bool {
			return !strings.Contains(strings.Join(w.containers(), " "), task)
		})
		if _, err := w.containerExec(task, false, "true"); status.Code(err) != codes.NotFound {
			t.Errorf("%s: a command in a stopped container: %v", task, err)
		}
	}
}

// terminalOf uses a shell in a terminal, as `modal container exec` does.
func (w *world) terminalOf(task string) {
	w.t.Helper()
	p, err := w.containerExec(task, true, "sh", "-c",
		"stty size; echo $TERM-$COLORTERM-$TERM_PROGRAM; read -r line; echo got:$line; read -r line; exit 3")
	if err != nil {
		w.t.Fatal(err)
	}
	p.out.Until(w.t, "33 111\r\nxterm-256color-truecolor-tmux\r\n")
	p.typed("on")
	p.typed("e\r")
	p.out.Until(w.t, "got:one\r\n")
	p.typed("\r")
	p.streamsEnd() // for them it waits, and not for the end of the command
	if code := p.exited(); code != 3 || p.err.String() != "" {
		w.t.Errorf("%s: exit code %d, standard error %q", task, code, p.err.String())
	}
}
