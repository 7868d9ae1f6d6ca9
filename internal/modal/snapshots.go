package modal

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/modal/sealing"
)

// keepForever is the time to live of an image that does not expire.
const keepForever = -1

// snapshotIDOf makes the ID of an image with a time to live; nil and keepForever mean no expiry.
func snapshotIDOf(task, snapshot string, ttl *int64) (string, error) {
	id := digestID(imageID, task, snapshot)
	if ttl == nil || *ttl == keepForever {
		return id, nil
	}
	if *ttl < 1 || *ttl > 1<<30 {
		return "", errors.Newf(errors.Invalid, "ttl must be at least 1 second, got %d", *ttl)
	}
	return withEnd(id, time.Now().Add(time.Duration(*ttl)*time.Second)), nil
}

// target returns the box of a container's ID: the task's own, or one of its sidecars.
func (r *router) target(ctx context.Context, task, container string) (*box, error) {
	b, err := r.box(ctx, task)
	if err != nil {
		return nil, err
	}
	ref, err := b.container(ctx, container)
	if err != nil || ref == b.id {
		return b, err
	}
	return r.s.boxes.get(ctx, b.account, ref)
}

// TaskSnapshotFilesystem implements TaskCommandRouter. Repeated calls with the same ID make one snapshot.
func (r *router) TaskSnapshotFilesystem(ctx context.Context,
	req *pb.TaskSnapshotFilesystemRequest) (*pb.TaskSnapshotFilesystemResponse, error) {
	b, err := r.target(ctx, req.GetTaskId(), req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if req.HasCustomerSuppliedEncryptionKey() {
		return nil, errors.Remedy(errors.Newf(errors.Unsupported,
			"only snapshots of directories are encrypted with a key of yours"), "use snapshot_directory")
	}
	id, err := once2(ctx, r.s, b.id+" snapshot "+req.GetSnapshotId(), func() (string, error) {
		id, err := snapshotIDOf(b.id, req.GetSnapshotId(), ttlOf(req.HasTtlSeconds(), req.GetTtlSeconds()))
		if err != nil {
			return "", err
		}
		_, err = r.s.opts.Fleet.Snapshot(context.WithoutCancel(ctx), b.account, b.id,
			fleet.SnapshotOptions{Name: imagePrefix + id})
		return id, over(err)
	})
	return pb.TaskSnapshotFilesystemResponse_builder{ImageId: id}.Build(), err
}

func ttlOf(has bool, seconds int64) *int64 {
	if !has {
		return nil
	}
	return &seconds
}

// TaskSnapshotDirectory implements TaskCommandRouter.
func (r *router) TaskSnapshotDirectory(ctx context.Context,
	req *pb.TaskSnapshotDirectoryRequest) (*pb.TaskSnapshotDirectoryResponse, error) {
	b, dir, err := r.directory(ctx, req)
	if err != nil {
		return nil, err
	}
	id, err := once2(ctx, r.s, b.id+" snapshot "+req.GetSnapshotId(), func() (string, error) {
		ctx := context.WithoutCancel(ctx)
		id, err := snapshotIDOf(b.id, req.GetSnapshotId(), ttlOf(req.HasTtlSeconds(), req.GetTtlSeconds()))
		if err != nil {
			return "", err
		}
		stream, err := r.s.opts.Fleet.CopyOut(ctx, b.account, b.id, dir)
		if err != nil {
			return "", over(err)
		}
		defer stream.Close()
		return id, r.s.keepDirectory(b.account, id, req.GetCustomerSuppliedEncryptionKey(), stream)
	})
	return pb.TaskSnapshotDirectoryResponse_builder{ImageId: id}.Build(), err
}

// directory returns the sandbox or container of a request, and the path of the directory to mount or keep.
func (r *router) directory(ctx context.Context, req interface {
	GetTaskId() string
	GetContainerId() string
	GetPath() []byte
}) (*box, string, error) {
	b, err := r.target(ctx, req.GetTaskId(), req.GetContainerId())
	if err != nil {
		return nil, "", err
	}
	dir := string(req.GetPath())
	if !filepath.IsAbs(dir) || strings.ContainsRune(dir, 0) || filepath.Clean(dir) == "/" {
		return nil, "", errors.Newf(errors.Invalid,
			"Invalid path: %.200q must be an absolute path of a directory below '/'", dir)
	}
	return b, filepath.Clean(dir), nil
}

// treeEnd is the suffix of files with the content of a directory.
const treeEnd = ".tree"

func (s *Server) treePath(acc, id string) (string, error) {
	if _, err := imageName(id); err != nil {
		return "", err
	}
	return filepath.Join(s.opts.Dir, acc+"~"+id+treeEnd), nil
}

// keepDirectory stores a tar stream as the image with that ID. With a key, the content is encrypted.
func (s *Server) keepDirectory(acc, id string, key []byte, stream io.Reader) (err error) {
	name, err := s.treePath(acc, id)
	if err != nil {
		return err
	}
	f, err := os.OpenFile(name+".new", os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return errors.Wrapf(err, "keep a directory")
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), os.Remove(name+".new"))
		}
	}()
	if err := sealing.Seal(f, key, stream); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return errors.Wrapf(err, "keep a directory")
	}
	if err := f.Close(); err != nil {
		return errors.Wrapf(err, "keep a directory")
	}
	return errors.Wrapf(os.Rename(name+".new", name), "keep a directory")
}

// openDirectory opens the output of keepDirectory. NotFound if the image does not exist or has expired; Denied
// if the key is wrong.
func (s *Server) openDirectory(acc, id string, key []byte) (io.ReadCloser, error) {
	name, err := s.treePath(acc, id)
	if err != nil {
		return nil, err
	}
	if ended(id) {
		return nil, errors.Newf(errors.NotFound, "Image '%s' not found: its TTL has expired", id)
	}
	f, err := os.Open(name)
	if errors.IsNotExist(err) {
		return nil, errors.Newf(errors.NotFound, "Image '%s' not found", id)
	}
	if err != nil {
		return nil, errors.Wrapf(err, "open a directory that was kept")
	}
	plain, err := sealing.Unseal(f, key)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return struct {
		io.Reader
		io.Closer
	}{plain, f}, nil
}

// withEnd writes the expiry of an image into the last digits of its ID.
func withEnd(id string, at time.Time) string {
	digits := strconv.FormatInt(at.Unix(), 16)
	return id[:len(id)-endDigits] + strings.Repeat("0", max(0, endDigits-len(digits))) + digits
}

// ended reports whether an image has expired, according to its ID.
func ended(id string) bool {
	at, err := strconv.ParseInt(id[max(0, len(id)-endDigits):], 16, 64)
	return err == nil && at != 0 && time.Now().Unix() >= at
}

// sweepEvery is the interval of sweeps.
const sweepEvery = 10 * time.Minute

// sweep removes expired images, unnamed volumes, queues and secrets that were not used for long, and the
// secrets of mounts that have ended.
func (s *Server) sweep(ctx context.Context) {
	entries, err := os.ReadDir(s.opts.Dir)
	if err != nil {
		logf.Errorf(ctx, "look for expired records: %v", err)
	}
	for _, e := range entries {
		_, id, ok := strings.Cut(strings.TrimSuffix(e.Name(), treeEnd), "~")
		if ok && strings.HasSuffix(e.Name(), treeEnd) && ended(id) {
			_ = os.Remove(filepath.Join(s.opts.Dir, e.Name())) // best effort: the next sweep retries
		}
	}
	all, err := s.opts.Images.List(ctx)
	if err != nil {
		logf.Errorf(ctx, "look for images that have ended: %v", err)
	}
	for _, img := range all {
		for _, name := range img.Names {
			if id, ok := strings.CutPrefix(name, imagePrefix); ok && ended(id) {
				if err := s.removeImage(ctx, accountOf(img.Spec.Owner), id, img); err != nil {
					logf.Debugf(ctx, "remove an image that has ended: %v", err) // a sandbox uses it
				}
				break
			}
		}
	}
	s.sweepVolumes(ctx)
	s.sweepBuckets(ctx)
	s.secrets.Sweep(time.Now())
	s.queues.Sweep(time.Now())
	s.uploads.sweep(time.Now())
	s.sweepDicts(ctx)
}

// sweeping calls sweep regularly until ctx ends.
func (s *Server) sweeping(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			s.sweep(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// SandboxGetExitSnapshotV2 implements ModalClient.
func (c *control) SandboxGetExitSnapshotV2(ctx context.Context,
	req *pb.SandboxGetExitSnapshotRequest) (*pb.SandboxGetExitSnapshotResponse, error) {
	b, sb, err := c.s.sandbox(ctx, req.GetSandboxId())
	if err != nil {
		return nil, err
	}
	if !sb.SnapshotOnEnd {
		return nil, errors.Newf(errors.Invalid, "Exit snapshot is not enabled for this sandbox")
	}
	if b.outcome(ctx, wait(req.GetTimeout())) == nil {
		return pb.SandboxGetExitSnapshotResponse_builder{Pending: &pb.SandboxGetExitSnapshotResponse_Pending{}}.Build(),
			nil
	}
	if sb, err = c.s.opts.Fleet.Get(ctx, b.account, b.id); err != nil {
		return nil, err
	}
	if sb.SnapshotID == "" {
		return pb.SandboxGetExitSnapshotResponse_builder{Error: pb.SandboxGetExitSnapshotResponse_Error_builder{
			ErrorCode: pb.SandboxGetExitSnapshotResponse_ERROR_CODE_INTERNAL, Message: sb.SnapshotError,
		}.Build()}.Build(), nil
	}
	id := plainImage(sb.SnapshotID)
	made := pb.SandboxGetExitSnapshotResponse_Success_builder{ImageId: id}.Build()
	return pb.SandboxGetExitSnapshotResponse_builder{Success: made}.Build(), c.s.apps.Undelete(b.account, id)
}

// SandboxGetExitSnapshot implements ModalClient.
func (c *control) SandboxGetExitSnapshot(ctx context.Context,
	req *pb.SandboxGetExitSnapshotRequest) (*pb.SandboxGetExitSnapshotResponse, error) {
	return c.SandboxGetExitSnapshotV2(ctx, req)
}

// TaskReloadVolumes implements TaskCommandRouter. It commits the sandbox's writes and makes the commits of
// others visible.
func (r *router) TaskReloadVolumes(ctx context.Context,
	req *pb.TaskReloadVolumesRequest) (*pb.TaskReloadVolumesResponse, error) {
	b, err := r.target(ctx, req.GetTaskId(), req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if b.outcome(ctx, 0) != nil {
		return nil, withCode(errors.Newf(errors.Gone, "the sandbox has ended"), notFound)
	}
	if err := r.s.volumes.await(ctx); err != nil {
		return nil, err
	}
	b.mu.Lock()
	views := b.views
	b.mu.Unlock()
	for _, v := range views {
		if err := r.s.commit(context.WithoutCancel(ctx), b.account, v, true); err != nil {
			return nil, err
		}
	}
	return &pb.TaskReloadVolumesResponse{}, nil
}

// TaskSetNetworkAccess implements TaskCommandRouter.
func (r *router) TaskSetNetworkAccess(ctx context.Context,
	req *pb.TaskSetNetworkAccessRequest) (*pb.TaskSetNetworkAccessResponse, error) {
	b, err := r.box(ctx, req.GetTaskId())
	if err != nil {
		return nil, err
	}
	n, err := networkOf(req.GetNetworkAccess(), false)
	if err != nil {
		return nil, err
	}
	if n.Mode == "" {
		n.Mode = "default"
	}
	if _, err = r.s.opts.Fleet.SetNetwork(ctx, b.account, b.id, n); err == nil {
		err = b.setBlocked(ctx, req.GetNetworkAccess())
	}
	return &pb.TaskSetNetworkAccessResponse{}, over(err)
}
