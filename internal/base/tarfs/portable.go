//go:build !linux

package tarfs

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
)

// pack writes name as a tar stream. Unlike Linux's, it writes hard links as files, and no owners.
func pack(root *os.Root, name string, as Naming, w io.Writer) error {
	clean, err := Clean(name)
	if err != nil {
		return err
	}
	info, err := root.Lstat(clean)
	if err != nil {
		return Explain(err, name)
	}
	tw := tar.NewWriter(w)
	if as.First != nil {
		if err := tw.WriteHeader(as.First); err != nil {
			return errors.Wrapf(err, "write the archive")
		}
	}
	if !info.IsDir() {
		err = packOne(root, clean, path.Base(clean), as, tw)
	} else {
		err = fs.WalkDir(root.FS(), clean, func(p string, _ fs.DirEntry, err error) error {
			if err != nil || p == clean {
				return err
			}
			return packOne(root, p, strings.TrimPrefix(p, clean+"/"), as, tw)
		})
	}
	if err != nil {
		return Explain(err, name)
	}
	return errors.Wrapf(tw.Close(), "write the archive")
}

// packOne writes the file at p as the entry name. It skips what is neither a file, a directory nor a link.
func packOne(root *os.Root, p, name string, as Naming, tw *tar.Writer) error {
	info, err := root.Lstat(p)
	if err != nil {
		return err
	}
	hdr := &tar.Header{Name: name, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime(), Format: tar.FormatPAX}
	var f *os.File
	switch {
	case info.IsDir():
		hdr.Typeflag, hdr.Name = tar.TypeDir, name+"/"
	case info.Mode()&fs.ModeSymlink != 0:
		hdr.Typeflag = tar.TypeSymlink
		if hdr.Linkname, err = root.Readlink(p); err != nil {
			return err
		}
		hdr.Linkname = filepath.ToSlash(hdr.Linkname)
	case info.Mode().IsRegular():
		if f, err = root.Open(p); err != nil {
			return err
		}
		defer f.Close()
		if info, err = f.Stat(); err != nil {
			return err
		}
		hdr.Typeflag, hdr.Size = tar.TypeReg, info.Size()
	default:
		return nil
	}
	as.change(hdr)
	if err := tw.WriteHeader(hdr); err != nil || f == nil {
		return err
	}
	_, err = io.CopyN(tw, f, hdr.Size)
	return err
}

// Unpack unpacks a tar stream below dir, which is created if missing. Unlike Linux's, it sets no owners, and
// refuses names through symbolic links that leave dir, as os.Root does.
func Unpack(root *os.Root, dir string, r io.Reader, opts Options) error {
	clean, err := Clean(dir)
	if err != nil {
		return err
	}
	if err := root.MkdirAll(clean, 0o755); err != nil {
		return Explain(err, dir)
	}
	base, err := openDir(root, clean)
	if err != nil {
		return Explain(err, dir)
	}
	defer base.Close()
	in := NewReader(r)
	for {
		hdr, err := in.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		opts.Naming.change(hdr)
		name, err := Clean(hdr.Name)
		if err != nil {
			return err
		}
		if name == "." {
			continue
		}
		if err := unpackOne(base, name, hdr, in, opts); err != nil {
			return Explain(err, hdr.Name)
		}
	}
}

func unpackOne(base *os.Root, name string, hdr *tar.Header, in io.Reader, opts Options) error {
	if err := base.MkdirAll(path.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(hdr.Mode).Perm()
	if hdr.Typeflag == tar.TypeDir {
		return base.MkdirAll(name, mode|0o700)
	}
	if info, err := base.Lstat(name); err == nil && !info.IsDir() {
		if err := base.Remove(name); err != nil {
			return err
		}
	}
	switch hdr.Typeflag {
	case tar.TypeReg:
		f, err := base.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, in)
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
		return base.Chtimes(name, hdr.ModTime, hdr.ModTime)
	case tar.TypeSymlink:
		return base.Symlink(filepath.FromSlash(hdr.Linkname), name)
	case tar.TypeLink:
		return base.Link(path.Clean(hdr.Linkname), name)
	default:
		if opts.Skipped != nil {
			opts.Skipped(hdr.Name)
		}
		return nil
	}
}
