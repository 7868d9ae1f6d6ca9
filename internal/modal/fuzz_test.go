package modal_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/RelevanceAI/harvest/client/errors"
)

// FuzzRequests checks that the server answers any request to any method with a code that describes the error, and keeps
// running. One server handles all of them, so that there are many inputs a second.
func FuzzRequests(f *testing.F) {
	methods := methodsOf(f)
	for i := range methods {
		f.Add(uint16(i), []byte{})
		f.Add(uint16(i), protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType),
			"ta-01M7X821ZTYDYMW4ATXGGKZHMVV"))
		f.Add(uint16(i), append(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "vo-nZGF0YQ"),
			0x10, 0xff, 0xff, 0xff, 0xff, 0x0f))
	}
	w := newWorld(f)
	f.Fuzz(func(t *testing.T, n uint16, body []byte) {
		m := methods[int(n)%len(methods)]
		req := dynamicpb.NewMessage(m.Input())
		if proto.Unmarshal(body, req) != nil {
			return // no message
		}
		ours := metadata.AppendToOutgoingContext(t.Context(), "x-modal-token-id", w.id,
			"x-modal-token-secret", w.secret)
		id := w.running(ours, t)
		access, err := w.control.SandboxGetCommandRouterAccess(ours,
			pb.SandboxGetCommandRouterAccessRequest_builder{SandboxId: &id}.Build())
		if err != nil {
			t.Fatal(err)
		}
		put(req, "sandbox_id", id)
		put(req, "task_id", "ta-"+strings.TrimPrefix(id, "sb-")+"V")
		ctx, cancel := context.WithTimeout(ours, 100*time.Millisecond) // many wait for something that does not come
		defer cancel()
		if err := call(metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+access.GetJwt()), w.conn, m,
			req); err != nil {
			if code := status.Code(err); code == codes.Unknown || code == codes.Internal {
				t.Errorf("%s with %v: %v", m.Name(), req, err)
			}
		}
		if _, err := w.control.SandboxListV2(ours, &pb.SandboxListRequest{}); err != nil {
			t.Errorf("after %s the server answers %v", m.Name(), err)
		}
	})
}

// running is the ID of a running sandbox: a new one if the last has ended, which inputs may cause.
func (w *world) running(ctx context.Context, t *testing.T) string {
	t.Helper()
	list, err := w.control.SandboxListV2(ctx, &pb.SandboxListRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.GetSandboxes()) > 0 {
		return list.GetSandboxes()[0].GetId()
	}
	app, err := w.control.AppGetOrCreate(ctx, pb.AppGetOrCreateRequest_builder{AppName: "app",
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING}.Build())
	if err != nil {
		t.Fatal(err)
	}
	img, err := w.control.ImageGetOrCreate(ctx,
		pb.ImageGetOrCreateRequest_builder{Image: pb.Image_builder{DockerfileCommands: []string{"FROM base"}}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	made, err := w.control.SandboxCreateV2(ctx, pb.SandboxCreateV2Request_builder{AppId: app.GetAppId(),
		Definition: pb.Sandbox_builder{ImageId: img.GetImageId()}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	return made.GetSandboxId()
}

// The methods that are fuzzed are all that the server has.
func TestAllMethodsAreFuzzed(t *testing.T) {
	fuzzed := map[string]bool{}
	for _, m := range methodsOf(t) {
		fuzzed[string(m.FullName())] = true
	}
	served := 0
	for _, s := range []grpc.ServiceDesc{pb.ModalClient_ServiceDesc, pb.TaskCommandRouter_ServiceDesc} {
		names := []string{}
		for _, m := range s.Methods {
			names = append(names, m.MethodName)
		}
		for _, m := range s.Streams {
			names = append(names, m.StreamName)
		}
		for _, name := range names {
			if served++; !fuzzed[s.ServiceName+"."+name] {
				t.Errorf("%s of %s is not fuzzed", name, s.ServiceName)
			}
		}
	}
	if served != len(fuzzed) {
		t.Errorf("%d methods are fuzzed, and %d served", len(fuzzed), served)
	}
}

// put fills an empty text field, so that code after its check is reached.
func put(m *dynamicpb.Message, field, value string) {
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(field))
	if fd != nil && fd.Kind() == protoreflect.StringKind && !fd.IsList() && m.Get(fd).String() == "" {
		m.Set(fd, protoreflect.ValueOfString(value))
	}
}

func methodsOf(t testing.TB) []protoreflect.MethodDescriptor {
	t.Helper()
	var all []protoreflect.MethodDescriptor
	for _, name := range []protoreflect.FullName{"modal.client.ModalClient",
		"modal.task_command_router.TaskCommandRouter"} {
		d, err := protoregistry.GlobalFiles.FindDescriptorByName(name)
		if err != nil {
			t.Fatal(err)
		}
		methods := d.(protoreflect.ServiceDescriptor).Methods()
		for i := range methods.Len() {
			all = append(all, methods.Get(i))
		}
	}
	return all
}

// call calls a method of any kind, and reads its answer to the end.
func call(ctx context.Context, conn *grpc.ClientConn, m protoreflect.MethodDescriptor, req proto.Message) error {
	path := "/" + string(m.Parent().FullName()) + "/" + string(m.Name())
	if !m.IsStreamingClient() && !m.IsStreamingServer() {
		return conn.Invoke(ctx, path, req, dynamicpb.NewMessage(m.Output()))
	}
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: m.IsStreamingServer(),
		ClientStreams: m.IsStreamingClient()}, path)
	if err == nil {
		err = stream.SendMsg(req)
	}
	if err == nil {
		err = stream.CloseSend()
	}
	for err == nil {
		err = stream.RecvMsg(dynamicpb.NewMessage(m.Output()))
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
