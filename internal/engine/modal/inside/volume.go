package inside

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/proc"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// ToolVolume is the tool for files of a volume. Its argument is a VolumeRequest as JSON, whose paths cannot
// leave the volume.
const ToolVolume = "volume"

// VolumeRequest is an operation on the files of a volume.
type VolumeRequest struct {
	Op   VolumeOp
	Dir  string // where the volume is mounted
	Path string // in the volume
}

// VolumeOp is the name of an operation.
type VolumeOp string

// The operations.
const (
	VolumeUnpack  VolumeOp = "unpack"  // unpack the tar stream on standard input below Path; answers like VolumeMeasure
	VolumePack    VolumeOp = "pack"    // answers with a tar stream
	VolumeList    VolumeOp = "list"    // answers with a JSON array of volume.Entry
	VolumeRemove  VolumeOp = "remove"  // answers like VolumeMeasure
	VolumeMeasure VolumeOp = "measure" // answers with a VolumeSize as JSON
)

// VolumeSize is the size of a volume.
type VolumeSize struct {
	Size, Files int64 // Size in bytes
}

// volumeFiles executes a request. When it returns, its changes are flushed to the volume's file system.
func volumeFiles(ctx context.Context, text []byte, in io.Reader, out io.Writer) error {
	var req VolumeRequest
	if err := json.Unmarshal(text, &req); err != nil {
		return errors.Wrapf(err, "read a request for a volume")
	}
	root, err := os.OpenRoot(req.Dir)
	if err != nil {
		return errors.Wrapf(err, "open the volume")
	}
	defer root.Close()
	if req.Path, err = physical(root, req.Path, req.Op == VolumeList || req.Op == VolumeUnpack); err != nil {
		return err
	}
	answer := json.NewEncoder(out)
	switch req.Op {
	case VolumePack:
		return tarfs.Pack(root, req.Path, out)
	case VolumeList:
		list, err := volume.ReadDir(root, req.Path)
		if err != nil {
			return err
		}
		return answer.Encode(list)
	case VolumeUnpack:
		err = tarfs.Unpack(root, req.Path, in, tarfs.Options{Owners: os.Geteuid() == 0, SetID: true})
	case VolumeRemove:
		err = volume.Remove(root, req.Path)
	case VolumeMeasure:
	default:
		err = errors.Newf(errors.Unsupported, "unknown operation on volumes %.40q", string(req.Op))
	}
	// Flush after an error, too: the changes before it stay.
	if err := errors.Join(err, syncTree(root)); err != nil {
		return err
	}
	var size VolumeSize
	if size.Size, size.Files, err = volume.Measure(ctx, root); err != nil {
		return errors.Wrapf(err, "measure the volume")
	}
	return answer.Encode(size)
}

// physical resolves the symbolic links in a path, except the last element unless follow is set. In gVisor's
// sandboxes, os.Root alone does not keep links within the root; see package tarfs.
func physical(root *os.Root, name string, follow bool) (string, error) {
	clean, err := tarfs.Clean(name)
	if err != nil || clean == "." {
		return clean, err
	}
	if follow {
		return tarfs.Resolve(root, clean)
	}
	dir, err := tarfs.Resolve(root, path.Dir(clean))
	return path.Join(dir, path.Base(clean)), err
}

// syncTree makes the kernel write its cached data of a file system.
func syncTree(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return errors.Wrapf(err, "open the volume")
	}
	defer dir.Close()
	return errors.Wrapf(unix.Syncfs(int(dir.Fd())), "write the volume")
}

// link creates links at a volume's additional paths, because Modal mounts each volume only once.
func link(mounts []wire.Mount) error {
	for _, m := range mounts {
		if now, err := os.Readlink(m.Path); err == nil && now == m.Source {
			continue // from the sandbox whose snapshot is this one's image
		}
		if err := os.MkdirAll(filepath.Dir(m.Path), 0o755); err != nil {
			return errors.Explainf(err, errors.Invalid, "no volume can be mounted at %.200q", m.Path)
		}
		if err := os.Remove(m.Path); err != nil && !errors.IsNotExist(err) { // an empty directory
			return errors.Explainf(err, errors.Invalid,
				"no volume can be mounted at %.200q, where the image has files: at Modal each is mounted once, and "+
					"the other paths are links", m.Path)
		}
		if err := os.Symlink(m.Source, m.Path); err != nil {
			return errors.Explainf(err, errors.Invalid, "no volume can be mounted at %.200q", m.Path)
		}
	}
	return nil
}

// giveVolumes changes the owner of new volumes to the sandbox's user. Modal decides whether volumes keep
// owners. If its file system refuses the change, the sandbox still starts.
func giveVolumes(args wire.ClaimArgs) error {
	if args.User == "" || args.Spec == nil {
		return nil
	}
	uid, gid, err := proc.Owner(args.User)
	if err != nil {
		return err
	}
	for _, m := range args.Spec.Mounts {
		if m.Volume == "" || m.ReadOnly {
			continue
		}
		_ = volume.Give(m.Path, uid, gid)
	}
	return nil
}
