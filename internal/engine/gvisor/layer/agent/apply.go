package agent

import (
	"archive/tar"
	"bufio"
	"bytes"
	"io"
	"path"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/abi/linux"
	"gvisor.dev/gvisor/pkg/errors/linuxerr"
	"gvisor.dev/gvisor/pkg/sentry/vfs"
	"gvisor.dev/gvisor/pkg/usermem"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/ocilayer"
)

// filler applies a layer to a container's root file system.
type filler struct {
	*view
	buf  []byte
	dirs map[string]*tar.Header // directories whose times are set last, because filling them changes the times
	// mounted are the mount points (true) and their parent directories (false). gVisor has created those that
	// the image lacks in the layer.
	mounted map[string]bool
}

// apply fills the container's writable layer from a tar stream in the form of an OCI layer. Its memory use does
// not depend on the size of the files. Entries are applied in their order, so that a stream may consist of several
// layers.
func apply(v *view, mounted []string, r io.Reader) error {
	f := &filler{view: v, buf: make([]byte, 256<<10), dirs: map[string]*tar.Header{}, mounted: map[string]bool{}}
	for _, dir := range mounted {
		name := path.Clean("/" + dir)[1:]
		for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
			if _, ok := f.mounted[parent]; !ok {
				f.mounted[parent] = false
			}
		}
		f.mounted[name] = true
	}
	tr := tar.NewReader(bufio.NewReaderSize(r, 1<<20))
	for {
		hdr, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return errors.Explainf(err, errors.Invalid, "the snapshot is damaged")
		}
		if err := f.entry(hdr, tr); err != nil {
			return explain(errors.Wrapf(err, "restore %.200q", hdr.Name))
		}
	}
	for name, hdr := range f.dirs {
		if err := f.times(name, hdr); err != nil {
			return explain(errors.Wrapf(err, "restore %.200q", name))
		}
	}
	return nil
}

// explain adds a remedy to the error if the layer does not fit.
func explain(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, linuxerr.ENOSPC) {
		err = errors.Explainf(err, errors.Exhausted,
			"the files of the snapshot do not fit into the sandbox's disk limit")
		return errors.Remedy(err, "give the sandbox more disk")
	}
	return err
}

func (f *filler) entry(hdr *tar.Header, content io.Reader) error {
	name := path.Clean("/" + hdr.Name)[1:]
	if name == "" {
		name = "."
	}
	hdr.Name = name
	dir, base := path.Split(name)
	if hidden, ok := strings.CutPrefix(base, ocilayer.Whiteout); ok && hdr.PAXRecords[ocilayer.Literal] == "" {
		if base == ocilayer.Opaque {
			return f.hide(path.Clean(dir))
		}
		return f.remove(dir + hidden)
	}
	switch hdr.Typeflag {
	case tar.TypeDir:
		return f.dir(hdr)
	case tar.TypeLink:
		target := path.Clean("/" + hdr.Linkname)[1:]
		if err := f.remove(name); err != nil {
			return err
		}
		return f.k.VFS().LinkAt(f.ctx, f.creds, f.at(target), f.at(name))
	case tar.TypeXGlobalHeader:
		return nil
	}
	if _, ok := f.mounted[name]; ok {
		err := errors.Newf(errors.Invalid, "no volume can be mounted at /%.200s: it is a file in the snapshot",
			name)
		return errors.Remedy(err, "mount the volume elsewhere")
	}
	if err := f.remove(name); err != nil {
		return err
	}
	if err := f.create(hdr, content); err != nil {
		return err
	}
	if err := f.owner(name, hdr); err != nil {
		return err
	}
	return f.times(name, hdr)
}

// create creates an entry that is not a directory.
func (f *filler) create(hdr *tar.Header, content io.Reader) error {
	mode := linux.FileMode(hdr.Mode & 0o7777)
	fs := f.k.VFS()
	switch hdr.Typeflag {
	case tar.TypeReg:
		return f.file(hdr, content)
	case tar.TypeSymlink:
		return fs.SymlinkAt(f.ctx, f.creds, f.at(hdr.Name), hdr.Linkname)
	case tar.TypeFifo:
		return fs.MknodAt(f.ctx, f.creds, f.at(hdr.Name), &vfs.MknodOptions{Mode: linux.S_IFIFO | mode})
	case tar.TypeChar, tar.TypeBlock:
		kind := linux.FileMode(linux.S_IFCHR)
		if hdr.Typeflag == tar.TypeBlock {
			kind = linux.S_IFBLK
		}
		return fs.MknodAt(f.ctx, f.creds, f.at(hdr.Name),
			&vfs.MknodOptions{Mode: kind | mode, DevMajor: uint32(hdr.Devmajor), DevMinor: uint32(hdr.Devminor)})
	}
	return errors.Newf(errors.Invalid, "%.200q in the snapshot has the unknown type %q", hdr.Name, hdr.Typeflag)
}

// file creates a regular file. Blocks of zeros become holes.
func (f *filler) file(hdr *tar.Header, content io.Reader) error {
	fd, err := f.k.VFS().OpenAt(f.ctx, f.creds, f.at(hdr.Name),
		&vfs.OpenOptions{Flags: linux.O_WRONLY | linux.O_CREAT | linux.O_EXCL | linux.O_NOFOLLOW, Mode: 0o600})
	if err != nil {
		return err
	}
	defer fd.DecRef(f.ctx)
	end := int64(0) // end of the written data
	for at := int64(0); at < hdr.Size; {
		part := f.buf[:min(int64(len(f.buf)), hdr.Size-at)]
		if _, err := io.ReadFull(content, part); err != nil {
			return errors.Explainf(err, errors.Invalid, "the snapshot is damaged")
		}
		if !zero(part) {
			for off := 0; off < len(part); {
				n, err := fd.PWrite(f.ctx, usermem.BytesIOSequence(part[off:]), at+int64(off), vfs.WriteOptions{})
				if err != nil {
					return err
				}
				off += int(n)
			}
			end = at + int64(len(part))
		}
		at += int64(len(part))
	}
	if end == hdr.Size {
		return nil
	}
	return fd.SetStat(f.ctx, vfs.SetStatOptions{Stat: linux.Statx{Mask: linux.STATX_SIZE, Size: uint64(hdr.Size)}})
}

var zeros [64 << 10]byte

func zero(p []byte) bool {
	for len(p) > 0 {
		part := p[:min(len(p), len(zeros))]
		if !bytes.Equal(part, zeros[:len(part)]) {
			return false
		}
		p = p[len(part):]
	}
	return true
}

// dir creates a directory, or changes an existing one.
func (f *filler) dir(hdr *tar.Header) error {
	name := hdr.Name
	st, err := f.stat(name)
	if err == nil && st.Mode&linux.FileTypeMask != linux.ModeDirectory {
		if err = f.remove(name); err == nil {
			err = linuxerr.ENOENT
		}
	}
	if linuxerr.Equals(linuxerr.ENOENT, err) {
		err = f.k.VFS().MkdirAt(f.ctx, f.creds, f.at(name), &vfs.MkdirOptions{Mode: linux.FileMode(hdr.Mode & 0o7777)})
	}
	if err != nil {
		return err
	}
	f.dirs[name] = hdr
	return f.owner(name, hdr)
}

// owner sets owner, mode and attributes, in an order in which no step undoes another.
func (f *filler) owner(name string, hdr *tar.Header) error {
	st := linux.Statx{Mask: linux.STATX_UID | linux.STATX_GID, UID: uint32(hdr.Uid), GID: uint32(hdr.Gid)}
	if hdr.Typeflag != tar.TypeSymlink {
		st.Mask |= linux.STATX_MODE
		st.Mode = uint16(hdr.Mode & 0o7777)
	}
	if err := f.k.VFS().SetStatAt(f.ctx, f.creds, f.at(name), &vfs.SetStatOptions{Stat: st}); err != nil {
		return err
	}
	for key, value := range hdr.PAXRecords {
		key, ok := strings.CutPrefix(key, ocilayer.Attribute)
		if !ok {
			continue
		}
		if err := f.k.VFS().SetXattrAt(f.ctx, f.creds, f.at(name),
			&vfs.SetXattrOptions{Name: key, Value: value}); err != nil {
			return errors.Wrapf(err, "set attribute %.200q", key)
		}
	}
	return nil
}

func (f *filler) times(name string, hdr *tar.Header) error {
	t := linux.StatxTimestamp{Sec: hdr.ModTime.Unix(), Nsec: uint32(hdr.ModTime.Nanosecond())}
	st := linux.Statx{Mask: linux.STATX_MTIME | linux.STATX_ATIME, Mtime: t, Atime: t}
	return f.k.VFS().SetStatAt(f.ctx, f.creds, f.at(name), &vfs.SetStatOptions{Stat: st})
}

// hide removes the image's files in a directory.
func (f *filler) hide(dir string) error {
	names, err := f.names(dir)
	for _, name := range names {
		if err == nil {
			err = f.remove(path.Join(dir, name))
		}
	}
	return err
}

// remove removes a file or a tree, if it exists. It keeps mount points and their parents.
func (f *filler) remove(name string) error {
	at, kept := f.mounted[name]
	if at {
		return nil
	}
	delete(f.dirs, name)
	st, err := f.stat(name)
	if linuxerr.Equals(linuxerr.ENOENT, err) || linuxerr.Equals(linuxerr.ENOTDIR, err) {
		return nil
	}
	if err != nil {
		return err
	}
	if st.Mode&linux.FileTypeMask != linux.ModeDirectory {
		return f.k.VFS().UnlinkAt(f.ctx, f.creds, f.at(name))
	}
	if err := f.hide(name); err != nil || kept {
		return err
	}
	return f.k.VFS().RmdirAt(f.ctx, f.creds, f.at(name))
}

// names lists a directory.
func (f *filler) names(dir string) ([]string, error) {
	fd, err := f.k.VFS().OpenAt(f.ctx, f.creds, f.at(dir),
		&vfs.OpenOptions{Flags: linux.O_RDONLY | linux.O_DIRECTORY | linux.O_NOFOLLOW})
	if err != nil {
		return nil, err
	}
	defer fd.DecRef(f.ctx)
	var names []string
	err = fd.IterDirents(f.ctx, vfs.IterDirentsCallbackFunc(func(d vfs.Dirent) error {
		if d.Name != "." && d.Name != ".." {
			names = append(names, d.Name)
		}
		return nil
	}))
	return names, err
}
