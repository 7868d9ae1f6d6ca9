package dockerfile

import (
	"bytes"
	"context"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/moby/buildkit/solver/pb"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image/dockerfile/files"
	"github.com/RelevanceAI/harvest/image/dockerfile/mounts"
	"github.com/RelevanceAI/harvest/image/dockerfile/plan"
)

const (
	// secretDir is the directory, in the machine's memory, of the secrets of a RUN.
	secretDir = "/dev/shm/.harvest-secrets"
	// bindDir is the directory, on the machine's disk, of the files of bind mounts.
	bindDir = "/.harvest-bind"
)

// mount is a --mount of a RUN.
type mount struct {
	Type     string
	Target   string
	ID       string `json:",omitempty"`
	Sharing  string `json:",omitempty"`
	Files    string `json:",omitempty"` // digest of the directory with which a cache begins; "": none
	Env      string `json:",omitempty"`
	Size     int64  `json:",omitempty"` // of a tmpfs; 0: no limit of its own
	Mode     uint32
	UID, GID int
	ReadOnly bool
	Required bool

	from   *plan.Vertex // of a bind mount, or of a cache that begins with files; nil: an empty directory
	source string       // the path in it
}

func (x *executor) mountOf(v *plan.Vertex, from *pb.Mount) (mount, error) {
	m := mount{Target: path.Clean(from.Dest), ReadOnly: from.Readonly, Mode: 0o755, source: from.Selector}
	if from.Input >= 0 {
		m.from = v.Inputs[from.Input]
	}
	switch from.MountType {
	case pb.MountType_CACHE:
		m.Type, m.ID = "cache", strings.TrimPrefix(from.CacheOpt.ID, "/")
		m.Sharing = strings.ToLower(from.CacheOpt.Sharing.String())
		return m, x.cacheFiles(&m)
	case pb.MountType_TMPFS:
		m.Type, m.Mode = "tmpfs", 0o1777
		if from.TmpfsOpt != nil {
			m.Size = from.TmpfsOpt.Size
		}
	case pb.MountType_SECRET:
		s := from.SecretOpt
		m.Type, m.ID, m.Required = "secret", s.ID, !s.Optional
		m.Mode, m.UID, m.GID = s.Mode&0o7777, int(s.Uid), int(s.Gid)
	default:
		m.Type = "bind"
	}
	return m, nil
}

// cacheFiles sets the digest of the directory with which a cache mount begins: that of a stage, or an empty one with
// the owner and mode of the mount.
func (x *executor) cacheFiles(m *mount) error {
	if m.from == nil {
		return nil
	}
	dir, err := x.bound(*m)
	if err != nil {
		return err
	}
	if !dir.IsDir() {
		return errors.Newf(errors.Invalid, "the cache mount at %s: its source %s is not a directory", m.Target,
			m.source)
	}
	m.UID, m.GID, m.Mode = dir.UID, dir.GID, uint32(dir.Mode)
	m.Files, err = x.bindDigest(*m)
	return err
}

// volume returns the name of the volume of a cache mount. It differs for each account, so that none sees the files of
// another one, and for the directory with which the cache begins, as in BuildKit.
func (m mount) volume(owner string) string { return "build-cache-" + hash(m.identity(owner)...)[:16] }

func (m mount) identity(owner string) []string {
	if m.Files == "" {
		return []string{owner, m.ID}
	}
	return []string{owner, m.ID, m.Files}
}

// bound returns the file or directory of a bind mount.
func (b *build) bound(m mount) (*files.File, error) {
	if m.from == nil {
		return files.NewDir(0o755), nil
	}
	from, err := b.files(m.from)
	if err != nil {
		return nil, err
	}
	return from.Find(m.source)
}

func (b *build) bindDigest(m mount) (string, error) {
	f, err := b.bound(m)
	if err != nil {
		return "", err
	}
	b.hashing.Lock()
	defer b.hashing.Unlock()
	return f.Digest()
}

// mount provides the mounts of a RUN, over the files of the image, and returns the paths to omit from the layer.
func (x *executor) mount(ctx context.Context, r *run, cmd *Command) (hidden []string, err error) {
	var all []mounts.Mount
	for i, m := range r.Mounts {
		to := mounts.Mount{Path: m.Target, Size: m.Size, ReadOnly: m.ReadOnly}
		switch m.Type {
		case "cache":
			hidden = append(hidden, m.Target)
			continue
		case "bind":
			f, err := x.bound(m)
			to.From = path.Join(bindDir, strconv.Itoa(i))
			if err == nil {
				err = bring(ctx, x.machine, to.From, f)
			}
			if err != nil {
				return nil, err
			}
		case "secret":
			if to.From, err = x.secret(ctx, m, i, cmd); err != nil {
				return nil, err
			}
			if to.From == "" {
				continue
			}
		}
		all = append(all, to)
	}
	if len(all) == 0 {
		return hidden, nil
	}
	return append(hidden, bindDir), x.machine.Mount(ctx, all)
}

// secret provides a secret to the command, in memory only, and returns the file to mount, if any.
func (x *executor) secret(ctx context.Context, m mount, i int, cmd *Command) (string, error) {
	value, ok := x.opts.Secrets[m.ID]
	if !ok {
		return "", nil // not an error unless required, as in BuildKit
	}
	x.tainted = true // a process that the command leaves behind could keep the secret
	if m.Env != "" {
		if bytes.IndexByte(value, 0) >= 0 {
			return "", errors.Newf(errors.Invalid, "the secret %.100q contains a NUL byte and cannot be a variable",
				m.ID)
		}
		cmd.Env[m.Env] = string(value)
	}
	if m.Target == "" {
		return "", nil
	}
	at := path.Join(secretDir, strconv.Itoa(i))
	return at, bring(ctx, x.machine, at, files.NewFile(value, int64(m.Mode), m.UID, m.GID))
}

// bring copies a file, or a directory with everything below it, to a path in a machine.
func bring(ctx context.Context, m Machine, target string, f *files.File) error {
	dir, base := path.Split(target)
	r, w := io.Pipe()
	go func() {
		w.CloseWithError(f.WriteTar(w, base))
	}()
	err := m.CopyIn(ctx, path.Clean(dir), r)
	r.CloseWithError(err)
	return errors.Wrapf(err, "copy %s into the machine", target)
}
