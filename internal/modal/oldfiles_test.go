package modal_test

import (
	"encoding/json"
	"io"
	"slices"
	"strings"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// The stubs of Modal's Go module lack the method by which Python's SDK reads the results of file operations, so these
// tests encode its messages themselves.

// fileOutput is a message of ContainerFilesystemExecGetOutput.
type fileOutput struct {
	output  []byte
	code    uint64 // of an error
	message string
	eof     bool
}

func decodeOutput(t testing.TB, data []byte) (out fileOutput) {
	t.Helper()
	for len(data) > 0 {
		field, kind, n := protowire.ConsumeTag(data)
		data = data[n:]
		switch {
		case kind == protowire.BytesType:
			value, n := protowire.ConsumeBytes(data)
			data = data[n:]
			if field == 1 {
				out.output = append(out.output, value...)
			}
			for field == 2 && len(value) > 0 {
				inner, _, n := protowire.ConsumeTag(value)
				value = value[n:]
				if inner == 1 {
					out.code, n = protowire.ConsumeVarint(value)
				} else {
					out.message, n = protowire.ConsumeString(value)
				}
				value = value[n:]
			}
		case kind == protowire.VarintType:
			value, n := protowire.ConsumeVarint(data)
			data = data[n:]
			out.eof = out.eof || field == 4 && value == 1
		default:
			t.Fatalf("field %d has the type %d", field, kind)
		}
	}
	return out
}

// results reads the messages of a file operation until its end, and passes each to got.
func (w *world) results(exec string, got func(fileOutput)) error {
	for range 5 {
		stream, err := w.conn.NewStream(w.python(), &grpc.StreamDesc{ServerStreams: true},
			"/modal.client.ModalClient/ContainerFilesystemExecGetOutput")
		if err != nil {
			return err
		}
		req := new(emptypb.Empty)
		raw := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), exec)
		req.ProtoReflect().SetUnknown(protowire.AppendFixed32(protowire.AppendTag(raw, 2, protowire.Fixed32Type),
			0x425c0000)) // 55
		if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil {
			return err
		}
		for {
			m := new(emptypb.Empty)
			if err := stream.RecvMsg(m); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return err
			}
			out := decodeOutput(w.t, m.ProtoReflect().GetUnknown())
			got(out)
			if out.eof {
				return nil
			}
		}
	}
	return errors.Newf(errors.Timeout, "the operation does not end")
}

// operate runs a file operation, and returns its output and the code of its error.
func (w *world) operate(task string, req pb.ContainerFilesystemExecRequest_builder) (out string, fd string,
	code uint64) {
	w.t.Helper()
	req.TaskId = task
	got, err := w.control.ContainerFilesystemExec(w.python(), req.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	var all strings.Builder
	if err := w.results(got.GetExecId(), func(o fileOutput) {
		all.Write(o.output)
		if o.message != "" {
			code = failed(o.code) // an error has a message, whatever its code
		}
	}); err != nil {
		w.t.Fatal(err)
	}
	return all.String(), got.GetFileDescriptor(), code
}

// failed is the code of operate for an errno.
func failed(errno uint64) uint64 { return 1<<10 + errno }

func (w *world) openFile(task, path, mode string) string {
	w.t.Helper()
	_, fd, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
		FileOpenRequest: pb.ContainerFileOpenRequest_builder{Path: path, Mode: mode}.Build()})
	if code != 0 || fd == "" {
		w.t.Fatalf("open %s as %s: %q, %d", path, mode, fd, code)
	}
	return fd
}

func (w *world) writeFile(task, fd, data string) uint64 {
	w.t.Helper()
	_, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
		FileWriteRequest: pb.ContainerFileWriteRequest_builder{FileDescriptor: fd, Data: []byte(data)}.Build()})
	return code
}

func (w *world) readFile(task, fd string, n *uint32) string {
	w.t.Helper()
	out, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
		FileReadRequest: pb.ContainerFileReadRequest_builder{FileDescriptor: fd, N: n}.Build()})
	if code != 0 {
		w.t.Errorf("read: %d", code)
	}
	return out
}

func (w *world) closeFile(task, fd string) {
	w.t.Helper()
	if _, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
		FileCloseRequest: pb.ContainerFileCloseRequest_builder{FileDescriptor: fd}.Build()}); code != 0 {
		w.t.Errorf("close: %d", code)
	}
}

func (w *world) seekFile(task, fd string, offset int32, whence pb.SeekWhence) uint64 {
	w.t.Helper()
	_, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
		FileSeekRequest: pb.ContainerFileSeekRequest_builder{FileDescriptor: fd, Offset: offset,
			Whence: whence}.Build()})
	return code
}

// firstGeneration creates a sandbox as Python's SDK does by default, and returns the IDs of the sandbox and its task.
func (w *world) firstGeneration(args ...string) (id, task string) {
	w.t.Helper()
	app, err := w.control.AppGetOrCreate(w.python(), pb.AppGetOrCreateRequest_builder{AppName: "app",
		ObjectCreationType: ifMissing}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	if id, task, err = w.sandboxOfApp(app.GetAppId(), args...); err != nil {
		w.t.Fatal(err)
	}
	return id, task
}

// TestPythonOpen calls what Sandbox.open and FileIO of Python's SDK call.
//
// mission: A4
func TestPythonOpen(t *testing.T) {
	w := newWorld(t)
	_, task := w.firstGeneration("sleep", "600")
	fd := w.openFile(task, "/tmp/f", "w")
	if code := w.writeFile(task, fd, "one\ntwo\n"); code != 0 {
		t.Errorf("write: %d", code)
	}
	w.closeFile(task, fd)
	fd = w.openFile(task, "/tmp/f", "r")
	line, _, _ := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
		FileReadLineRequest: pb.ContainerFileReadLineRequest_builder{FileDescriptor: fd}.Build()})
	two := uint32(2)
	if rest := w.readFile(task, fd, &two); line != "one\n" || rest != "tw" {
		t.Errorf("the first line is %q, then comes %q", line, rest)
	}
	if rest := w.readFile(task, fd, nil); rest != "o\n" {
		t.Errorf("the rest is %q", rest)
	}
	if code := w.seekFile(task, fd, -4, pb.SeekWhence_SEEK_END); code != 0 {
		t.Errorf("seek: %d", code)
	}
	if rest := w.readFile(task, fd, nil); rest != "two\n" {
		t.Errorf("after the seek comes %q", rest)
	}
	if code := w.writeFile(task, fd, "x"); code == 0 {
		t.Error("a file that is open for reading was written")
	}
	add := w.openFile(task, "/tmp/f", "a+b")
	if code := w.writeFile(task, add, "three"); code != 0 {
		t.Errorf("append: %d", code)
	}
	if _, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
		FileFlushRequest: pb.ContainerFileFlushRequest_builder{FileDescriptor: add}.Build()}); code != 0 {
		t.Errorf("flush: %d", code)
	}
	if rest := w.readFile(task, fd, nil); rest != "three" {
		t.Errorf("the other descriptor sees %q", rest)
	}
	w.closeFile(task, add)
	over := w.openFile(task, "/tmp/f", "r+")
	if code := w.writeFile(task, over, "ONE"); code != 0 {
		t.Errorf("overwrite: %d", code)
	}
	w.closeFile(task, over)
	if code := w.seekFile(task, fd, 0, pb.SeekWhence_SEEK_SET); code != 0 {
		t.Errorf("seek: %d", code)
	}
	if all := w.readFile(task, fd, nil); all != "ONE\ntwo\nthree" {
		t.Errorf("the file has %q", all)
	}
	w.closeFile(task, fd)
	for name, c := range map[string]struct {
		path, mode string
		code       uint64
	}{
		"a missing file":        {"/tmp/none", "r", failed(2)},
		"a missing directory":   {"/none/f", "w", failed(2)},
		"an existing file":      {"/tmp/f", "x", failed(17)},
		"a directory":           {"/tmp", "r", failed(21)},
		"a file as a directory": {"/tmp/f/g", "w", failed(20)},
		"an invalid mode":       {"/tmp/f", "rw", failed(22)},
	} {
		if _, fd, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
			FileOpenRequest: pb.ContainerFileOpenRequest_builder{Path: c.path,
				Mode: c.mode}.Build()}); code != c.code ||
			fd == "" {
			t.Errorf("%s: %d, %q", name, code, fd)
		}
	}
	w.otherFiles(task)
}

// otherFiles checks bad requests, and that accounts are apart.
func (w *world) otherFiles(task string) {
	w.t.Helper()
	fd := w.openFile(task, "/tmp/f", "r")
	do := func(req pb.ContainerFilesystemExecRequest_builder) error {
		req.TaskId = task
		return second(w.control.ContainerFilesystemExec(w.python(), req.Build()))
	}
	read := pb.ContainerFilesystemExecRequest_builder{
		FileReadRequest: pb.ContainerFileReadRequest_builder{FileDescriptor: fd}.Build()}
	got, err := w.control.ContainerFilesystemExec(w.python(), pb.ContainerFilesystemExecRequest_builder{TaskId: task,
		FileReadRequest: pb.ContainerFileReadRequest_builder{FileDescriptor: fd}.Build()}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	for name, c := range map[string]struct {
		err  error
		code codes.Code
	}{
		"a closed file": {do(pb.ContainerFilesystemExecRequest_builder{
			FileReadRequest: pb.ContainerFileReadRequest_builder{FileDescriptor: "none"}.Build()}), codes.NotFound},
		"nothing": {do(pb.ContainerFilesystemExecRequest_builder{}), codes.InvalidArgument},
		"deleted bytes": {do(pb.ContainerFilesystemExecRequest_builder{
			FileDeleteBytesRequest: pb.ContainerFileDeleteBytesRequest_builder{FileDescriptor: fd}.Build()}),
			codes.Unimplemented},
		"an unknown result": {w.results("none", func(fileOutput) {}), codes.NotFound},
	} {
		if status.Code(c.err) != c.code {
			w.t.Errorf("%s: %v", name, c.err)
		}
	}
	defer w.asOther("acme")()
	if err := do(read); status.Code(err) != codes.NotFound {
		w.t.Errorf("another account: %v", err)
	}
	if err := w.results(got.GetExecId(), func(fileOutput) {}); status.Code(err) != codes.NotFound {
		w.t.Errorf("another account reads the result: %v", err)
	}
}

// TestPythonDirectories calls what Sandbox.ls, mkdir, rm and watch of Python's SDK call.
//
// mission: A4
func TestPythonDirectories(t *testing.T) {
	w := newWorld(t)
	_, task := w.firstGeneration("sleep", "600")
	mkdir := func(path string, parents bool) uint64 {
		t.Helper()
		_, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
			FileMkdirRequest: pb.ContainerFileMkdirRequest_builder{Path: path, MakeParents: parents}.Build()})
		return code
	}
	rm := func(path string, recursive bool) uint64 {
		t.Helper()
		_, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
			FileRmRequest: pb.ContainerFileRmRequest_builder{Path: path, Recursive: recursive}.Build()})
		return code
	}
	ls := func(path string) (names []string, code uint64) {
		t.Helper()
		out, _, code := w.operate(task, pb.ContainerFilesystemExecRequest_builder{
			FileLsRequest: pb.ContainerFileLsRequest_builder{Path: path}.Build()})
		var list struct {
			Paths []string `json:"paths"`
		}
		if code == 0 {
			if err := json.Unmarshal([]byte(out), &list); err != nil {
				t.Errorf("ls: %q: %v", out, err)
			}
		}
		return list.Paths, code
	}
	if code := mkdir("/tmp/d/e", false); code != failed(2) {
		t.Errorf("mkdir without its parent: %d", code)
	}
	if code := mkdir("/tmp/d/e", true); code != 0 {
		t.Errorf("mkdir: %d", code)
	}
	if code := mkdir("/tmp/d", false); code != failed(17) {
		t.Errorf("mkdir of a directory: %d", code)
	}
	w.closeFile(task, w.openFile(task, "/tmp/d/f", "w"))
	if names, code := ls("/tmp/d"); code != 0 || !slices.Equal(names, []string{"e", "f"}) {
		t.Errorf("ls: %v, %d", names, code)
	}
	if _, code := ls("/tmp/none"); code != failed(2) {
		t.Errorf("ls of a missing directory: %d", code)
	}
	if _, code := ls("/tmp/d/f"); code != failed(20) {
		t.Errorf("ls of a file: %d", code)
	}
	w.watchFiles(task)
	for _, c := range []struct {
		path      string
		recursive bool
		code      uint64
	}{{"/tmp/d", false, failed(0)}, {"/tmp/d/f", false, 0}, {"/tmp/d", true, 0}, {"/tmp/d", true, failed(2)}} {
		if code := rm(c.path, c.recursive); code != c.code {
			t.Errorf("rm %s: %d, want %d", c.path, code, c.code)
		}
	}
}

// watchFiles watches a directory until a file in it was created.
func (w *world) watchFiles(task string) {
	w.t.Helper()
	limit := uint64(60)
	got, err := w.control.ContainerFilesystemExec(w.python(), pb.ContainerFilesystemExecRequest_builder{TaskId: task,
		FileWatchRequest: pb.ContainerFileWatchRequest_builder{Path: "/tmp/d", Recursive: true,
			TimeoutSecs: &limit}.Build(),
	}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	events := make(chan string, 100)
	go func() { _ = w.results(got.GetExecId(), func(o fileOutput) { events <- string(o.output) }) }()
	testenv.Eventually(w.t, "the watch reports a created file", func() bool {
		w.closeFile(task, w.openFile(task, "/tmp/d/e/new", "w"))
		select {
		case event := <-events:
			var e struct {
				Type  string   `json:"event_type"`
				Paths []string `json:"paths"`
			}
			if !strings.HasSuffix(event, "\n\n") || json.Unmarshal([]byte(event), &e) != nil {
				w.t.Errorf("an event is %q", event)
			}
			return e.Type != "" && len(e.Paths) == 1 && strings.HasPrefix(e.Paths[0], "/tmp/d/e/")
		default:
			return false
		}
	})
}

// TestPythonFirstGeneration checks that sandboxes that Python's SDK creates by default have the IDs of Modal's first
// generation, whose output and input go through the control plane.
//
// mission: A4
func TestPythonFirstGeneration(t *testing.T) {
	w := newWorld(t)
	id, task := w.firstGeneration("sh", "-c", "read a; echo got $a; echo oops >&2; read b; exit 3")
	if len(id) != len("sb-")+22 || strings.HasSuffix(task, "V") {
		t.Errorf("the IDs are %s and %s", id, task)
	}
	write := func(index uint32, text string, eof bool) error {
		return second(w.control.SandboxStdinWrite(w.python(), pb.SandboxStdinWriteRequest_builder{SandboxId: id,
			Index: index, Input: []byte(text), Eof: eof}.Build()))
	}
	for range 2 { // the second is repeated
		if err := write(1, "hello\n", false); err != nil {
			t.Fatal(err)
		}
	}
	if out := w.logsFrom(id, pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT, "got hello\n"); out != "got hello\n" {
		t.Errorf("standard output is %q", out)
	}
	w.restart()
	if out := w.logsFrom(id, pb.FileDescriptor_FILE_DESCRIPTOR_STDERR, "oops\n"); out != "oops\n" {
		t.Errorf("standard error is %q", out)
	}
	boxes, err := w.control.SandboxList(w.python(), &pb.SandboxListRequest{})
	if err != nil || len(boxes.GetSandboxes()) != 1 || boxes.GetSandboxes()[0].GetId() != id ||
		boxes.GetSandboxes()[0].GetTaskInfo().GetId() != task {
		t.Errorf("listed are %v, %v", boxes, err)
	}
	if err := write(2, "bye\n", true); err != nil {
		t.Fatal(err)
	}
	result, err := w.control.SandboxWait(w.python(), pb.SandboxWaitRequest_builder{SandboxId: id, Timeout: 60}.Build())
	if err != nil || result.GetResult().GetExitcode() != 3 {
		t.Errorf("it ended with %v, %v", result, err)
	}
	if out := w.logsFrom(id, pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT, ""); out != "got hello\n" {
		t.Errorf("after the end, standard output is %q", out)
	}
	if err := write(3, "more", false); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("input after the end: %v", err)
	}
	defer w.asOther("acme")()
	if err := write(4, "x", false); status.Code(err) != codes.NotFound {
		t.Errorf("another account writes: %v", err)
	}
}

// logsFrom reads a stream of a sandbox until it has the wanted text, or until its end if want is "".
func (w *world) logsFrom(id string, fd pb.FileDescriptor, want string) string {
	w.t.Helper()
	stream, err := w.control.SandboxGetLogs(w.python(), pb.SandboxGetLogsRequest_builder{SandboxId: id,
		FileDescriptor: fd, Timeout: 55}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	var all strings.Builder
	for {
		batch, err := stream.Recv()
		if err != nil {
			w.t.Fatalf("after %q: %v", all.String(), err)
		}
		for _, l := range batch.GetItems() {
			all.WriteString(l.GetData())
		}
		if batch.GetEof() || want != "" && all.String() == want {
			return all.String()
		}
	}
}
