package modal

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	pathpkg "path"
	"slices"
	"strings"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/modal/oldfiles"
)

// boxFiles are the files of a sandbox for its older file API. Relative paths count from dir.
type boxFiles struct {
	w   *fileWork
	dir string
}

// at returns the absolute form of a path.
func (b boxFiles) at(path string) string {
	if pathpkg.IsAbs(path) {
		return path
	}
	return strings.TrimSuffix(b.dir, "/") + "/" + path // not cleaned: links and a final slash count
}

var _ oldfiles.Files = boxFiles{}

// oldCodes are the error numbers of the kinds of faults.
var oldCodes = map[string]oldfiles.Code{
	"NotFound": oldfiles.NoEntry, "NotDirectory": oldfiles.NoDirectory, "IsDirectory": oldfiles.IsDirectory,
	"PermissionDenied": oldfiles.NoAccess, "FileTooLarge": oldfiles.TooBig, "PathAlreadyExists": oldfiles.Exists,
	"AlreadyExists": oldfiles.Exists,
}

// old converts the error of a file operation.
func old(err error) error {
	var f *filesFault
	if errors.As(err, &f) {
		return &oldfiles.Error{Code: oldCodes[f.Kind], Message: f.Message}
	}
	return err
}

// Stat implements oldfiles.Files.
func (b boxFiles) Stat(ctx context.Context, path string) (oldfiles.Info, error) {
	path = b.at(path)
	e, err := b.w.look(ctx, path, true)
	if err != nil {
		return oldfiles.Info{}, old(b.w.explain(ctx, path, err))
	}
	return oldfiles.Info{Dir: isDir(e), Size: e.Size, Version: e.Version + e.Modified.String()}, nil
}

// Read implements oldfiles.Files.
func (b boxFiles) Read(ctx context.Context, path string, to io.Writer) error {
	return old(b.w.read(ctx, b.at(path), to))
}

// Write implements oldfiles.Files.
func (b boxFiles) Write(ctx context.Context, path string, size int64, from io.Reader) error {
	hdr, path, err := b.w.target(ctx, b.at(path))
	if err != nil {
		return old(err)
	}
	hdr.Size = size
	return old(b.w.put(ctx, path, hdr, from))
}

// List implements oldfiles.Files.
func (b boxFiles) List(ctx context.Context, path string) (names []string, err error) {
	found, err := b.w.entries(ctx, b.at(path))
	for _, e := range found {
		names = append(names, e.Name)
	}
	slices.Sort(names)
	return names, old(err)
}

// Mkdir implements oldfiles.Files.
func (b boxFiles) Mkdir(ctx context.Context, path string, parents bool) error {
	return old(b.w.mkdir(ctx, b.at(path), parents))
}

// Remove implements oldfiles.Files.
func (b boxFiles) Remove(ctx context.Context, path string, recursive bool) error {
	return old(b.w.remove(ctx, b.at(path), recursive))
}

// Watch implements oldfiles.Files. The older API has no event for a rename: it is a removal and a creation.
func (b boxFiles) Watch(ctx context.Context, path string, recursive bool, event func(json []byte) error) error {
	if _, err := b.Stat(ctx, path); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error
	send := func(kind string, paths ...string) {
		full := make([]string, len(paths))
		for i, p := range paths {
			full[i] = pathpkg.Clean("/" + p) // the engine may leave out the root
		}
		text, err := json.Marshal(watchEvent{kind, full})
		if err == nil {
			err = event(text)
		}
		if err != nil && failed == nil {
			failed = err
			cancel()
		}
	}
	err := b.w.follow(ctx, cancel, watchOp{Path: b.at(path), Recursive: recursive}, func(kind string, paths ...string) {
		switch kind {
		case "Rename":
			send("Remove", paths[0])
			send("Create", paths[1])
		case "RenameFrom":
			send("Remove", paths...)
		case "RenameTo":
			send("Create", paths...)
		default:
			send(kind, paths...)
		}
	})
	return errors.Join(failed, old(err))
}

// workdir returns the directory in which the commands of a sandbox start.
func (s *Server) workdir(ctx context.Context, sb record.Sandbox) string {
	dir := sb.Workdir
	if dir == "" {
		if img, err := s.images(sb.Account).Find(ctx, sb.ImageID); err == nil {
			dir = img.Config.Dir
		}
	}
	return cmp.Or(dir, "/")
}

// ContainerFilesystemExec implements ModalClient. Each attempt of a request is one operation.
func (c *control) ContainerFilesystemExec(ctx context.Context,
	req *pb.ContainerFilesystemExecRequest) (*pb.ContainerFilesystemExecResponse, error) {
	b, err := c.task(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	sb, err := c.s.opts.Fleet.Get(ctx, b.account, b.id)
	if err != nil {
		return nil, err
	}
	if sb.Status != record.Running {
		return nil, errors.Newf(errors.Gone, "the sandbox has ended")
	}
	dir := c.s.workdir(ctx, sb)
	return once1(ctx, c.s, "files "+b.id, func() (*pb.ContainerFilesystemExecResponse, error) {
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		defer cancel()
		defer context.AfterFunc(c.s.ctx, cancel)()
		id, fd, err := c.s.oldfiles.Do(ctx, b.id, boxFiles{&fileWork{b: b, ref: b.id}, dir}, req)
		answer := pb.ContainerFilesystemExecResponse_builder{ExecId: id}
		if fd != "" {
			answer.FileDescriptor = &fd
		}
		return answer.Build(), err
	})
}

// outputMethod is a method that the generated stubs lack, with its messages: it is registered by hand, and its messages
// are carried as unknown fields of empty ones.
const outputMethod = "ContainerFilesystemExecGetOutput"

// service returns the description of ModalClient with the methods that the stubs lack.
func service() *grpc.ServiceDesc {
	desc := pb.ModalClient_ServiceDesc
	desc.Streams = append(slices.Clone(desc.Streams), grpc.StreamDesc{StreamName: outputMethod, ServerStreams: true,
		Handler: func(srv any, stream grpc.ServerStream) error {
			req := new(emptypb.Empty)
			if err := stream.RecvMsg(req); err != nil {
				return err
			}
			return srv.(*control).ContainerFilesystemExecGetOutput(req, stream)
		}})
	return &desc
}

// ContainerFilesystemExecGetOutput implements the method of that name.
func (c *control) ContainerFilesystemExecGetOutput(req *emptypb.Empty, stream grpc.ServerStream) error {
	ctx := stream.Context()
	id, timeout, err := oldfiles.ParseRequest(req.ProtoReflect().GetUnknown())
	if err != nil {
		return err
	}
	box, err := c.s.oldfiles.Box(id)
	if err != nil {
		return err
	}
	if _, err := c.s.boxes.get(ctx, callerOf(ctx).Account, box); err != nil {
		return missing("Exec", id)
	}
	index := uint64(0)
	return c.s.oldfiles.Output(ctx, id, wait(timeout), func(b oldfiles.Batch) error {
		m := new(emptypb.Empty)
		m.ProtoReflect().SetUnknown(b.Message(index))
		index++
		return stream.SendMsg(m)
	})
}
