package modal

import (
	"context"
	"math/big"
	"strings"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"

	"github.com/oklog/ulid/v2"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// A sandbox of the first generation has another form of IDs, by which SDKs recognize it: they read its output and write
// its input through the control plane, and offer some operations for it only. Python's SDK creates such sandboxes by
// default. Every method takes both forms of the ID of every sandbox.

// firstDigits is the length of a sandbox ID of the first generation, without its prefix, and digits are its digits.
const (
	firstDigits = 22
	digits      = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
)

// firstForm returns the first generation's form of a ULID.
func firstForm(text string) string {
	id, err := ulid.ParseStrict(text)
	if err != nil {
		return text
	}
	n, rest, base := new(big.Int).SetBytes(id[:]), new(big.Int), big.NewInt(int64(len(digits)))
	out := make([]byte, firstDigits)
	for i := range out {
		n.DivMod(n, base, rest)
		out[len(out)-1-i] = digits[rest.Int64()]
	}
	return string(out)
}

// fromFirstForm is the inverse of firstForm. It returns other texts as they are.
func fromFirstForm(text string) string {
	if len(text) != firstDigits {
		return text
	}
	n, base := new(big.Int), big.NewInt(int64(len(digits)))
	for i := range len(text) {
		digit := strings.IndexByte(digits, text[i])
		if digit < 0 {
			return text
		}
		n.Mul(n, base).Add(n, big.NewInt(int64(digit)))
	}
	var id ulid.ULID
	if n.BitLen() > 8*len(id) {
		return text
	}
	n.FillBytes(id[:])
	return id.String()
}

// first reports whether a sandbox is of the first generation.
func first(sb record.Sandbox) bool { return sb.Tags[tagGeneration] == firstGeneration }

// sandboxIDOf and taskIDOf return the IDs of a sandbox for clients.
func sandboxIDOf(sb record.Sandbox) string { return idOf(sb.ID, first(sb)) }
func taskIDOf(sb record.Sandbox) string    { return taskIn(sb.ID, first(sb)) }

// sandboxID and taskID are those of a box.
func (b *box) sandboxID() string { return idOf(b.id, b.first) }
func (b *box) taskID() string    { return taskIn(b.id, b.first) }

func idOf(box string, first bool) string {
	if first {
		return sandboxID + firstForm(ulidOf(box))
	}
	return sandboxOf(box)
}

func taskIn(box string, first bool) string {
	if first {
		return taskID + ulidOf(box)
	}
	return taskOf(box)
}

// SandboxGetLogs implements ModalClient. It follows one stream of a sandbox's own command.
func (c *control) SandboxGetLogs(req *pb.SandboxGetLogsRequest,
	stream grpc.ServerStreamingServer[pb.TaskLogsBatch]) error {
	ctx := stream.Context()
	b, err := c.s.box(ctx, req.GetSandboxId())
	if err != nil {
		return err
	}
	f := &follower{s: c.s, acc: b.account, box: b.id, source: req.GetFileDescriptor(), stream: true, send: stream.Send}
	if err := f.resume(req.GetLastEntryId()); err != nil {
		return err
	}
	return f.follow(ctx, wait(req.GetTimeout()))
}

// SandboxStdinWrite implements ModalClient. Clients number their writes from 1 on; a repeated one is taken once.
func (c *control) SandboxStdinWrite(ctx context.Context,
	req *pb.SandboxStdinWriteRequest) (*pb.SandboxStdinWriteResponse, error) {
	b, err := c.s.box(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if b.main == nil {
		return nil, errors.Newf(errors.Conflict, "the sandbox has no main command to read this input")
	}
	b.typing.Lock()
	defer b.typing.Unlock()
	if req.GetIndex() != 0 && req.GetIndex() <= b.typed {
		return &pb.SandboxStdinWriteResponse{}, nil
	}
	at, ended := b.main.in.status()
	if ended {
		return nil, errors.Newf(errors.Conflict, "the command no longer accepts input")
	}
	if err := b.main.in.write(ctx, at, req.GetInput(), req.GetEof()); err != nil {
		return nil, err
	}
	b.typed = max(b.typed, req.GetIndex())
	return &pb.SandboxStdinWriteResponse{}, nil
}
