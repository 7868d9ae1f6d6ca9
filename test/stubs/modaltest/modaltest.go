// Package modaltest has the calls of Modal's protocol that several tests need.
package modaltest

import (
	"context"
	"io"
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Container is a sandbox or a sidecar of Modal's SDK. P has the parameters of its commands.
type Container[P any] interface {
	Exec(ctx context.Context, command []string, params *P) (*modal.ContainerProcess, error)
}

// Run runs a command to its end. params may be nil.
func Run[P any](t testing.TB, c Container[P], params *P, command ...string) (stdout, stderr string, code int) {
	t.Helper()
	p, err := c.Exec(t.Context(), command, params)
	if err != nil {
		t.Fatal(err)
	}
	out, err := io.ReadAll(p.Stdout)
	if err != nil {
		t.Fatal(err)
	}
	errs, err := io.ReadAll(p.Stderr)
	if err != nil {
		t.Fatal(err)
	}
	if code, err = p.Wait(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return string(out), string(errs), code
}

// Dial returns a connection to the server at url, for calls without an SDK.
func Dial(t testing.TB, url string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(strings.TrimPrefix(url, "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(100<<20), grpc.MaxCallSendMsgSize(100<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// Router returns the context of calls to the router of a sandbox, and the ID of its task. ctx is that of other calls.
func Router(ctx context.Context, t testing.TB, control pb.ModalClientClient, sandbox string) (context.Context, string) {
	t.Helper()
	access, err := control.SandboxGetCommandRouterAccess(ctx,
		pb.SandboxGetCommandRouterAccessRequest_builder{SandboxId: &sandbox}.Build())
	if err != nil {
		t.Fatal(err)
	}
	return metadata.AppendToOutgoingContext(t.Context(), "authorization", "Bearer "+access.GetJwt()),
		"ta-" + strings.TrimPrefix(sandbox, "sb-") + "V"
}

// Output returns the first n bytes of a command's standard output, or all if n is 0. ctx is that of Router.
func Output(ctx context.Context, t testing.TB, router pb.TaskCommandRouterClient, task, exec string, n int) string {
	t.Helper()
	stream, err := router.TaskExecStdioRead(ctx, pb.TaskExecStdioReadRequest_builder{TaskId: task,
		ExecId: exec}.Build())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	for n == 0 || out.Len() < n {
		part, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		out.Write(part.GetData())
	}
	return out.String()
}
