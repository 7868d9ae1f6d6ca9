package modal

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/modal/blobs"
	"github.com/RelevanceAI/harvest/internal/modal/localfiles"
	"github.com/RelevanceAI/harvest/internal/modal/transfer"
)

// Directories of uploads, and what their IDs begin with.
const (
	blobsDir  = "blobs"
	blocksDir = "blocks" // of files for volumes
	mountsDir = "mounts"
	blobID    = "bl-"
	mountID   = "mo-"
	// standalone begins the names of mounts with a Python that runs anywhere, which Modal offers to all users.
	standalone = "python-build-standalone."
	// mostInline is how much content of a file an answer contains.
	mostInline     = 4 << 20
	transferMethod = "transfer/" // method in the audit log for a request of a URL
)

// uploads holds the files and the lists of files that clients upload.
type uploads struct {
	blobs  *blobs.Store
	blocks *blobs.Store
	mounts *localfiles.Store
	urls   *transfer.Server
}

func (s *Server) openUploads() (err error) {
	u := &s.uploads
	if u.blobs, err = blobs.Open(filepath.Join(s.opts.Dir, blobsDir), blobs.Limits{}); err != nil {
		return err
	}
	if u.blocks, err = blobs.Open(filepath.Join(s.opts.Dir, blocksDir),
		blobs.Limits{Life: 24 * time.Hour}); err != nil {
		return err
	}
	if u.mounts, err = localfiles.Open(filepath.Join(s.opts.Dir, mountsDir), u.blobs); err != nil {
		return err
	}
	u.urls = transfer.New(transfer.Options{Key: s.key, Blobs: u.blobs, Blocks: u.blocks, Range: s.rangeOf,
		Admit: func(ctx context.Context, acc, key string) (context.Context, context.CancelFunc, error) {
			return s.whilePresent(ctx, account.Principal{Account: acc, KeyID: key})
		},
		Done: func(ctx context.Context, t transfer.Ticket, address string, err error) {
			kind := errors.KindOf(err)
			if s.opts.Audit != nil && (kind == errors.Unauthenticated || kind == errors.Denied ||
				err == nil && t.Op == transfer.Complete) {
				s.opts.Audit(ctx, Call{Account: t.Account, KeyID: t.Key, Address: address,
					Method: transferMethod + t.Op,
					Code:   codeOr(err, kind)})
			}
		}})
	return nil
}

func codeOr(err error, kind errors.Kind) codes.Code {
	if err == nil {
		return codes.OK
	}
	return codeOf[kind]
}

func (u *uploads) sweep(now time.Time) {
	u.blobs.Sweep(now, u.mounts.Sweep(now))
	u.blocks.Sweep(now, func(string, string) bool { return false })
}

// serveTransfers serves the URLs of uploads and downloads at l until the server ends.
func (s *Server) serveTransfers(l net.Listener) {
	server := &http.Server{Handler: s.uploads.urls, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 64 << 10, BaseContext: func(net.Listener) context.Context { return s.ctx }}
	context.AfterFunc(s.ctx, func() { _ = server.Close() })
	_ = server.Serve(l) // the listener's error is that of the other half, too
}

// base returns the address of URLs for a client: the one that the client calls.
func (s *Server) base(ctx context.Context) string {
	url := s.routerURL(ctx)
	host := strings.TrimPrefix(url, "https://")
	name, _, err := net.SplitHostPort(host)
	if ip := net.ParseIP(name); err == nil && s.opts.URL == "" && (name == "localhost" || ip != nil &&
		ip.IsLoopback()) {
		return "http://" + strings.TrimPrefix(host, "http://")
	}
	return url
}

// url returns a URL for the caller.
func (s *Server) url(ctx context.Context, t transfer.Ticket) (string, error) {
	t.Account, t.Key = callerOf(ctx).Account, callerOf(ctx).KeyID
	return s.uploads.urls.URL(s.base(ctx), t)
}

// BlobCreate implements ModalClient. Uploads always have parts: Python's SDK accepts URLs of a single upload only for
// known hosts.
func (c *control) BlobCreate(ctx context.Context, req *pb.BlobCreateRequest) (*pb.BlobCreateResponse, error) {
	raw, err := base64.StdEncoding.DecodeString(req.GetContentSha256Base64())
	if err != nil || len(raw) != 32 {
		return nil, errors.Newf(errors.Invalid, "%.100q is not the SHA-256 of a blob", req.GetContentSha256Base64())
	}
	sum := hex.EncodeToString(raw)
	name, up, err := c.s.uploads.blobs.Begin(callerOf(ctx).Account, sum, req.GetContentLength())
	if err != nil {
		return nil, err
	}
	parts := pb.MultiPartUpload_builder{PartLength: up.Part}
	for part := range up.Parts() {
		url, err := c.s.url(ctx, transfer.Ticket{Op: transfer.PutPart, Upload: name, Part: part + 1})
		if err != nil {
			return nil, err
		}
		parts.UploadUrls = append(parts.UploadUrls, url)
	}
	if parts.CompletionUrl, err = c.s.url(ctx, transfer.Ticket{Op: transfer.Complete, Upload: name,
		Sum: sum}); err != nil {
		return nil, err
	}
	whole := parts.Build()
	return pb.BlobCreateResponse_builder{BlobId: blobID + sum, Multipart: whole, BlobIds: []string{blobID + sum},
		Multiparts: pb.MultiPartUploadList_builder{Items: []*pb.MultiPartUpload{whole}}.Build()}.Build(), nil
}

// BlobGet implements ModalClient.
func (c *control) BlobGet(ctx context.Context, req *pb.BlobGetRequest) (*pb.BlobGetResponse, error) {
	sum, ok := strings.CutPrefix(req.GetBlobId(), blobID)
	if !ok || !c.s.uploads.blobs.Has(callerOf(ctx).Account, sum) {
		return nil, missing("Blob", req.GetBlobId())
	}
	url, err := c.s.url(ctx, transfer.Ticket{Op: transfer.GetBlob, Sum: sum})
	return pb.BlobGetResponse_builder{DownloadUrl: url}.Build(), err
}

// MountPutFile implements ModalClient. Without content it only asks whether the file exists.
func (c *control) MountPutFile(ctx context.Context, req *pb.MountPutFileRequest) (*pb.MountPutFileResponse, error) {
	store, acc, sum := c.s.uploads.blobs, callerOf(ctx).Account, req.GetSha256Hex()
	if raw, err := hex.DecodeString(sum); err != nil || len(raw) != 32 || strings.ToLower(sum) != sum {
		return nil, errors.Newf(errors.Invalid, "%.100q is not the SHA-256 of a file", sum)
	}
	switch {
	case req.HasData():
		if err := store.Put(ctx, acc, sum, maxMessage, strings.NewReader(string(req.GetData()))); err != nil {
			return nil, err
		}
	case req.HasDataBlobId() && req.GetDataBlobId() != blobID+sum:
		return nil, errors.Newf(errors.Invalid, "the blob '%.100s' is not the file with the SHA-256 %s",
			req.GetDataBlobId(), sum)
	case req.HasDataBlobId() && !store.Has(acc, sum):
		return nil, missing("Blob", req.GetDataBlobId())
	}
	return pb.MountPutFileResponse_builder{Exists: store.Has(acc, sum), CheckedAt: timestamppb.Now()}.Build(), nil
}

// mostHashes is how many files one request may ask for.
const mostHashes = 100_000

// MountBatchedCheckExistence implements ModalClient.
func (c *control) MountBatchedCheckExistence(ctx context.Context,
	req *pb.MountBatchedCheckExistenceRequest) (*pb.MountBatchedCheckExistenceResponse, error) {
	if n := len(req.GetSha256HexHashes()); n > mostHashes {
		return nil, errors.Newf(errors.Exhausted, "the request names %d files, more than the maximum of %d", n,
			mostHashes)
	}
	var lacks []string
	for _, sum := range req.GetSha256HexHashes() {
		if !c.s.uploads.blobs.Has(callerOf(ctx).Account, sum) {
			lacks = append(lacks, sum)
		}
	}
	return pb.MountBatchedCheckExistenceResponse_builder{MissingSha256HexHashes: lacks,
		CheckedAt: timestamppb.Now()}.Build(), nil
}

// MountGetOrCreate implements ModalClient.
func (c *control) MountGetOrCreate(ctx context.Context,
	req *pb.MountGetOrCreateRequest) (*pb.MountGetOrCreateResponse, error) {
	mounts, acc := c.s.uploads.mounts, callerOf(ctx).Account
	if err := checkEnv(req.GetEnvironmentName()); err != nil {
		return nil, err
	}
	name := req.GetDeploymentName()
	if name != "" {
		if err := checkName("Mount", name); err != nil {
			return nil, err
		}
	}
	scopedName := scoped(req.GetEnvironmentName(), name)
	if req.GetNamespace() == pb.DeploymentNamespace_DEPLOYMENT_NAMESPACE_GLOBAL {
		scopedName = name
	}
	var m localfiles.Mount
	var err error
	if !creates(req.GetObjectCreationType()) {
		if m, err = mounts.Named(acc, scopedName); errors.KindOf(err) == errors.NotFound {
			err = noMount(name)
		}
	} else {
		var files []localfiles.File
		for _, f := range req.GetFiles() {
			files = append(files, localfiles.File{Path: f.GetFilename(), Sum: f.GetSha256Hex(), Mode: f.GetMode()})
		}
		m, err = mounts.Create(acc, files)
		if err == nil && name != "" {
			fresh := req.GetObjectCreationType() ==
				pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS
			if err = mounts.SetName(acc, scopedName, m.ID, fresh); errors.KindOf(err) == errors.Conflict {
				err = withCode(err, alreadyExists)
			}
		}
	}
	if err != nil {
		return nil, err
	}
	return pb.MountGetOrCreateResponse_builder{MountId: mountID + m.ID,
		HandleMetadata: pb.MountHandleMetadata_builder{ContentChecksumSha256Hex: m.Sum}.Build()}.Build(), nil
}

// noMount is the error for a name that no mount has.
func noMount(name string) error {
	if strings.HasPrefix(name, standalone) {
		err := errors.Newf(errors.NotFound, "add_python: this server has no standalone Python (Mount '%.100s')", name)
		return errors.Remedy(err, "use an image with Python, such as python:3.12-slim, install it with apt_install, "+
			"or deploy the mount once, as docs/modal.md describes")
	}
	return errors.Newf(errors.NotFound, "Mount '%.100s' not found", name)
}

// mount returns the mount with a client's ID.
func (s *Server) mount(acc, id string) (localfiles.Mount, error) {
	rest, ok := strings.CutPrefix(id, mountID)
	if !ok {
		return localfiles.Mount{}, missing("Mount", id)
	}
	m, err := s.uploads.mounts.Get(acc, rest)
	if errors.KindOf(err) == errors.NotFound {
		err = errors.Remedy(missing("Mount", id), "run the program again: it uploads its files")
	}
	return m, err
}

// localFiles returns the mounts of a definition.
func (s *Server) localFiles(acc string, def *pb.Sandbox) ([]localfiles.Mount, error) {
	var all []localfiles.Mount
	for _, id := range def.GetMountIds() {
		m, err := s.mount(acc, id)
		if err != nil {
			return nil, err
		}
		all = append(all, m)
	}
	return all, nil
}

// addLocalFiles copies the files of mounts into a new sandbox.
func (s *Server) addLocalFiles(ctx context.Context, acc, box string, mounts []localfiles.Mount) error {
	for _, m := range mounts {
		if len(m.Files) == 0 {
			continue
		}
		files := s.uploads.mounts.Tar(ctx, acc, m)
		err := s.opts.Fleet.CopyIn(ctx, acc, box, "/", files)
		if err := errors.Join(err, files.Close()); err != nil {
			return errors.Wrapf(err, "add local files to a sandbox")
		}
	}
	return nil
}
