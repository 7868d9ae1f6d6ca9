package modal

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// filesProgram is the program that SDKs run for file operations, because the protocol has no methods for them.
// No image contains it: the engine does its work.
const filesProgram = "/__modal/.bin/modal-sandbox-fs-tools"

// largestRead is the size above which clients do not read a file whole.
const largestRead = 5 << 30

// filesOp is the argument of filesProgram. Exactly one field is set.
type filesOp struct {
	ReadFile, WriteFile, ListFiles, Stat *struct {
		Path string `json:"path"`
	}
	MakeDirectory *struct {
		Path    string `json:"path"`
		Parents bool   `json:"parents"`
	}
	Remove *struct {
		Path      string `json:"path"`
		Recursive bool   `json:"recursive"`
	}
	Watch *watchOp
}

// filesFault is the error of an operation, in the format that clients read on standard error.
type filesFault struct {
	Kind    string `json:"error_kind"`
	Message string `json:"message"`
	Detail  string `json:"detail"`
}

func (f *filesFault) Error() string { return f.Message }

func fault(kind, message string) error { return &filesFault{Kind: kind, Message: message} }

// fileWork is one operation in one sandbox.
type fileWork struct {
	b   *box
	ref string // of the sandbox
	c   *command
}

// files starts a file operation, which looks like a command to its client. It fails if the sandbox does not
// run.
func (b *box) files(ctx context.Context, ref string, o order) (*command, error) {
	sb, err := b.s.opts.Fleet.Get(ctx, b.account, ref)
	if err != nil {
		return nil, err
	}
	if sb.Status != record.Running {
		return nil, errors.Newf(errors.Gone, "the sandbox has ended")
	}
	var op filesOp
	if len(o.args) != 2 || json.Unmarshal([]byte(o.args[1]), &op) != nil {
		return nil, errors.Newf(errors.Invalid, "invalid operation on files")
	}
	o.stdout, o.stderr = true, true
	c := b.newCommand(o)
	w := &fileWork{b, ref, c}
	b.s.tasks.Go(func() {
		ctx, cancel := context.WithCancel(b.s.ctx)
		defer cancel()
		go func() {
			select {
			case <-b.ended:
				cancel()
			case <-ctx.Done():
			}
			c.in.leave() // a client that writes a file may never have sent EOF
		}()
		err := w.do(ctx, op)
		c.result.ReturnCode = w.report(err)
		c.finish()
	})
	return c, nil
}

// report writes the error to the client and returns the exit code.
func (w *fileWork) report(err error) int {
	if err == nil {
		return 0
	}
	var f *filesFault
	if !errors.As(err, &f) {
		f = &filesFault{Kind: "Other", Message: errors.Message(err)}
		if errors.KindOf(err) == errors.Denied {
			f.Kind = "PermissionDenied"
		}
	}
	text, err := json.Marshal(f)
	if err == nil {
		_, err = w.c.err.Write(text)
	}
	if err != nil {
		return 2
	}
	return 1
}

func (w *fileWork) do(ctx context.Context, op filesOp) error {
	switch {
	case op.ReadFile != nil:
		return w.read(ctx, op.ReadFile.Path, w.c.out)
	case op.WriteFile != nil:
		return w.write(ctx, op.WriteFile.Path)
	case op.ListFiles != nil:
		return w.list(ctx, op.ListFiles.Path)
	case op.Stat != nil:
		return w.stat(ctx, op.Stat.Path)
	case op.MakeDirectory != nil:
		return w.mkdir(ctx, op.MakeDirectory.Path, op.MakeDirectory.Parents)
	case op.Remove != nil:
		return w.remove(ctx, op.Remove.Path, op.Remove.Recursive)
	case op.Watch != nil:
		return w.watch(ctx, *op.Watch)
	}
	return fault("NotSupported", "There is no such operation")
}

// ask runs an operation of the engine and returns its output.
func (w *fileWork) ask(ctx context.Context, req tarfs.Request) ([]byte, error) {
	var out bytes.Buffer
	err := w.b.s.opts.Fleet.Files(ctx, w.b.account, w.ref, req, &out)
	return out.Bytes(), err
}

func (w *fileWork) look(ctx context.Context, name string, follow bool) (tarfs.Entry, error) {
	out, err := w.ask(ctx, tarfs.Request{Op: tarfs.OpStat, Path: name, Follow: follow})
	var e tarfs.Entry
	if err == nil {
		err = errors.Wrapf(json.Unmarshal(out, &e), "read the type of a file")
	}
	if e.Path = path.Clean("/" + e.Path); e.Path == "/" {
		e.Path = name
	}
	return e, err
}

// explain finds out why a path cannot be used: it does not exist, or a component is not a directory.
func (w *fileWork) explain(ctx context.Context, name string, err error) error {
	kind := errors.KindOf(err)
	if kind == errors.Denied {
		return fault("PermissionDenied", "Permission denied")
	}
	if kind != errors.NotFound && kind != errors.Invalid {
		return err
	}
	for dir := path.Dir(name); dir != "/" && dir != "."; dir = path.Dir(dir) {
		if e, err := w.look(ctx, dir, true); err == nil {
			if !isDir(e) {
				return fault("NotDirectory", "Not a directory")
			}
			break
		}
	}
	if kind == errors.NotFound {
		return fault("NotFound", "No such file or directory")
	}
	return err
}

func isDir(e tarfs.Entry) bool { return e.Mode&unix.S_IFMT == unix.S_IFDIR }

// read copies a file to a writer.
func (w *fileWork) read(ctx context.Context, name string, to io.Writer) error {
	e, err := w.look(ctx, name, true)
	switch {
	case err != nil:
		return w.explain(ctx, name, err)
	case isDir(e):
		return fault("IsDirectory", "Is a directory")
	case e.Size > largestRead:
		return fault("FileTooLarge", "File too large")
	}
	stream, err := w.b.s.opts.Fleet.CopyOut(ctx, w.b.account, w.ref, e.Path)
	if err != nil {
		return w.explain(ctx, name, err)
	}
	defer stream.Close()
	content := tar.NewReader(stream)
	if _, err := content.Next(); err != nil {
		return errors.Wrapf(err, "read a file of the sandbox")
	}
	_, err = io.CopyBuffer(to, content, make([]byte, chunk))
	return errors.Wrapf(err, "read a file of the sandbox")
}

// write creates a file from the input once the input is complete.
func (w *fileWork) write(ctx context.Context, name string) error {
	hdr, name, err := w.target(ctx, name)
	if err != nil {
		return err
	}
	temp, size, err := w.collect()
	if err != nil {
		return err
	}
	defer temp.Close()
	if err := ctx.Err(); err != nil { // the input is incomplete
		return errors.Wrapf(err, "write a file")
	}
	hdr.Size = size
	return w.put(ctx, name, hdr, temp)
}

// target returns the header and the path of a file to write: those of an existing file, if there is one.
func (w *fileWork) target(ctx context.Context, name string) (tar.Header, string, error) {
	name = path.Clean(name)
	hdr := tar.Header{Typeflag: tar.TypeReg, Mode: 0o644, ModTime: nowTime()}
	e, err := w.look(ctx, name, true)
	switch {
	case err == nil && isDir(e):
		return hdr, name, fault("IsDirectory", "Is a directory")
	case err == nil:
		hdr.Mode, hdr.Uid, hdr.Gid = int64(e.Mode&0o7777), e.UID, e.GID
		name = e.Path
	default:
		if err := w.explain(ctx, name, err); err != nil {
			var f *filesFault
			if !errors.As(err, &f) || f.Kind != "NotFound" {
				return hdr, name, err
			}
		}
	}
	hdr.Name = path.Base(name)
	return hdr, name, nil
}

// put creates or replaces a file.
func (w *fileWork) put(ctx context.Context, name string, hdr tar.Header, content io.Reader) error {
	pipe, out := io.Pipe()
	go func() {
		archive := tar.NewWriter(out)
		err := archive.WriteHeader(&hdr)
		if err == nil {
			_, err = io.CopyBuffer(archive, struct{ io.Reader }{content}, make([]byte, chunk))
		}
		if err == nil {
			err = archive.Close()
		}
		out.CloseWithError(err)
	}()
	err := w.b.s.opts.Fleet.CopyIn(ctx, w.b.account, w.ref, path.Dir(name), pipe)
	_ = pipe.Close()
	if err != nil {
		return w.explain(ctx, name, err)
	}
	return nil
}

// collect copies the input to an unnamed file and seeks to its beginning.
func (w *fileWork) collect() (*os.File, int64, error) {
	temp, err := os.CreateTemp(w.b.s.opts.Dir, "input-")
	if err == nil {
		err = os.Remove(temp.Name())
	}
	if err != nil {
		return nil, 0, errors.Wrapf(err, "keep a file for the sandbox")
	}
	size, err := io.CopyBuffer(struct{ io.Writer }{temp}, w.c.in, make([]byte, chunk))
	if err == nil {
		_, err = temp.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, 0, errors.Join(errors.Wrapf(err, "keep a file for the sandbox"), temp.Close())
	}
	return temp, size, nil
}

func (w *fileWork) list(ctx context.Context, name string) error {
	found, err := w.entries(ctx, name)
	if err != nil {
		return err
	}
	infos := []fileInfo{}
	names := w.names(ctx)
	for _, e := range found {
		infos = append(infos, names.info(e, path.Join(name, e.Name)))
	}
	return w.answer(infos)
}

// entries returns the content of a directory.
func (w *fileWork) entries(ctx context.Context, name string) (found []tarfs.Entry, err error) {
	e, err := w.look(ctx, name, true)
	if err != nil {
		return nil, w.explain(ctx, name, err)
	}
	if !isDir(e) {
		return nil, fault("NotDirectory", "Not a directory")
	}
	out, err := w.ask(ctx, tarfs.Request{Op: tarfs.OpList, Path: name})
	if err != nil {
		return nil, w.explain(ctx, name, err)
	}
	lines := json.NewDecoder(bytes.NewReader(out))
	for lines.More() {
		var e tarfs.Entry
		if err := lines.Decode(&e); err != nil {
			return nil, errors.Wrapf(err, "read a list of files")
		}
		found = append(found, e)
	}
	return found, nil
}

func (w *fileWork) stat(ctx context.Context, name string) error {
	e, err := w.look(ctx, name, false)
	if err != nil {
		return w.explain(ctx, name, err)
	}
	return w.answer(w.names(ctx).info(e, name))
}

func (w *fileWork) answer(v any) error {
	text, err := json.Marshal(v)
	if err == nil {
		_, err = w.c.out.Write(append(text, '\n'))
	}
	return errors.Wrapf(err, "answer an operation on files")
}

func (w *fileWork) mkdir(ctx context.Context, name string, parents bool) error {
	if e, err := w.look(ctx, name, true); err == nil && (!parents || !isDir(e)) {
		return fault("PathAlreadyExists", "File exists")
	}
	_, err := w.ask(ctx, tarfs.Request{Op: tarfs.OpMkdir, Path: name, Parents: parents})
	if errors.KindOf(err) == errors.Conflict {
		return fault("PathAlreadyExists", "File exists")
	}
	return w.unlessNil(ctx, name, err)
}

func (w *fileWork) unlessNil(ctx context.Context, name string, err error) error {
	if err == nil {
		return nil
	}
	return w.explain(ctx, name, err)
}

func (w *fileWork) remove(ctx context.Context, name string, recursive bool) error {
	_, err := w.ask(ctx, tarfs.Request{Op: tarfs.OpRemove, Path: strings.TrimRight(name, "/"), Recursive: recursive})
	if errors.KindOf(err) == errors.Conflict {
		return fault("DirectoryNotEmpty", "Directory not empty")
	}
	return w.unlessNil(ctx, name, err)
}
