package inside

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/engine/proc"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/tarfs"
	"github.com/RelevanceAI/harvest/volume"
)

// ToolVolume is the tool for the files of a volume, none of whose paths leaves it. Its argument is a VolumeRequest as JSON.
const ToolVolume = "volume"

// VolumeRequest is something to do with the files of a volume.
type VolumeRequest struct {
	Op   VolumeOp
	Dir  string // where the volume is mounted
	Path string // in the volume
}

// VolumeOp is what to do.
type VolumeOp string

// The operations.
const (
	VolumeUnpack  VolumeOp = "unpack"  // a tar stream on standard input, below Path; then what VolumeMeasure answers
	VolumePack    VolumeOp = "pack"    // answered with a tar stream
	VolumeList    VolumeOp = "list"    // answered with a JSON array of volume.Entry
	VolumeRemove  VolumeOp = "remove"  // answered as VolumeMeasure is
	VolumeMeasure VolumeOp = "measure" // answered with a VolumeSize as JSON
)

// VolumeSize is how much a volume has.
type VolumeSize struct {
	Size, Files int64 // Size in bytes
}

// volumeFiles carries out a request. What it has changed is on its way to the volume's disk when it returns.
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
		err = errors.Newf(errors.Unsupported, "nothing can be done with volumes that is called %.40q", string(req.Op))
	}
	// Also after an error: what was done before it stays.
	if err := errors.Join(err, syncTree(root)); err != nil {
		return err
	}
	var size VolumeSize
	if size.Size, size.Files, err = volume.Measure(ctx, root); err != nil {
		return errors.Wrapf(err, "measure the volume")
	}
	return answer.Encode(size)
}

// physical is a path without symbolic links, save the last part of it unless that is to be followed: in gVisor's sandboxes os.Root alone does not
// keep them within, as package tarfs knows.
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

// syncTree has the kernel write what it holds of a file system.
func syncTree(root *os.Root) error {
	dir, err := root.Open(".")
	if err != nil {
		return errors.Wrapf(err, "open the volume")
	}
	defer dir.Close()
	return errors.Wrapf(unix.Syncfs(int(dir.Fd())), "write the volume")
}

// link makes the paths at which a volume is besides the one where it is mounted: Modal mounts each once.
func link(mounts []wire.Mount) error {
	for _, m := range mounts {
		if now, err := os.Readlink(m.Path); err == nil && now == m.Source {
			continue // of a sandbox whose snapshot this one's image is
		}
		if err := os.MkdirAll(filepath.Dir(m.Path), 0o755); err != nil {
			return errors.Explainf(err, errors.Invalid, "no volume can be at %.200q", m.Path)
		}
		if err := os.Remove(m.Path); err != nil && !errors.IsNotExist(err) { // an empty directory
			return errors.Explainf(err, errors.Invalid, "no volume can be at %.200q, where the image has files: at Modal each is mounted once, and the other paths are links", m.Path)
		}
		if err := os.Symlink(m.Source, m.Path); err != nil {
			return errors.Explainf(err, errors.Invalid, "no volume can be at %.200q", m.Path)
		}
	}
	return nil
}

// giveVolumes makes fresh volumes the property of the sandbox's user. Modal decides whether volumes keep their owners, and a refusal of its file
// system is no reason to refuse the sandbox.
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
