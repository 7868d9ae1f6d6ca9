// Package oldfiles serves the file API of Modal's first generation of sandboxes: open files with positions, and
// operations on directories. A client starts an operation and reads its result by the operation's ID.
//
// An open file is a copy on this machine. It is read again if the sandbox's file changes, and written back by a flush
// or a close.
package oldfiles

import (
	"context"
	"crypto/rand"
	"io"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Limits. The first two are Modal's.
const (
	mostRead    = 100 << 20        // bytes of one read
	mostFile    = 1 << 30          // bytes of a file that is opened
	mostFiles   = 64               // open in one sandbox
	mostRuns    = 256              // operations of one sandbox whose results were not read
	mostPending = 256 << 20        // bytes of such results of one sandbox
	mostEvents  = 1 << 20          // bytes of events that a watch keeps for its reader
	keptResult  = 2 * time.Minute  // how long a result is kept after the last read of it
	keptEnd     = 5 * time.Second  // how long the end of a result is kept for a client that lost it
	keptFile    = time.Hour        // how long a file stays open without an operation
	part        = 1 << 20          // bytes of one message
	lookAround  = 15 * time.Second // how often a watch looks whether it has a reader
)

// Code is an error number, as clients know it. 0 is an error without one.
type Code uint64

// The codes that occur.
const (
	NoEntry     Code = 2
	NoMemory    Code = 12
	NoAccess    Code = 13
	Exists      Code = 17
	NoDirectory Code = 20
	IsDirectory Code = 21
	Invalid     Code = 22
	TooMany     Code = 24
	TooBig      Code = 27
)

// Error is the result of an operation that failed in the sandbox.
type Error struct {
	Code    Code
	Message string
}

// Error implements error.
func (e *Error) Error() string { return e.Message }

// Info describes a file.
type Info struct {
	Dir     bool
	Size    int64
	Version string // changes with the file
}

// Files are the files of a sandbox. Methods return an *Error if the path is at fault, and other errors otherwise.
type Files interface {
	Stat(ctx context.Context, path string) (Info, error)
	Read(ctx context.Context, path string, to io.Writer) error
	// Write replaces a file, or creates it.
	Write(ctx context.Context, path string, size int64, from io.Reader) error
	List(ctx context.Context, path string) ([]string, error)
	Mkdir(ctx context.Context, path string, parents bool) error
	Remove(ctx context.Context, path string, recursive bool) error
	// Watch passes each change as JSON to event, until ctx ends or event fails. It returns nil then.
	Watch(ctx context.Context, path string, recursive bool, event func(json []byte) error) error
}

// Sessions holds the open files and the results of all sandboxes. Its methods may be called concurrently.
type Sessions struct {
	dir string
	ctx context.Context // of watches

	mu    sync.Mutex
	files map[string]*file // guarded by mu; by descriptor
	runs  map[string]*run  // guarded by mu; by ID
}

// New returns Sessions whose copies are in a directory. They end with ctx.
func New(ctx context.Context, dir string) *Sessions {
	return &Sessions{dir: dir, ctx: ctx, files: map[string]*file{}, runs: map[string]*run{}}
}

// Do runs an operation in a sandbox, and returns the ID of its result. The descriptor is that of an opened file.
// NotFound if the operation names a file that is not open there.
func (s *Sessions) Do(ctx context.Context, box string, files Files,
	req *pb.ContainerFilesystemExecRequest) (id, descriptor string, err error) {
	s.sweep()
	r, err := s.begin(box)
	if err != nil {
		return "", "", err
	}
	if req.HasFileWatchRequest() {
		s.watch(r, files, req.GetFileWatchRequest())
		return r.id, "", nil
	}
	var out []byte
	if req.HasFileOpenRequest() {
		descriptor, err = s.open(ctx, box, files, req.GetFileOpenRequest())
	} else {
		out, err = s.operate(ctx, box, files, req)
	}
	var failed *Error
	if err != nil && !errors.As(err, &failed) {
		s.drop(r.id)
		return "", "", err
	}
	if failed == nil && s.pending(box)+int64(len(out)) > mostPending {
		failed, out = &Error{NoMemory, "Cannot allocate memory"}, nil
	}
	r.finish(out, failed)
	return r.id, descriptor, nil
}

// operate runs an operation other than open and watch.
func (s *Sessions) operate(ctx context.Context, box string, files Files,
	req *pb.ContainerFilesystemExecRequest) ([]byte, error) {
	switch {
	case req.HasFileLsRequest():
		return list(ctx, files, req.GetFileLsRequest().GetPath())
	case req.HasFileMkdirRequest():
		return nil, files.Mkdir(ctx, req.GetFileMkdirRequest().GetPath(), req.GetFileMkdirRequest().GetMakeParents())
	case req.HasFileRmRequest():
		return nil, files.Remove(ctx, req.GetFileRmRequest().GetPath(), req.GetFileRmRequest().GetRecursive())
	case req.HasFileDeleteBytesRequest() || req.HasFileWriteReplaceBytesRequest():
		return nil, errors.Remedy(errors.Newf(errors.Unsupported,
			"this server cannot replace bytes in the middle of a file"),
			"read the file, and write it again")
	}
	f, err := s.file(box, descriptorOf(req))
	if err != nil {
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case req.HasFileReadRequest():
		n := int64(-1)
		if req.GetFileReadRequest().HasN() {
			n = int64(req.GetFileReadRequest().GetN())
		}
		return f.read(ctx, files, n)
	case req.HasFileReadLineRequest():
		return f.readLine(ctx, files)
	case req.HasFileWriteRequest():
		return nil, f.write(ctx, files, req.GetFileWriteRequest().GetData())
	case req.HasFileSeekRequest():
		return nil, f.seek(ctx, files, req.GetFileSeekRequest())
	case req.HasFileFlushRequest():
		return nil, f.flush(ctx, files)
	case req.HasFileCloseRequest():
		defer s.close(req.GetFileCloseRequest().GetFileDescriptor())
		return nil, f.flush(ctx, files)
	}
	return nil, errors.Newf(errors.Invalid, "invalid operation on files")
}

// descriptorOf returns the open file that a request names.
func descriptorOf(req *pb.ContainerFilesystemExecRequest) string {
	for _, r := range []interface{ GetFileDescriptor() string }{req.GetFileReadRequest(), req.GetFileReadLineRequest(),
		req.GetFileWriteRequest(), req.GetFileSeekRequest(), req.GetFileFlushRequest(), req.GetFileCloseRequest()} {
		if fd := r.GetFileDescriptor(); fd != "" {
			return fd
		}
	}
	return ""
}

// file returns a file that is open in a sandbox.
func (s *Sessions) file(box, descriptor string) (*file, error) {
	if descriptor == "" {
		return nil, errors.Newf(errors.Invalid, "invalid operation on files")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.files[descriptor]
	if f == nil || f.box != box {
		return nil, errors.Remedy(errors.Newf(errors.NotFound, "File '%.100s' is not open", descriptor),
			"open it again")
	}
	f.used = time.Now()
	return f, nil
}

func (s *Sessions) open(ctx context.Context, box string, files Files,
	req *pb.ContainerFileOpenRequest) (string, error) {
	descriptor := "fd-" + rand.Text() // clients expect one, also of a file that could not be opened
	s.mu.Lock()
	n := 0
	for _, f := range s.files {
		if f.box == box {
			n++
		}
	}
	s.mu.Unlock()
	if n >= mostFiles {
		return descriptor, &Error{TooMany, "Too many open files"}
	}
	f, err := openFile(ctx, s.dir, files, req.GetPath(), req.GetMode())
	if err != nil {
		return descriptor, err
	}
	f.box, f.used = box, time.Now()
	s.mu.Lock()
	s.files[descriptor] = f
	s.mu.Unlock()
	return descriptor, nil
}

// close drops an open file. The file's lock is held.
func (s *Sessions) close(descriptor string) {
	s.mu.Lock()
	f := s.files[descriptor]
	delete(s.files, descriptor)
	s.mu.Unlock()
	if f != nil {
		f.drop()
	}
}

// End drops what belongs to an ended sandbox, except results.
func (s *Sessions) End(box string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for descriptor, f := range s.files {
		if f.box == box {
			delete(s.files, descriptor)
			go f.dropLater()
		}
	}
	for _, r := range s.runs {
		if r.box == box {
			r.stop()
		}
	}
}

// sweep drops old results and files whose clients are gone.
func (s *Sessions) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, r := range s.runs {
		if r.forgotten() {
			delete(s.runs, id)
		}
	}
	for descriptor, f := range s.files {
		if time.Since(f.used) > keptFile {
			delete(s.files, descriptor)
			go f.dropLater()
		}
	}
}
