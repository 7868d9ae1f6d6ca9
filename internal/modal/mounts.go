package modal

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"path"
	"slices"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/tarfs"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// hiddenMounts is the directory in a sandbox that keeps the files hidden by a mounted image until it is
// unmounted.
const hiddenMounts = "/.modal-mounts"

// mounted is an image mounted in a running sandbox: a copy of its files in place of the directory's own.
type mounted struct {
	Path   string `json:"path"`
	Hidden string `json:"hidden,omitempty"` // where the directory's own files are kept; "" if it did not exist
	Gone   bool   `json:"gone,omitempty"`   // it was unmounted
}

// TaskMountDirectory implements TaskCommandRouter.
func (r *router) TaskMountDirectory(ctx context.Context, req *pb.TaskMountDirectoryRequest) (*emptypb.Empty, error) {
	b, dir, err := r.directory(ctx, req)
	if err != nil {
		return nil, err
	}
	ctx = context.WithoutCancel(ctx)
	var files io.ReadCloser
	if id := req.GetImageId(); id != "" {
		if files, err = r.s.filesOf(ctx, b.account, id, req.GetCustomerSuppliedEncryptionKey()); err != nil {
			return nil, err
		}
		defer files.Close()
	}
	b.mounting.Lock()
	defer b.mounting.Unlock()
	if err := b.hide(ctx, dir); err != nil {
		return nil, over(err)
	}
	if files != nil {
		if err := r.s.opts.Fleet.CopyIn(ctx, b.account, b.id, dir, files); err != nil {
			return nil, over(errors.Join(err, b.reveal(ctx, dir)))
		}
	}
	return &emptypb.Empty{}, nil
}

// hide moves dir to hiddenMounts and puts an empty directory in its place. It removes an image that is mounted
// there.
func (b *box) hide(ctx context.Context, dir string) error {
	if _, again := b.mounts[dir]; again {
		if _, err := b.change(ctx, tarfs.Request{Op: tarfs.OpRemove, Path: dir, Recursive: true}); err != nil &&
			errors.KindOf(err) != errors.NotFound {
			return err
		}
	} else {
		m := mounted{Path: dir}
		_, err := b.change(ctx, tarfs.Request{Op: tarfs.OpStat, Path: dir, Follow: true})
		switch {
		case err == nil:
			m.Hidden = hiddenMounts + "/" + hex.EncodeToString([]byte(dir))
			if _, err := b.change(ctx, tarfs.Request{Op: tarfs.OpMkdir, Path: hiddenMounts,
				Parents: true}); err != nil {
				return err
			}
			if _, err := b.change(ctx, tarfs.Request{Op: tarfs.OpMove, Path: dir, To: m.Hidden}); err != nil {
				return err
			}
		case errors.KindOf(err) != errors.NotFound:
			return err
		}
		b.mounts[dir] = m.Hidden
		b.write(ctx, note{Mount: &m})
	}
	_, err := b.change(ctx, tarfs.Request{Op: tarfs.OpMkdir, Path: dir, Parents: true})
	return err
}

// reveal is the inverse of hide.
func (b *box) reveal(ctx context.Context, dir string) error {
	hidden, ok := b.mounts[dir]
	if !ok {
		return errors.Newf(errors.NotFound, "there is no image mounted at %.200q", dir)
	}
	if _, err := b.change(ctx, tarfs.Request{Op: tarfs.OpRemove, Path: dir, Recursive: true}); err != nil &&
		errors.KindOf(err) != errors.NotFound {
		return err
	}
	if hidden != "" {
		if _, err := b.change(ctx, tarfs.Request{Op: tarfs.OpMove, Path: hidden, To: dir}); err != nil {
			return err
		}
	}
	delete(b.mounts, dir)
	b.write(ctx, note{Mount: &mounted{Path: dir, Gone: true}})
	return nil
}

func (b *box) change(ctx context.Context, req tarfs.Request) ([]byte, error) {
	w := &fileWork{b: b, ref: b.id}
	return w.ask(ctx, req)
}

// TaskUnmountDirectory implements TaskCommandRouter.
func (r *router) TaskUnmountDirectory(ctx context.Context,
	req *pb.TaskUnmountDirectoryRequest) (*emptypb.Empty, error) {
	b, dir, err := r.directory(ctx, req)
	if err != nil {
		return nil, err
	}
	b.mounting.Lock()
	defer b.mounting.Unlock()
	return &emptypb.Empty{}, over(b.reveal(context.WithoutCancel(ctx), dir))
}

// filesOf returns a tar stream of the files of an image to mount: the kept directory, or all files of the
// image. The latter are read in a temporary sandbox of the image, which belongs to no client.
func (s *Server) filesOf(ctx context.Context, acc, id string, key []byte) (io.ReadCloser, error) {
	kept, err := s.openDirectory(acc, id, key)
	if errors.KindOf(err) != errors.NotFound {
		return kept, err
	}
	img, err := s.findImage(ctx, acc, id)
	if err != nil {
		return nil, err
	}
	sb, err := s.opts.Fleet.Create(ctx, acc, spec.Request{Image: img.ID, Network: spec.Network{Mode: "none"},
		TimeoutSeconds: 600, Tags: map[string]string{ownTag + "reads": id}})
	if err != nil {
		return nil, err
	}
	end := func() {
		if err := s.opts.Fleet.Destroy(ctx, acc, sb.ID); err != nil {
			logf.Errorf(ctx, "end the sandbox in which an image was read: %v", err)
		}
	}
	stream, to := io.Pipe()
	s.tasks.Go(func() {
		to.CloseWithError(s.wholeTree(ctx, acc, sb.ID, to))
		end()
	})
	return stream, nil
}

// kernelTrees are in every sandbox but belong to no image.
var kernelTrees = []string{"proc", "sys", "dev", path.Base(hiddenMounts)}

// wholeTree writes the files of a sandbox as a tar stream, tree by tree. It leaves out the kernel's trees,
// which have no end.
func (s *Server) wholeTree(ctx context.Context, acc, ref string, w io.Writer) error {
	var out bytes.Buffer
	if err := s.opts.Fleet.Files(ctx, acc, ref, tarfs.Request{Op: tarfs.OpList, Path: "/"}, &out); err != nil {
		return err
	}
	to := tar.NewWriter(w)
	lines := json.NewDecoder(&out)
	for lines.More() {
		var e tarfs.Entry
		if err := lines.Decode(&e); err != nil {
			return errors.Wrapf(err, "read a list of files")
		}
		if slices.Contains(kernelTrees, e.Name) {
			continue
		}
		if e.Link != "" {
			if err := to.WriteHeader(&tar.Header{Name: e.Name, Typeflag: tar.TypeSymlink, Linkname: e.Link, Mode: 0o777,
				Uid: e.UID, Gid: e.GID, ModTime: e.Modified}); err != nil {
				return err
			}
			continue
		}
		if err := s.oneTree(ctx, acc, ref, e, to); err != nil {
			return err
		}
	}
	return to.Close()
}

func (s *Server) oneTree(ctx context.Context, acc, ref string, e tarfs.Entry, to *tar.Writer) error {
	if isDir(e) {
		if err := to.WriteHeader(&tar.Header{Name: e.Name + "/", Typeflag: tar.TypeDir, Mode: int64(e.Mode & 0o7777),
			Uid: e.UID, Gid: e.GID, ModTime: e.Modified}); err != nil {
			return err
		}
	}
	stream, err := s.opts.Fleet.CopyOut(ctx, acc, ref, "/"+e.Name)
	if err != nil {
		return err
	}
	defer stream.Close()
	from := tar.NewReader(stream)
	for {
		hdr, err := from.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return errors.Wrapf(err, "read the files of an image")
		}
		if isDir(e) {
			if hdr.Name = path.Join(e.Name, hdr.Name); hdr.Typeflag == tar.TypeLink {
				hdr.Linkname = path.Join(e.Name, hdr.Linkname)
			}
		}
		if err := to.WriteHeader(hdr); err != nil {
			return err
		}
		if _, err := io.Copy(to, from); err != nil {
			return err
		}
	}
}
