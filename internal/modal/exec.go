package modal

import (
	"context"
	"io"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/modal/syncs"
)

// chunk is the size of one message of output.
const chunk = 1 << 20

// longestID bounds IDs that clients choose.
const longestID = 128

// box returns the sandbox of a task, if the caller's token is for it.
func (r *router) box(ctx context.Context, task string) (*box, error) {
	ref, err := boxOf(task, taskID)
	if err != nil {
		return nil, err
	}
	c := callerOf(ctx)
	if c.box != ref {
		return nil, errors.Newf(errors.Denied, "the token is for another sandbox")
	}
	return r.s.boxes.get(ctx, c.Account, ref)
}

// over converts the error for a sandbox that has ended, or is ending, to the code that clients expect.
func over(err error) error {
	if k := errors.KindOf(err); k == errors.Gone || k == errors.Conflict {
		return withCode(err, codes.NotFound)
	}
	return err
}

// TaskExecStart implements TaskCommandRouter. Repeated calls with the same ID start one command.
func (r *router) TaskExecStart(ctx context.Context, req *pb.TaskExecStartRequest) (*pb.TaskExecStartResponse, error) {
	b, err := r.box(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	id := req.GetExecId()
	if id == "" || len(id) > longestID {
		return nil, errors.Newf(errors.Invalid, "exec_id must have 1 to %d characters", longestID)
	}
	_, err = once2(ctx, r.s, b.id+" exec "+id, func() (*command, error) {
		b.mu.Lock()
		c := b.execs[id]
		b.mu.Unlock()
		if c != nil {
			return c, nil
		}
		return r.exec(context.WithoutCancel(ctx), b, req)
	})
	return &pb.TaskExecStartResponse{}, err
}

// exec starts the command of a client.
func (r *router) exec(ctx context.Context, b *box, req *pb.TaskExecStartRequest) (*command, error) {
	ref, err := b.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	o := order{
		args: req.GetCommandArgs(), dir: req.GetWorkdir(), terminal: sizeOf(req.GetPtyInfo()),
		limit:  time.Duration(req.GetTimeoutSecs()) * time.Second,
		stdout: req.GetStdoutConfig() == pb.TaskExecStdoutConfig_TASK_EXEC_STDOUT_CONFIG_PIPE,
		stderr: req.GetStderrConfig() == pb.TaskExecStderrConfig_TASK_EXEC_STDERR_CONFIG_PIPE,
		joined: req.GetStderrConfig() == pb.TaskExecStderrConfig_TASK_EXEC_STDERR_CONFIG_STDOUT,
	}
	if len(o.args) > 0 && o.args[0] == filesProgram {
		c, err := b.files(ctx, ref, o)
		if err != nil {
			return nil, over(err)
		}
		b.remember(ctx, req.GetExecId(), ref, c, nil)
		return c, nil
	}
	if o.env, _, err = r.s.environment(ctx, req.GetSecretIds(), req.GetSecretSources(), req.GetEnv()); err != nil {
		return nil, err
	}
	if o.terminal != nil {
		terminalEnv(o.env, req.GetPtyInfo())
	}
	if o.limit == 0 {
		sb, err := r.s.opts.Fleet.Get(ctx, b.account, ref)
		if err != nil {
			return nil, err
		}
		o.limit = limitOf(sb)
	}
	o.flush = syncs.Of(o.args, o.dir)
	c, err := b.start(ctx, ref, o)
	if errors.KindOf(err) == errors.NotFound { // the program, not the sandbox
		if sb, getErr := r.s.opts.Fleet.Get(ctx, b.account, ref); getErr == nil && sb.Status == record.Running {
			return nil, withCode(err, codes.InvalidArgument)
		}
	}
	if err != nil {
		return nil, over(err)
	}
	b.remember(ctx, req.GetExecId(), ref, c, o.flush)
	return c, nil
}

// remember registers a command under the ID that its client chose.
func (b *box) remember(ctx context.Context, id, ref string, c *command, flush *syncs.Flush) {
	b.mu.Lock()
	b.execs[id] = c
	b.mu.Unlock()
	if c.exec == nil { // file operations do not outlive the server
		return
	}
	n := note{Exec: id, Process: c.exec.ID(), Joined: c.joined, Flush: flush}
	if ref != b.id {
		n.Box = ref
	}
	b.write(ctx, n)
}

// find returns a command by the IDs of its task and its own.
func (r *router) find(ctx context.Context, task, id string) (*command, error) {
	b, err := r.box(ctx, task)
	if err != nil {
		return nil, err
	}
	return b.command(id)
}

// TaskExecWait implements TaskCommandRouter.
func (r *router) TaskExecWait(ctx context.Context, req *pb.TaskExecWaitRequest) (*pb.TaskExecWaitResponse, error) {
	c, err := r.find(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	if err := c.await(ctx); err != nil {
		return nil, err
	}
	return waited(c)
}

// TaskExecPoll implements TaskCommandRouter.
func (r *router) TaskExecPoll(ctx context.Context, req *pb.TaskExecPollRequest) (*pb.TaskExecPollResponse, error) {
	c, err := r.find(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil || !c.ended() {
		return &pb.TaskExecPollResponse{}, err
	}
	end, err := waited(c)
	if err != nil {
		return nil, err
	}
	b := pb.TaskExecPollResponse_builder{}
	if end.HasCode() {
		b.Code = new(end.GetCode())
	} else {
		b.Signal = new(end.GetSignal())
	}
	return b.Build(), nil
}

// TaskExecStdioRead implements TaskCommandRouter.
func (r *router) TaskExecStdioRead(req *pb.TaskExecStdioReadRequest,
	stream grpc.ServerStreamingServer[pb.TaskExecStdioReadResponse]) error {
	c, err := r.find(stream.Context(), req.GetTaskId(), req.GetExecId())
	if err != nil {
		return err
	}
	from := c.out
	if req.GetFileDescriptor() == pb.TaskExecStdioFileDescriptor_TASK_EXEC_STDIO_FILE_DESCRIPTOR_STDERR {
		if from = c.err; c.err == c.out {
			return nil
		}
	}
	if from == nil {
		return nil
	}
	next := int64(req.GetOffset())
	err = from.copy(stream.Context(), next, make([]byte, chunk), func(part []byte, start int64) error {
		if err := from.lost(next); err != nil {
			return err
		}
		next = start + int64(len(part))
		return stream.Send(pb.TaskExecStdioReadResponse_builder{Data: part}.Build())
	})
	if err == nil { // the lost bytes may be all of the output
		err = from.lost(next)
	}
	return err
}

// TaskExecStdinWrite implements TaskCommandRouter.
func (r *router) TaskExecStdinWrite(ctx context.Context,
	req *pb.TaskExecStdinWriteRequest) (*pb.TaskExecStdinWriteResponse, error) {
	c, err := r.find(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	return &pb.TaskExecStdinWriteResponse{}, c.in.write(ctx, int64(req.GetOffset()), req.GetData(), req.GetEof())
}

// TaskExecStdinStatus implements TaskCommandRouter.
func (r *router) TaskExecStdinStatus(ctx context.Context,
	req *pb.TaskExecStdinStatusRequest) (*pb.TaskExecStdinStatusResponse, error) {
	c, err := r.find(ctx, req.GetTaskId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	written, closed := c.in.status()
	return pb.TaskExecStdinStatusResponse_builder{NumBytesWritten: uint64(written), Closed: closed}.Build(), nil
}

// TaskExecStdinWriteStream implements TaskCommandRouter. An interrupted stream leaves the input open, so that
// another stream can continue it.
func (r *router) TaskExecStdinWriteStream(stream grpc.ClientStreamingServer[pb.TaskExecStdinWriteStreamRequest,
	pb.TaskExecStdinWriteStreamResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return brokenOff(err)
	}
	start := first.GetStart()
	if start == nil {
		return errors.Newf(errors.Invalid, "the stream does not begin with its command")
	}
	c, err := r.find(stream.Context(), start.GetTaskId(), start.GetExecId())
	if err != nil {
		return err
	}
	offset := int64(start.GetOffset())
	for {
		msg, err := stream.Recv()
		if err != nil {
			return brokenOff(err)
		}
		switch {
		case msg.HasEnd():
			if err := c.in.write(stream.Context(), offset, nil, true); err != nil {
				return err
			}
			return stream.SendAndClose(&pb.TaskExecStdinWriteStreamResponse{})
		case msg.HasData():
			if err := c.in.write(stream.Context(), offset, msg.GetData(), false); err != nil {
				return err
			}
			offset += int64(len(msg.GetData()))
		default:
			return errors.Newf(errors.Invalid, "the stream has more than one beginning")
		}
	}
}

// brokenOff returns the error of an input stream that ended without an end mark.
func brokenOff(err error) error {
	if errors.Is(err, io.EOF) {
		return errors.Newf(errors.Canceled, "the stream of input ended without an end mark")
	}
	return err
}

// SandboxStdioReadV2 implements TaskCommandRouter: the output of the sandbox's own command. It skips bytes that
// are no longer kept.
func (r *router) SandboxStdioReadV2(req *pb.SandboxStdioReadV2Request,
	stream grpc.ServerStreamingServer[pb.SandboxStdioReadV2Response]) error {
	b, err := r.box(stream.Context(), req.GetTaskId())
	if err != nil {
		return err
	}
	if b.main == nil { // no output until the sandbox ends
		select {
		case <-b.ended:
			return nil
		case <-stream.Context().Done():
			return stream.Context().Err()
		}
	}
	from := b.main.out
	if req.GetFileDescriptor() == pb.SandboxStdioFileDescriptor_SANDBOX_STDIO_FILE_DESCRIPTOR_STDERR {
		from = b.main.err
	}
	err = from.copy(stream.Context(), int64(req.GetOffset()), make([]byte, chunk),
		func(part []byte, start int64) error {
			if err := from.placed(); err != nil {
				return err
			}
			return stream.Send(pb.SandboxStdioReadV2Response_builder{Data: part, StartingOffset: uint64(start)}.Build())
		})
	if err == nil {
		err = from.placed()
	}
	return err
}

// SandboxStdinWriteV2 implements TaskCommandRouter.
func (r *router) SandboxStdinWriteV2(ctx context.Context,
	req *pb.SandboxStdinWriteV2Request) (*pb.SandboxStdinWriteV2Response, error) {
	b, err := r.box(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	if b.main == nil {
		return nil, errors.Newf(errors.Conflict, "the sandbox has no main command to read this input")
	}
	return &pb.SandboxStdinWriteV2Response{}, b.main.in.write(ctx, int64(req.GetOffset()), req.GetData(), req.GetEof())
}
