package modalapi_test

import (
	"context"
	"io"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
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

	"github.com/RelevanceAI/harvest/errors"
)

// Whatever a client sends, the server answers with a code that says what is wrong, and goes on. What would end things, and what only
// waits, is left out.
func FuzzRequests(f *testing.F) {
	methods := methodsOf(f)
	for i := range methods {
		f.Add(uint16(i), []byte{})
		f.Add(uint16(i), protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "ta-01M7X821ZTYDYMW4ATXGGKZHMVV"))
		f.Add(uint16(i), append(protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), "vo-nZGF0YQ"), 0x10, 0xff, 0xff, 0xff, 0xff, 0x0f))
	}
	f.Fuzz(func(t *testing.T, n uint16, body []byte) {
		w := newWorld(t)
		sb := w.create(&modal.SandboxCreateParams{Timeout: time.Minute})
		id := sb.SandboxID
		access, err := w.control.SandboxGetCommandRouterAccess(w.ctx(), pb.SandboxGetCommandRouterAccessRequest_builder{SandboxId: &id}.Build())
		if err != nil {
			t.Fatal(err)
		}
		m := methods[int(n)%len(methods)]
		req := dynamicpb.NewMessage(m.Input())
		if proto.Unmarshal(body, req) != nil {
			return // no message
		}
		put(req, "sandbox_id", id)
		put(req, "task_id", "ta-"+strings.TrimPrefix(id, "sb-")+"V")
		ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond) // many wait for something that does not come
		defer cancel()
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+access.GetJwt(), "x-modal-token-id", w.id, "x-modal-token-secret", w.secret)
		if err := call(ctx, w.conn, m, req); err != nil {
			if code := status.Code(err); code == codes.Unknown || code == codes.Internal {
				t.Errorf("%s with %v: %v", m.Name(), req, err)
			}
		}
		if _, err := w.control.SandboxListV2(w.ctx(), &pb.SandboxListRequest{}); err != nil {
			t.Errorf("after %s the server answers %v", m.Name(), err)
		}
	})
}

// put fills an empty text field, so that what lies behind its check is reached.
func put(m *dynamicpb.Message, field, value string) {
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(field))
	if fd != nil && fd.Kind() == protoreflect.StringKind && !fd.IsList() && m.Get(fd).String() == "" {
		m.Set(fd, protoreflect.ValueOfString(value))
	}
}

func methodsOf(t testing.TB) []protoreflect.MethodDescriptor {
	t.Helper()
	var all []protoreflect.MethodDescriptor
	for _, name := range []protoreflect.FullName{"modal.client.ModalClient", "modal.task_command_router.TaskCommandRouter"} {
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
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: m.IsStreamingServer(), ClientStreams: m.IsStreamingClient()}, path)
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
