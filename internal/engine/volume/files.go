package volume

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// maxMeasured is the number of files to count in a volume at most.
const maxMeasured = 1_000_000

// local is a volume of a Local.
type local struct {
	l    *Local
	name string
}

func (v *local) Name() string { return v.name }

// Dir implements Directory.
func (v *local) Dir() string { return v.l.Path(v.name) }

// Notes implements Directory.
func (v *local) Notes() string { return filepath.Join(v.l.path, v.name, notesDir) }

// Use implements Directory.
func (v *local) Use(who string) (func(), error) { return v.l.Use(v.name, who) }

// open opens the volume's files. All access goes through this root, since sandboxes control the
// content.
func (v *local) open() (*os.Root, error) {
	root, err := v.l.root.OpenRoot(v.name + "/" + dataDir)
	if errors.IsNotExist(err) {
		return nil, NoVolume(v.name)
	}
	return root, errors.Wrapf(err, "open volume %s", v.name)
}

// Commit implements Volume.
func (v *local) Commit(context.Context) error {
	root, err := v.open()
	if err != nil {
		return err
	}
	defer root.Close()
	dir, err := root.Open(".")
	if err != nil {
		return errors.Wrapf(err, "open volume %s", v.name)
	}
	defer dir.Close()
	// Sandboxes write directly to the host's files, so it is the host's page cache that must be
	// flushed.
	return errors.Wrapf(unix.Syncfs(int(dir.Fd())), "commit volume %s", v.name)
}

// Reload implements Volume. All sandboxes of this machine share the host's files, so it only checks
// that the volume exists.
func (v *local) Reload(context.Context) error {
	root, err := v.open()
	if err != nil {
		return err
	}
	return root.Close()
}

// CopyIn implements Volume. It keeps owners if the process may change them.
func (v *local) CopyIn(ctx context.Context, dir string, tar io.Reader) error {
	root, err := v.open()
	if err != nil {
		return err
	}
	defer root.Close()
	room, err := v.Admit(ctx, root)
	if err != nil {
		return err
	}
	admit := func(name string) error { // entries are created one after the other
		return room.Make(strings.TrimLeft(name, "/"), func() error { return nil })
	}
	if err := admit(dir); err != nil {
		return err
	}
	return tarfs.Unpack(root, dir, &reader{ctx, tar}, tarfs.Options{Owners: os.Geteuid() == 0, SetID: true,
		Admit: func(name string) error { return admit(path.Join(dir, name)) }})
}

// reader fails once its context has ended.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r *reader) Read(p []byte) (int, error) {
	if err := context.Cause(r.ctx); err != nil {
		return 0, err
	}
	return r.r.Read(p)
}

// CopyOut implements Volume.
func (v *local) CopyOut(ctx context.Context, name string) (io.ReadCloser, error) {
	root, err := v.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return tarfs.Open(ctx, root, name)
}

// ReadDir implements Volume.
func (v *local) ReadDir(_ context.Context, name string) ([]Entry, error) {
	root, err := v.open()
	if err != nil {
		return nil, err
	}
	defer root.Close()
	return ReadDir(root, name)
}

// ReadDir is Volume.ReadDir for a volume with the files in root.
func ReadDir(root *os.Root, name string) ([]Entry, error) {
	clean, err := tarfs.Clean(name)
	if err != nil {
		return nil, err
	}
	if stat, err := root.Stat(clean); err == nil && !stat.IsDir() {
		return nil, errors.Newf(errors.Invalid, "%.200q is not a directory", name)
	}
	dir, err := root.OpenRoot(clean)
	if err != nil {
		return nil, tarfs.Explain(err, name)
	}
	defer dir.Close()
	names, err := readNames(dir, ".")
	if err != nil {
		return nil, tarfs.Explain(err, name)
	}
	list := []Entry{}
	for _, n := range names {
		stat, err := dir.Lstat(n)
		if errors.IsNotExist(err) {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, tarfs.Explain(err, path.Join(name, n))
		}
		e := Entry{Name: n, Size: stat.Size(), Modified: stat.ModTime().UTC()}
		if st, ok := stat.Sys().(*syscall.Stat_t); ok {
			e.Mode = st.Mode
		}
		if stat.Mode().Type() == fs.ModeSymlink {
			if e.Link, err = dir.Readlink(n); err != nil && !errors.IsNotExist(err) {
				return nil, tarfs.Explain(err, path.Join(name, n))
			}
		}
		list = append(list, e)
	}
	return list, nil
}

// Remove implements Volume. It returns Invalid for the volume itself.
func (v *local) Remove(_ context.Context, name string) error {
	root, err := v.open()
	if err != nil {
		return err
	}
	defer root.Close()
	return Remove(root, name)
}

// Remove is Volume.Remove for a volume with the files in root.
func Remove(root *os.Root, name string) error {
	if clean, err := tarfs.Clean(name); err == nil && clean == "." {
		return errors.Remedy(errors.Newf(errors.Invalid, "the path %.200q is the whole volume", name),
			"delete the volume instead")
	}
	return tarfs.Remove(root, name)
}

// measure counts the files of a volume and their bytes.
func (l *Local) measure(ctx context.Context, name string) (size, files int64, err error) {
	base, err := l.root.OpenRoot(name + "/" + dataDir)
	if err != nil {
		return 0, 0, err
	}
	defer base.Close()
	return Measure(ctx, base)
}

// Measure counts the files below base and their bytes, without following links. It stops after
// about a million files.
func Measure(ctx context.Context, base *os.Root) (size, files int64, err error) {
	err = walk(ctx, base, func(stat fs.FileInfo) bool {
		if !stat.IsDir() {
			files++
		}
		if stat.Mode().IsRegular() {
			size += stat.Size()
		}
		return files < maxMeasured
	})
	return size, files, err
}

// walk calls visit for each file and directory below base until visit returns false. Those that vanish or are
// unreadable are left out.
func walk(ctx context.Context, base *os.Root, visit func(fs.FileInfo) bool) error {
	todo := []string{"."}
	for len(todo) > 0 {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		dir := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		list, err := lstatAll(base, dir)
		if err != nil && dir == "." {
			return err
		}
		for _, stat := range list {
			if !visit(stat) {
				return nil
			}
			if stat.IsDir() {
				todo = append(todo, path.Join(dir, stat.Name()))
			}
		}
	}
	return nil
}

// lstatAll returns the stats of a directory's entries.
func lstatAll(base *os.Root, name string) ([]fs.FileInfo, error) {
	dir, err := base.OpenRoot(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := readNames(dir, ".")
	if err != nil {
		return nil, err
	}
	var list []fs.FileInfo
	for _, n := range names {
		if stat, err := dir.Lstat(n); err == nil {
			list = append(list, stat)
		}
	}
	return list, nil
}
