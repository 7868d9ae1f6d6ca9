package modal

import (
	"context"
	"fmt"
	"io"
	"math"
	"strings"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
)

// pythonClient calls what Python's SDK calls.
type pythonClient struct {
	t       *testing.T
	conn    *grpc.ClientConn
	control pb.ModalClientClient
	vars    map[string]string
	task    string
}

// connect makes a client of the host's server.
func (p *pythonClient) connect(h *modalhost.Host) {
	p.t.Helper()
	p.vars = map[string]string{}
	for _, pair := range h.Modal {
		name, value, _ := strings.Cut(pair, "=")
		p.vars[name] = value
	}
	p.conn = modaltest.Dial(p.t, p.vars["MODAL_SERVER_URL"])
	p.control = pb.NewModalClientClient(p.conn)
}

func (p *pythonClient) ctx() context.Context {
	return metadata.AppendToOutgoingContext(p.t.Context(), "x-modal-client-type", "1", "x-modal-client-version",
		"1.5.4",
		"x-modal-token-id", p.vars["MODAL_TOKEN_ID"], "x-modal-token-secret", p.vars["MODAL_TOKEN_SECRET"])
}

// result reads the output of a file operation, and passes each part to got until that returns false.
func (p *pythonClient) result(exec string, got func(part []byte) bool) {
	p.t.Helper()
	ctx, cancel := context.WithCancel(p.ctx())
	defer cancel()
	stream, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true},
		"/modal.client.ModalClient/ContainerFilesystemExecGetOutput")
	if err != nil {
		p.t.Fatal(err)
	}
	req := new(emptypb.Empty)
	raw := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), exec)
	raw = protowire.AppendFixed32(protowire.AppendTag(raw, 2, protowire.Fixed32Type), math.Float32bits(55))
	req.ProtoReflect().SetUnknown(raw)
	if err := errors.Join(stream.SendMsg(req), stream.CloseSend()); err != nil {
		p.t.Fatal(err)
	}
	for {
		m := new(emptypb.Empty)
		err := stream.RecvMsg(m)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			p.t.Fatal(err)
		}
		data := m.ProtoReflect().GetUnknown()
		if field, kind, n := protowire.ConsumeTag(data); field == 1 && kind == protowire.BytesType {
			if part, _ := protowire.ConsumeBytes(data[n:]); !got(part) {
				return
			}
		} else if field == 2 {
			p.t.Fatalf("the operation failed: %q", data)
		}
	}
}

// operate runs a file operation, and returns its output and the file that it opened.
func (p *pythonClient) operate(req pb.ContainerFilesystemExecRequest_builder) (out, descriptor string) {
	p.t.Helper()
	req.TaskId = p.task
	got, err := p.control.ContainerFilesystemExec(p.ctx(), req.Build())
	if err != nil {
		p.t.Fatal(err)
	}
	p.result(got.GetExecId(), func(part []byte) bool {
		out += string(part)
		return true
	})
	return out, got.GetFileDescriptor()
}

// write writes a file as Sandbox.open does.
func (p *pythonClient) write(path, mode, content string) {
	p.t.Helper()
	_, fd := p.operate(pb.ContainerFilesystemExecRequest_builder{
		FileOpenRequest: pb.ContainerFileOpenRequest_builder{Path: path, Mode: mode}.Build()})
	p.operate(pb.ContainerFilesystemExecRequest_builder{
		FileWriteRequest: pb.ContainerFileWriteRequest_builder{FileDescriptor: fd, Data: []byte(content)}.Build()})
	p.operate(pb.ContainerFilesystemExecRequest_builder{
		FileCloseRequest: pb.ContainerFileCloseRequest_builder{FileDescriptor: fd}.Build()})
}

// TestModalPython calls what Python's SDK calls for an app with a sandbox of the first generation on gVisor, its
// output, input and files, and for a Dict.
//
// mission: A1
func TestModalPython(t *testing.T) {
	testenv.Long(t)
	h := modalhost.WithBase(t)
	p := &pythonClient{t: t}
	p.connect(h)
	app, err := p.control.AppCreate(p.ctx(), pb.AppCreateRequest_builder{Description: "python",
		AppState: pb.AppState_APP_STATE_EPHEMERAL}.Build())
	if err != nil {
		t.Fatal(err)
	}
	image, err := p.control.ImageGetOrCreate(p.ctx(), pb.ImageGetOrCreateRequest_builder{AppId: app.GetAppId(),
		Image: pb.Image_builder{DockerfileCommands: []string{"FROM base"}}.Build(), BuilderVersion: "2025.06"}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if image.GetResult() == nil {
		stream, err := p.control.ImageJoinStreaming(p.ctx(),
			pb.ImageJoinStreamingRequest_builder{ImageId: image.GetImageId(), Timeout: 55}.Build())
		for err == nil {
			_, err = stream.Recv()
		}
		if !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	made, err := p.control.SandboxCreate(p.ctx(), pb.SandboxCreateRequest_builder{AppId: app.GetAppId(),
		Definition: pb.Sandbox_builder{ImageId: image.GetImageId(), TimeoutSecs: 600, EntrypointArgs: []string{"sh",
			"-c",
			"while read line; do echo got $line; echo $line >>/tmp/lines; done; wc -c </tmp/big; exit 7"}}.Build(),
	}.Build())
	if err != nil {
		t.Fatal(err)
	}
	id := made.GetSandboxId()
	task, err := p.control.SandboxGetTaskId(p.ctx(), pb.SandboxGetTaskIdRequest_builder{SandboxId: id}.Build())
	if err != nil || len(id) != len("sb-")+22 {
		t.Fatalf("the sandbox is %s: %v", id, err)
	}
	p.task = task.GetTaskId()
	p.files(id)
	p.dict(h)
	if _, err := p.control.SandboxStdinWrite(p.ctx(), pb.SandboxStdinWriteRequest_builder{SandboxId: id, Index: 3,
		Eof: true}.Build()); err != nil {
		t.Fatal(err)
	}
	end, err := p.control.SandboxWait(p.ctx(), pb.SandboxWaitRequest_builder{SandboxId: id, Timeout: 60}.Build())
	if err != nil || end.GetResult().GetExitcode() != 7 {
		t.Errorf("it ended with %v, %v", end, err)
	}
	if text := p.output(id); text != fmt.Sprintf("got one\ngot two\n%d\n", 3<<20) {
		t.Errorf("its output is %q", text)
	}
	p.endOfApp(app.GetAppId(), image.GetImageId())
}

// files uses the older file API while the sandbox's command reads its input.
func (p *pythonClient) files(id string) {
	p.t.Helper()
	typed := func(index uint32, text string) {
		p.t.Helper()
		if _, err := p.control.SandboxStdinWrite(p.ctx(), pb.SandboxStdinWriteRequest_builder{SandboxId: id,
			Index: index,
			Input: []byte(text)}.Build()); err != nil {
			p.t.Fatal(err)
		}
	}
	p.write("/tmp/big", "wb", strings.Repeat("x", 2<<20))
	p.write("/tmp/big", "ab", strings.Repeat("y", 1<<20))
	typed(1, "one\n")
	read := func(fd string) string {
		out, _ := p.operate(pb.ContainerFilesystemExecRequest_builder{
			FileReadRequest: pb.ContainerFileReadRequest_builder{FileDescriptor: fd}.Build()})
		return out
	}
	list := func() string {
		out, _ := p.operate(pb.ContainerFilesystemExecRequest_builder{
			FileLsRequest: pb.ContainerFileLsRequest_builder{Path: "/tmp"}.Build()})
		return out
	}
	testenv.Eventually(p.t, "the command has written its file", func() bool {
		return strings.Contains(list(),
			`"lines"`)
	})
	_, fd := p.operate(pb.ContainerFilesystemExecRequest_builder{
		FileOpenRequest: pb.ContainerFileOpenRequest_builder{Path: "/tmp/lines", Mode: "r"}.Build()})
	text := ""
	testenv.Eventually(p.t, "the first line is read", func() bool {
		text += read(fd)
		return text == "one\n"
	})
	limit := uint64(60)
	watch, err := p.control.ContainerFilesystemExec(p.ctx(), pb.ContainerFilesystemExecRequest_builder{TaskId: p.task,
		FileWatchRequest: pb.ContainerFileWatchRequest_builder{Path: "/tmp", TimeoutSecs: &limit}.Build()}.Build())
	if err != nil {
		p.t.Fatal(err)
	}
	writing := make(chan struct{})
	go func() { // the watch may begin later
		defer close(writing)
		for i := 0; i < 1000 && p.t.Context().Err() == nil; i++ {
			select {
			case writing <- struct{}{}:
				return
			default:
				p.write("/tmp/seen", "w", fmt.Sprint(i))
			}
		}
	}()
	p.result(watch.GetExecId(), func(part []byte) bool { return !strings.Contains(string(part), `"/tmp/seen"`) })
	<-writing
	typed(2, "two\n")
	testenv.Eventually(p.t, "the second line is read with the same descriptor", func() bool {
		text += read(fd)
		return text == "one\ntwo\n"
	})
}

// output reads the standard output of a sandbox to its end.
func (p *pythonClient) output(id string) string {
	p.t.Helper()
	stream, err := p.control.SandboxGetLogs(p.ctx(), pb.SandboxGetLogsRequest_builder{SandboxId: id, Timeout: 55,
		FileDescriptor: pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT}.Build())
	if err != nil {
		p.t.Fatal(err)
	}
	var all strings.Builder
	for {
		batch, err := stream.Recv()
		if err != nil {
			p.t.Fatal(err)
		}
		for _, l := range batch.GetItems() {
			all.WriteString(l.GetData())
		}
		if batch.GetEof() {
			return all.String()
		}
	}
}

// dict checks that the entries of a Dict survive a restart of the server, which the sandbox survives, too.
func (p *pythonClient) dict(h *modalhost.Host) {
	p.t.Helper()
	made, err := p.control.DictGetOrCreate(p.ctx(), pb.DictGetOrCreateRequest_builder{DeploymentName: "kv",
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING}.Build())
	if err != nil {
		p.t.Fatal(err)
	}
	value := []byte(strings.Repeat("v", 5<<20))
	if _, err := p.control.DictUpdate(p.ctx(), pb.DictUpdateRequest_builder{DictId: made.GetDictId(),
		Updates: []*pb.DictEntry{pb.DictEntry_builder{Key: []byte("k"), Value: value}.Build()}}.Build()); err != nil {
		p.t.Fatal(err)
	}
	if err := h.Up.Process.Kill(); err != nil {
		p.t.Fatal(err)
	}
	<-h.Ended
	h.Start()
	h.Modal = h.ClientEnv()
	p.connect(h)
	got, err := p.control.DictGet(p.ctx(), pb.DictGetRequest_builder{DictId: made.GetDictId(),
		Key: []byte("k")}.Build())
	if err != nil || string(got.GetValue()) != string(value) {
		p.t.Errorf("after a restart, %d bytes: %v", len(got.GetValue()), err)
	}
}

// endOfApp ends the app, and with it another sandbox.
func (p *pythonClient) endOfApp(app, image string) {
	p.t.Helper()
	second, err := p.control.SandboxCreate(p.ctx(), pb.SandboxCreateRequest_builder{AppId: app,
		Definition: pb.Sandbox_builder{ImageId: image, TimeoutSecs: 600, EntrypointArgs: []string{"sleep",
			"600"}}.Build(),
	}.Build())
	if err != nil {
		p.t.Fatal(err)
	}
	if _, err := p.control.AppClientDisconnect(p.ctx(),
		pb.AppClientDisconnectRequest_builder{AppId: app}.Build()); err != nil {
		p.t.Fatal(err)
	}
	end, err := p.control.SandboxWait(p.ctx(),
		pb.SandboxWaitRequest_builder{SandboxId: second.GetSandboxId(), Timeout: 60}.Build())
	if err != nil || end.GetResult().GetStatus() != pb.GenericResult_GENERIC_STATUS_TERMINATED {
		p.t.Errorf("with the app, it ended with %v, %v", end, err)
	}
}
