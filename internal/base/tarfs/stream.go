package tarfs

import (
	"bufio"
	"context"
	"io"
	"io/fs"
	"os"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Open returns the output of Pack as a stream. If Pack fails before the first byte, Open returns its error. The
// caller closes the stream; root may be closed before. The end of ctx ends the stream with ctx's error.
func Open(ctx context.Context, root *os.Root, name string) (io.ReadCloser, error) {
	return OpenAs(ctx, root, name, Naming{})
}

// OpenAs is Open with changed headers.
func OpenAs(ctx context.Context, root *os.Root, name string, as Naming) (io.ReadCloser, error) {
	own, err := again(root)
	if err != nil {
		return nil, errors.Wrapf(err, "open the directory again")
	}
	pr, pw := io.Pipe()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer own.Close()
		pw.CloseWithError(pack(own, name, as, pw))
	}()
	stop := context.AfterFunc(ctx, func() { pw.CloseWithError(context.Cause(ctx)) })
	s := &stream{Reader: bufio.NewReaderSize(until{ctx, pr}, 64<<10), close: func() {
		stop()
		pr.Close()
		<-done
	}}
	if _, err := s.Peek(1); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// again opens a root once more. The root of the whole file system keeps its name, which locate checks.
func again(root *os.Root) (*os.Root, error) {
	if root.Name() == "/" {
		return os.OpenRoot("/")
	}
	return root.OpenRoot(".")
}

// until reads until ctx ends. A function passed to AfterFunc may run late on a busy machine.
type until struct {
	ctx context.Context
	r   io.Reader
}

func (u until) Read(p []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.r.Read(p)
}

type stream struct {
	*bufio.Reader
	close func()
}

func (s *stream) Close() error {
	s.close()
	return nil
}

// Remove removes name and everything below it, even directories that their owner may not write to, such as Go's
// module cache. NotFound if name does not exist, Invalid if it is the root itself or leads out of it.
func Remove(root *os.Root, name string) error {
	clean, err := Clean(name)
	if err != nil {
		return err
	}
	if clean == "." {
		return errors.Newf(errors.Invalid, "a tree's own directory cannot be removed")
	}
	if _, err := root.Lstat(clean); err != nil {
		return Explain(err, name)
	}
	err = root.RemoveAll(clean)
	if errors.Is(err, fs.ErrPermission) {
		if err := unlock(root, clean); err != nil {
			return Explain(err, name)
		}
		err = root.RemoveAll(clean)
	}
	return Explain(err, name)
}

// unlock makes the directories below name writable for their owner.
func unlock(root *os.Root, name string) error {
	return fs.WalkDir(root.FS(), name, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		return root.Chmod(p, 0o700) // before it is read, which may need the permission, too
	})
}
