package main

import (
	"archive/tar"
	"context"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/tarfs"
)

const copyHelp = `One of SOURCE and TARGET is %[1]s:PATH, the other a path on this machine, or "-" for a tar stream on standard input or output.
TARGET is the copy's name; if it ends with "/", or is a directory of this machine, the copy goes into it under its own name.
Directories are copied with everything in them.`

// tree is what files are copied to and from: a sandbox or a volume.
type tree struct {
	in  func(ctx context.Context, dir string, tar io.Reader) error
	out func(ctx context.Context, path string) (io.ReadCloser, error)
}

// remote splits REF:PATH. Local paths with a colon are told apart by a "/" or "." at their beginning.
func remote(arg string) (ref, file string, ok bool) {
	if strings.HasPrefix(arg, "/") || strings.HasPrefix(arg, ".") {
		return "", "", false
	}
	ref, file, ok = strings.Cut(arg, ":")
	return ref, file, ok && ref != ""
}

// copyFiles does what cp does; open returns the tree that ref names.
func (c *cli) copyFiles(ctx context.Context, source, target string, open func(ref string) tree) error {
	fromRef, from, download := remote(source)
	toRef, to, upload := remote(target)
	switch {
	case download == upload:
		return errors.Remedy(errors.Newf(errors.Invalid, "one of %q and %q must be NAME:PATH", source, target),
			"write ./%s for a file on this machine", target)
	case download && target == "-":
		return c.streamOut(ctx, open(fromRef), from)
	case download:
		return copyOut(ctx, open(fromRef), from, target)
	case source == "-":
		return open(toRef).in(ctx, to, c.in)
	}
	return copyIn(ctx, source, open(toRef), to)
}

func (c *cli) streamOut(ctx context.Context, t tree, from string) error {
	stream, err := t.out(ctx, from)
	if err != nil {
		return err
	}
	defer stream.Close()
	_, err = io.Copy(c.out, stream)
	return err
}

// copyIn copies a file or directory of this machine.
func copyIn(ctx context.Context, source string, t tree, to string) error {
	source, err := filepath.Abs(source)
	if err != nil {
		return errors.Explainf(err, errors.Invalid, "%s cannot be found", source)
	}
	info, err := os.Stat(source)
	if err != nil {
		return tarfs.Explain(err, source)
	}
	if strings.HasSuffix(to, "/") || to == "" {
		to = path.Join(to, filepath.Base(source))
	}
	dir, name := source, "."
	if !info.IsDir() {
		if source, err = filepath.EvalSymlinks(source); err != nil {
			return tarfs.Explain(err, source)
		}
		dir, name = filepath.Dir(source), filepath.Base(source)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return tarfs.Explain(err, dir)
	}
	defer root.Close()
	stream, err := tarfs.Open(ctx, root, name)
	if err != nil {
		return err
	}
	defer stream.Close()
	if info.IsDir() {
		return t.in(ctx, to, stream)
	}
	named := renamed(stream, path.Base(to))
	defer named.Close()
	return t.in(ctx, path.Dir(to), named)
}

// copyOut copies a file or directory to this machine.
func copyOut(ctx context.Context, t tree, from, target string) error {
	isDir, err := isDirectory(ctx, t, from)
	if err != nil {
		return err
	}
	if info, err := os.Stat(target); strings.HasSuffix(target, "/") || err == nil && info.IsDir() {
		if base := path.Base(path.Clean("/" + from)); base != "/" {
			target = filepath.Join(target, base)
		}
	}
	stream, err := t.out(ctx, from)
	if err != nil {
		return err
	}
	defer stream.Close()
	dir, content := target, stream
	if !isDir {
		dir, content = filepath.Dir(target), renamed(stream, filepath.Base(target))
		defer content.Close()
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return tarfs.Explain(err, dir)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return tarfs.Explain(err, dir)
	}
	defer root.Close()
	return tarfs.Unpack(root, ".", content, tarfs.Options{})
}

// isDirectory tells whether path is a directory. The stream of a directory with a single file in it looks like the stream of
// that file, so that there it asks for the file.
func isDirectory(ctx context.Context, t tree, name string) (bool, error) {
	stream, err := t.out(ctx, name)
	if err != nil {
		return false, err
	}
	defer stream.Close()
	hdr, err := tar.NewReader(stream).Next()
	base := path.Base(path.Clean("/" + name))
	switch {
	case err == io.EOF:
		return true, nil
	case err != nil:
		return false, errors.Explainf(err, errors.Unavailable, "what came of %s is no archive", name)
	case hdr.Typeflag == tar.TypeDir || path.Clean(hdr.Name) != base:
		return true, nil
	}
	inner, err := t.out(ctx, path.Join(name, base))
	if err != nil {
		return false, nil
	}
	return true, inner.Close()
}

// renamed returns the tar stream of one file under another name. The caller closes it.
func renamed(stream io.Reader, name string) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		in, out := tar.NewReader(stream), tar.NewWriter(w)
		hdr, err := in.Next()
		if err == nil {
			hdr.Name = name
			err = out.WriteHeader(hdr)
		}
		if err == nil {
			_, err = io.Copy(out, in)
		}
		if err == nil {
			err = out.Close()
		}
		w.CloseWithError(err)
	}()
	return r
}
