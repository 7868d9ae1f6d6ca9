package oldfiles

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"os"
	pathpkg "path"
	"strings"
	"sync"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
)

// file is an open file.
type file struct {
	box                     string
	path                    string
	reads, writes, appended bool
	used                    time.Time // guarded by Sessions.mu

	mu    sync.Mutex // held during an operation; guards all that follows
	copy  *os.File   // unnamed
	info  Info       // of the sandbox's file that copy equals, unless dirty
	size  int64      // of copy
	at    int64      // position
	dirty bool       // copy has changes to write back
	from  int64      // with dirty and appended: where the appended bytes begin
}

// parseMode reads a mode of Python's open.
func parseMode(mode string) (f *file, kind byte, err error) {
	invalid := &Error{Invalid, "Invalid file mode: " + mode}
	f = &file{}
	for i, c := range []byte(mode) {
		switch {
		case strings.IndexByte(mode[:i], c) >= 0:
			return nil, 0, invalid
		case c == 'b':
		case c == '+':
			f.reads, f.writes = true, true
		case strings.IndexByte("rwax", c) >= 0 && kind == 0:
			kind = c
		default:
			return nil, 0, invalid
		}
	}
	if kind == 0 {
		return nil, 0, invalid
	}
	f.reads = f.reads || kind == 'r'
	f.writes = f.writes || kind != 'r'
	f.appended = kind == 'a'
	return f, kind, nil
}

func openFile(ctx context.Context, dir string, files Files, path, mode string) (*file, error) {
	f, kind, err := parseMode(mode)
	if err != nil {
		return nil, err
	}
	f.path = path
	info, err := files.Stat(ctx, path)
	var failed *Error
	missing := errors.As(err, &failed) && failed.Code == NoEntry
	switch {
	case err != nil && !missing, missing && kind == 'r':
		return nil, err
	case !missing && kind == 'x':
		return nil, &Error{Exists, "File exists"}
	case !missing && info.Dir:
		return nil, &Error{IsDirectory, "Is a directory"}
	case info.Size > mostFile && kind != 'w':
		return nil, &Error{TooBig, "File too large"}
	case missing:
		if parent, err := files.Stat(ctx, pathpkg.Dir(path)); err != nil {
			return nil, err
		} else if !parent.Dir {
			return nil, &Error{NoDirectory, "Not a directory"}
		}
	}
	if f.copy, err = os.CreateTemp(dir, "open-"); err == nil {
		err = os.Remove(f.copy.Name())
	}
	if err != nil {
		return nil, errors.Wrapf(err, "keep a file of a sandbox")
	}
	if missing || kind == 'w' {
		err = files.Write(ctx, path, 0, strings.NewReader(""))
	}
	if err == nil {
		err = f.load(ctx, files)
	}
	if err != nil {
		f.drop()
		return nil, err
	}
	if f.appended {
		f.at = f.size
	}
	return f, nil
}

// limited fails once more than n bytes were written.
type limited struct {
	to io.Writer
	n  int64
}

func (l *limited) Write(p []byte) (int, error) {
	if l.n -= int64(len(p)); l.n < 0 {
		return 0, &Error{TooBig, "File too large"}
	}
	return l.to.Write(p)
}

// load copies the sandbox's file.
func (f *file) load(ctx context.Context, files Files) error {
	info, err := files.Stat(ctx, f.path)
	if err != nil {
		return err
	}
	_, err = f.copy.Seek(0, io.SeekStart)
	if err == nil {
		err = f.copy.Truncate(0)
	}
	if err != nil {
		return errors.Wrapf(err, "keep a file of a sandbox")
	}
	if err := files.Read(ctx, f.path, &limited{f.copy, mostFile}); err != nil {
		return err
	}
	if f.size, err = f.copy.Seek(0, io.SeekEnd); err != nil {
		return errors.Wrapf(err, "keep a file of a sandbox")
	}
	f.info, f.dirty = info, false
	return nil
}

// refresh copies the sandbox's file again if it has changed. A removed file stays readable, as on Unix.
func (f *file) refresh(ctx context.Context, files Files) error {
	if f.dirty {
		return nil
	}
	info, err := files.Stat(ctx, f.path)
	var failed *Error
	if errors.As(err, &failed) || err == nil && (info == f.info || info.Dir) {
		return nil
	}
	if err != nil {
		return err
	}
	return f.load(ctx, files)
}

// read returns n bytes, or all that remain if n is negative.
func (f *file) read(ctx context.Context, files Files, n int64) ([]byte, error) {
	if !f.reads {
		return nil, &Error{Invalid, "not readable"}
	}
	if err := f.refresh(ctx, files); err != nil {
		return nil, err
	}
	left := max(0, f.size-f.at)
	if n < 0 || n > left {
		n = left
	}
	if n > mostRead {
		return nil, &Error{TooBig, "a read is limited to 100 MiB: read the file in parts"}
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(io.NewSectionReader(f.copy, f.at, n), data); err != nil {
		return nil, errors.Wrapf(err, "read a file of a sandbox")
	}
	f.at += n
	return data, nil
}

// readLine returns the bytes up to the end of a line, or of the file.
func (f *file) readLine(ctx context.Context, files Files) ([]byte, error) {
	if !f.reads {
		return nil, &Error{Invalid, "not readable"}
	}
	if err := f.refresh(ctx, files); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(io.NewSectionReader(f.copy, f.at, min(max(0, f.size-f.at), mostRead))).ReadBytes('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, errors.Wrapf(err, "read a file of a sandbox")
	}
	f.at += int64(len(line))
	return line, nil
}

func (f *file) write(ctx context.Context, files Files, data []byte) error {
	if !f.writes {
		return &Error{Invalid, "not writeable"}
	}
	if len(data) == 0 {
		return nil
	}
	if !f.dirty {
		if err := f.refresh(ctx, files); err != nil {
			return err
		}
		f.from = f.size
	}
	if f.appended {
		f.at = f.size
	}
	if f.at+int64(len(data)) > mostFile {
		return &Error{TooBig, "File too large"}
	}
	if _, err := f.copy.WriteAt(data, f.at); err != nil {
		return errors.Wrapf(err, "write a file of a sandbox")
	}
	f.at += int64(len(data))
	f.size, f.dirty = max(f.size, f.at), true
	return nil
}

func (f *file) seek(ctx context.Context, files Files, req *pb.ContainerFileSeekRequest) error {
	at := int64(req.GetOffset())
	switch req.GetWhence() {
	case pb.SeekWhence_SEEK_SET:
	case pb.SeekWhence_SEEK_CUR:
		at += f.at
	case pb.SeekWhence_SEEK_END:
		if err := f.refresh(ctx, files); err != nil {
			return err
		}
		at += f.size
	default:
		return &Error{Invalid, "Invalid argument"}
	}
	if at < 0 {
		return &Error{Invalid, "Invalid argument"}
	}
	f.at = at
	return nil
}

// flush writes the changes to the sandbox.
func (f *file) flush(ctx context.Context, files Files) error {
	if !f.dirty {
		return nil
	}
	if f.appended {
		if err := f.rebase(ctx, files); err != nil {
			return err
		}
	}
	if err := files.Write(ctx, f.path, f.size, io.NewSectionReader(f.copy, 0, f.size)); err != nil {
		return err
	}
	f.dirty = false
	info, err := files.Stat(ctx, f.path)
	if err == nil {
		f.info = info
	}
	return nil // the next read copies the file again if it is not known
}

// rebase appends to the file's present content if it has changed since the copy was made.
func (f *file) rebase(ctx context.Context, files Files) error {
	info, err := files.Stat(ctx, f.path)
	if err == nil && info == f.info {
		return nil
	}
	var failed *Error
	if errors.As(err, &failed) && failed.Code == NoEntry { // it was removed: it is created again
		return nil
	}
	if err != nil {
		return err
	}
	added := make([]byte, f.size-f.from)
	if _, err := f.copy.ReadAt(added, f.from); err != nil {
		return errors.Wrapf(err, "append to a file of a sandbox")
	}
	if err := f.load(ctx, files); err != nil {
		f.dirty = true
		return err
	}
	if _, err := f.copy.WriteAt(added, f.size); err != nil {
		return errors.Wrapf(err, "append to a file of a sandbox")
	}
	f.size += int64(len(added))
	f.at, f.dirty = f.size, true
	return nil
}

// drop releases the copy. f.mu is held, or f is not shared.
func (f *file) drop() {
	if f.copy != nil {
		_ = f.copy.Close() // it is unnamed, and was written back if it had to be
	}
}

// dropLater drops f after the operation in progress.
func (f *file) dropLater() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop()
}

// list returns the names in a directory as clients expect them.
func list(ctx context.Context, files Files, path string) ([]byte, error) {
	names, err := files.List(ctx, path)
	if err != nil {
		return nil, err
	}
	if names == nil {
		names = []string{}
	}
	text, err := json.Marshal(map[string][]string{"paths": names})
	return text, errors.Wrapf(err, "encode a list of files")
}
