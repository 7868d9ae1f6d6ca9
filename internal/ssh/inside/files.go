package inside

import (
	"encoding/binary"
	"io"
	"io/fs"
	"os"
	"os/user"
	"path"

	"github.com/pkg/sftp"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// serveFiles serves the files of the sandbox to sftp and scp. Relative paths begin at the working directory.
//
// sftp.Server, which has handlers of its own, ignores that a file is opened to append to it: clients that rely on the
// flag, such as curl --append, would overwrite its start.
func serveFiles(stdin io.Reader, stdout io.Writer) error {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	server := sftp.NewRequestServer(newInOrder(stdin, stdout),
		sftp.Handlers{FileGet: files{}, FilePut: files{}, FileCmd: files{}, FileList: files{}},
		sftp.WithStartDirectory(dir))
	if err := server.Serve(); err != nil && !errors.Is(err, io.EOF) {
		return errors.Wrapf(err, "serve files")
	}
	return nil
}

// files are the files of this machine.
type files struct{}

// Fileread implements sftp.FileReader.
func (files) Fileread(r *sftp.Request) (io.ReaderAt, error) { return os.Open(r.Filepath) }

// Filewrite implements sftp.FileWriter.
func (f files) Filewrite(r *sftp.Request) (io.WriterAt, error) { return f.OpenFile(r) }

// OpenFile implements sftp.OpenFileWriter.
func (files) OpenFile(r *sftp.Request) (sftp.WriterAtReaderAt, error) {
	wanted, flags, mode := r.Pflags(), os.O_WRONLY, fs.FileMode(0o666)
	if wanted.Read {
		flags = os.O_RDWR
	}
	for flag, set := range map[int]bool{os.O_APPEND: wanted.Append, os.O_CREATE: wanted.Creat, os.O_TRUNC: wanted.Trunc,
		os.O_EXCL: wanted.Excl} {
		if set {
			flags |= flag
		}
	}
	// The library has dropped the flags that say which attributes there are. Of those that clients send here, the
	// permissions alone have 4 bytes.
	if len(r.Attrs) == 4 {
		mode = fs.FileMode(binary.BigEndian.Uint32(r.Attrs)).Perm()
	}
	file, err := os.OpenFile(r.Filepath, flags, mode)
	if err != nil {
		return nil, err
	}
	if wanted.Append {
		return appended{file}, nil
	}
	return file, nil
}

// appended is a file whose writes go to its end, whatever the offset
// (https://datatracker.ietf.org/doc/html/draft-ietf-secsh-filexfer-02, section 6.3: SSH_FXF_APPEND).
type appended struct{ *os.File }

// WriteAt implements io.WriterAt.
func (a appended) WriteAt(data []byte, _ int64) (int, error) { return a.Write(data) }

// Filecmd implements sftp.FileCmder.
func (files) Filecmd(r *sftp.Request) error {
	switch r.Method {
	case "Setstat":
		return setStat(r)
	case "Rename": // draft 02, section 6.5: it is an error if the new name exists
		return unix.Renameat2(unix.AT_FDCWD, r.Filepath, unix.AT_FDCWD, r.Target, unix.RENAME_NOREPLACE)
	case "Rmdir":
		return unix.Rmdir(r.Filepath)
	case "Remove":
		return unix.Unlink(r.Filepath)
	case "Mkdir":
		return os.Mkdir(r.Filepath, 0o777)
	case "Link":
		return os.Link(r.Filepath, r.Target)
	case "Symlink": // the library has the link itself in Target
		return os.Symlink(r.Filepath, r.Target)
	}
	return sftp.ErrSSHFxOpUnsupported
}

func setStat(r *sftp.Request) error {
	wanted, attrs := r.AttrFlags(), r.Attributes()
	var err error
	if wanted.Size {
		err = os.Truncate(r.Filepath, int64(attrs.Size))
	}
	if err == nil && wanted.Permissions {
		err = os.Chmod(r.Filepath, attrs.FileMode())
	}
	if err == nil && wanted.UidGid {
		err = os.Chown(r.Filepath, int(attrs.UID), int(attrs.GID))
	}
	if err == nil && wanted.Acmodtime {
		err = os.Chtimes(r.Filepath, attrs.AccessTime(), attrs.ModTime())
	}
	return err
}

// PosixRename implements sftp.PosixRenameFileCmder: it replaces what has the new name.
func (files) PosixRename(r *sftp.Request) error { return os.Rename(r.Filepath, r.Target) }

// StatVFS implements sftp.StatVFSFileCmder.
func (files) StatVFS(r *sftp.Request) (*sftp.StatVFS, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(r.Filepath, &s); err != nil {
		return nil, err
	}
	return &sftp.StatVFS{Bsize: uint64(s.Bsize), Frsize: uint64(s.Frsize), Blocks: s.Blocks, Bfree: s.Bfree,
		Bavail: s.Bavail, Files: s.Files, Ffree: s.Ffree, Favail: s.Ffree, Flag: uint64(s.Flags),
		Namemax: uint64(s.Namelen)}, nil
}

// listing is a part of a directory, or one file.
type listing []fs.FileInfo

// ListAt implements sftp.ListerAt.
func (l listing) ListAt(to []fs.FileInfo, offset int64) (int, error) {
	if offset >= int64(len(l)) {
		return 0, io.EOF
	}
	n := copy(to, l[offset:])
	if n < len(to) {
		return n, io.EOF
	}
	return n, nil
}

// Filelist implements sftp.FileLister.
func (files) Filelist(r *sftp.Request) (sftp.ListerAt, error) {
	if r.Method == "Stat" {
		info, err := os.Stat(r.Filepath)
		return listing{info}, err
	}
	entries, err := os.ReadDir(r.Filepath)
	if err != nil {
		return nil, err
	}
	found := listing{}
	for _, entry := range entries {
		// A file that has gone meanwhile is not in the list.
		if info, err := entry.Info(); err == nil {
			found = append(found, info)
		}
	}
	return found, nil
}

// Lstat implements sftp.LstatFileLister.
func (files) Lstat(r *sftp.Request) (sftp.ListerAt, error) {
	info, err := os.Lstat(r.Filepath)
	return listing{info}, err
}

// Readlink implements sftp.ReadlinkFileLister.
func (files) Readlink(name string) (string, error) { return os.Readlink(name) }

// RealPath implements sftp.RealPathFileLister. As with OpenSSH, the last element need not exist.
func (files) RealPath(name string) (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	if !path.IsAbs(name) {
		name = path.Join(dir, name)
	}
	return path.Clean(name), nil
}

// LookupUserName implements sftp.NameLookupFileLister.
func (files) LookupUserName(id string) string {
	if u, err := user.LookupId(id); err == nil {
		return u.Username
	}
	return id
}

// LookupGroupName implements sftp.NameLookupFileLister.
func (files) LookupGroupName(id string) string {
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}
