package modal

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/internal/base/account"
)

// Call is a call that may have changed something, ran a command, or was refused. It contains nothing of the request's
// content.
type Call struct {
	Account string // "" if the caller is unknown
	KeyID   string
	Address string // of the caller, with its port
	Method  string // full name
	Code    codes.Code
}

// continuing are the methods that continue a command or an object of an earlier call. Clients call them
// constantly.
var continuing = map[string]bool{
	"TaskExecPoll": true, "TaskExecWait": true, "TaskExecStdioRead": true, "TaskExecStdinStatus": true,
	"TaskExecStdinWrite": true, "TaskExecStdinWriteStream": true,
	"SandboxStdinWriteV2": true, "SandboxStdinWrite": true, "QueueHeartbeat": true, "VolumeHeartbeat": true,
	"MountPutFile": true,
	"AppHeartbeat": true, "DictHeartbeat": true, "ContainerFilesystemExecGetOutput": true,
}

// audit reports a finished call. err is the result of answer.
func (s *Server) audit(ctx context.Context, method string, err error) {
	if s.opts.Audit == nil {
		return
	}
	code := status.Code(err)
	refused := code == codes.Unauthenticated || code == codes.PermissionDenied
	if !refused && (scopeOf(method) == account.Read || continuing[shortName(method)]) {
		return
	}
	c := callerOf(ctx)
	call := Call{Account: c.Account, KeyID: c.KeyID, Method: method, Code: code}
	if p, ok := peer.FromContext(ctx); ok && p.Addr != nil {
		call.Address = p.Addr.String()
	}
	s.opts.Audit(ctx, call)
}
