package dockerfile

import (
	"bytes"
	"context"
	"io"
	"path"
	"strconv"
	"strings"

	"github.com/moby/buildkit/solver/pb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/files"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/mounts"
	"github.com/RelevanceAI/harvest/internal/image/dockerfile/plan"
)

const (
	// secretDir is the directory, in the machine's memory, of the secrets of a RUN.
	secretDir = "/dev/shm/.harvest-secrets"
	// bindDir is the directory, on the machine's disk, of the files of bind mounts.
	bindDir = "/.harvest-bind"
	// cacheDir is the directory of the volumes of cache mounts. A machine lasts for several RUNs, and a mount for one.
	cacheDir = "/.harvest-caches"
)

// hidden reports whether a path of a machine is not one of the image.
var hidden = files.Below([]string{bindDir, cacheDir})

// cachePath is the path of a machine's volume.
func cachePath(i int) string { return path.Join(cacheDir, strconv.Itoa(i)) }

// mount is a --mount of a RUN.
type mount struct {
	*pb.Mount
	from   *plan.Vertex // of a bind mount, or of a cache that begins with files; nil: an empty directory
	source string       // the path in it
	files  string       // digest of the directory with which a cache begins; "": none
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
		return errors.Newf(errors.Invalid, "the cache mount at %s: its source %s is not a directory", m.Dest,
			m.source)
	}
	m.files, err = x.bindDigest(*m)
	return err
}

// volume returns the name of the volume of a cache mount. It differs for each account, so that none sees the files of
// another one, and for the directory with which the cache begins, as in BuildKit.
func (m mount) volume(owner string) string { return "build-cache-" + hash(m.identity(owner)...)[:16] }

func (m mount) identity(owner string) []string {
	if m.files == "" {
		return []string{owner, m.CacheOpt.ID}
	}
	return []string{owner, m.CacheOpt.ID, m.files}
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

// mount provides the mounts of a RUN, over the files of the image.
func (x *executor) mount(ctx context.Context, r *run, cmd *Command) error {
	for _, s := range r.Secretenv {
		value, ok := x.opts.Secrets[s.ID]
		if ok && bytes.IndexByte(value, 0) >= 0 {
			return errors.Newf(errors.Invalid,
				"the secret %.100q contains a NUL byte and cannot be a variable", s.ID)
		}
		if ok {
			cmd.Env[s.Name], x.tainted = string(value), true
		}
	}
	var all []mounts.Mount
	caches := 0
	for i, m := range r.mounts {
		at, err := x.target(m)
		if err != nil {
			return err
		}
		to := mounts.Mount{Path: at, Size: m.TmpfsOpt.GetSize(), ReadOnly: m.Readonly}
		var f *files.File
		switch m.MountType {
		case pb.MountType_CACHE:
			to.From = cachePath(caches)
			caches++
		case pb.MountType_BIND:
			to.From = path.Join(bindDir, strconv.Itoa(i))
			if f, err = x.bound(m); err != nil {
				return err
			}
		case pb.MountType_SECRET:
			s := m.SecretOpt
			value, ok := x.opts.Secrets[s.ID]
			if !ok {
				continue // not an error unless required, as in BuildKit
			}
			x.tainted = true // a process that the command leaves behind could keep the secret
			to.From = path.Join(secretDir, strconv.Itoa(i))
			f = files.NewFile(value, int64(s.Mode&0o7777), int(s.Uid), int(s.Gid))
		}
		if f != nil {
			if err := bring(ctx, x.machine, to.From, f); err != nil {
				return err
			}
		}
		all = append(all, to)
	}
	if len(all) == 0 {
		return nil
	}
	return x.machine.Mount(ctx, all)
}

// target returns the path at which a mount appears, without the image's symbolic links.
func (x *executor) target(m mount) (string, error) {
	for _, own := range []string{"/dev", "/proc", "/sys"} {
		if strings.HasPrefix(m.Dest, own+"/") {
			return m.Dest, nil // the machine's, whatever the image has there
		}
	}
	tree, err := x.tree()
	if err != nil {
		return "", err
	}
	_, at, err := tree.Lookup(m.Dest, true)
	return at, errors.Wrapf(err, "the mount at %s", m.Dest)
}

// bring copies a file, or a directory with everything below it, to a path in a machine.
func bring(ctx context.Context, m Machine, target string, f *files.File) error {
	dir, base := path.Split(target)
	err := piped(func(w io.Writer) error { return f.WriteTar(w, base) },
		func(r io.Reader) error { return m.CopyIn(ctx, path.Clean(dir), r) })
	return errors.Wrapf(err, "copy %s into the machine", target)
}
