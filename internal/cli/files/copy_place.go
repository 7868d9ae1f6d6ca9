package files

import (
	"context"
	"io/fs"
	"os"
	"path"
	"time"

	"github.com/RelevanceAI/harvest/client"
	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
)

// inSandbox is the file system of a sandbox.
type inSandbox struct {
	server *client.Client
	ref    string
}

func (s inSandbox) show(name string) string { return s.ref + ":" + path.Clean(name) }
func (s inSandbox) mkdir(dir string) string { return "harvest sandbox files mkdir -p " + s.show(dir) }

func (s inSandbox) lstat(ctx context.Context, name string) (api.File, error) {
	f, err := s.server.StatFile(ctx, s.ref, path.Clean(name), false)
	if errors.KindOf(err) == errors.NotFound && path.Clean(name) != "/" {
		if _, e := s.server.Sandbox(ctx, s.ref); e != nil {
			return f, placeless{e}
		}
	}
	return f, err
}

func (s inSandbox) out(ctx context.Context, name string, as tarfs.Naming) (archive, error) {
	stream, err := s.server.CopyOut(ctx, s.ref, path.Clean(name))
	return archive{stream, as}, err
}

func (s inSandbox) in(ctx context.Context, dir string, from archive) error {
	stream := from.tar()
	defer stream.Close()
	return s.server.CopyIn(ctx, s.ref, path.Clean(dir), stream)
}

// inVolume is the file system of a volume.
type inVolume struct {
	server *client.Client
	volume string
}

func (v inVolume) show(name string) string { return v.volume + ":" + path.Clean(name) }
func (v inVolume) mkdir(string) string     { return "" }

func (v inVolume) lstat(ctx context.Context, name string) (api.File, error) {
	name = path.Clean(name)
	if name == "/" {
		if _, err := v.server.VolumeFiles(ctx, v.volume, "/"); err != nil {
			return api.File{}, placeless{err}
		}
		return api.File{Name: "/", Kind: "directory", Mode: modeDir | 0o755, Modified: time.Now()}, nil
	}
	entries, err := v.server.VolumeFiles(ctx, v.volume, path.Dir(name))
	if err != nil {
		if _, e := v.server.VolumeFiles(ctx, v.volume, "/"); e != nil {
			err = placeless{e}
		}
		return api.File{}, err
	}
	for _, e := range entries {
		if e.Name == path.Base(name) {
			return api.File{Name: e.Name, Kind: kindOf(e.Mode), Mode: e.Mode, Size: e.Size, Modified: e.Modified,
				Link: e.Link}, nil
		}
	}
	return api.File{}, errors.Newf(errors.NotFound, "%s: does not exist", v.show(name))
}

func (v inVolume) out(ctx context.Context, name string, as tarfs.Naming) (archive, error) {
	stream, err := v.server.VolumeCopyOut(ctx, v.volume, path.Clean(name))
	return archive{stream, as}, err
}

func (v inVolume) in(ctx context.Context, dir string, from archive) error {
	stream := from.tar()
	defer stream.Close()
	return v.server.VolumeCopyIn(ctx, v.volume, path.Clean(dir), stream)
}

// placeless is the error of a missing sandbox or volume, as opposed to a missing file.
type placeless struct{ error }

func (p placeless) Unwrap() error { return p.error }

// noPlace returns the error of a missing sandbox or volume in err, or nil.
func noPlace(err error) error {
	var p placeless
	if errors.As(err, &p) {
		return p
	}
	return nil
}

// described describes a file of this machine in the server's format.
func described(name string, info fs.FileInfo) api.File {
	f := api.File{Name: path.Base(name), Size: info.Size(), Modified: info.ModTime(), Kind: "other"}
	f.Mode, f.UID, f.GID = owned(info)
	f.Kind = kindOf(f.Mode)
	if f.Kind == "symlink" {
		f.Link, _ = os.Readlink(name) // best effort: the link may be gone
	}
	return f
}

// kindOf returns the kind of a file with that st_mode.
func kindOf(mode uint32) string {
	switch mode & modeType {
	case modeFile:
		return "file"
	case modeDir:
		return "directory"
	case modeSymlink:
		return "symlink"
	}
	return "other"
}
