package modal

import (
	"context"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/modal/transfer"
	"github.com/RelevanceAI/harvest/internal/modal/volumefiles"
)

const (
	// stagingDir is the directory for incomplete files, beside those of the volume.
	stagingDir = "modal-put"
	// Limits of one request.
	mostEntries  = 500       // in one message of a list
	mostPut      = 100_000   // files
	mostBlocks   = 200_000   // of files to put
	mostURLBytes = 64 << 20  // of an answer
	largestFile  = 100 << 40 // bytes
	emptySum     = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
)

// outside is a volume that a client reads or changes from outside of sandboxes.
type outside struct {
	s         *Server
	acc, name string
	volume    volume.Volume
	root      *os.Root
	staging   string
}

// outside opens the caller's volume with that ID. The caller closes its root.
func (s *Server) outside(ctx context.Context, id string) (*outside, error) {
	name, err := s.ids.Name(callerOf(ctx).Account, id)
	if err != nil {
		return nil, err
	}
	v, err := s.outsideOf(ctx, callerOf(ctx).Account, name)
	if errors.KindOf(err) == errors.NotFound || volume.CheckName(name) != nil {
		return nil, missing("Volume", id)
	}
	return v, err
}

func (s *Server) outsideOf(ctx context.Context, acc, name string) (*outside, error) {
	vol, err := s.provider(acc).Open(ctx, name)
	if err != nil {
		return nil, err
	}
	v := &outside{s: s, acc: acc, name: name, volume: vol}
	if d, ok := vol.(volume.Directory); ok && d.Notes() != "" {
		v.staging = filepath.Join(d.Notes(), stagingDir)
	}
	v.root, err = openVolume(ctx, s.provider(acc), name)
	return v, err
}

// change calls do while no sandbox commits to the volume.
func (v *outside) change(do func() error) error {
	l := v.s.volumes.lock(v.acc, v.name)
	l.Lock()
	defer l.Unlock()
	return do()
}

// put writes files to the volume.
func (v *outside) put(ctx context.Context, files []volumefiles.File, overwrite bool) error {
	b, err := volumefiles.Stage(ctx, v.staging, files)
	if err != nil {
		return err
	}
	err = v.change(func() error { return b.Commit(ctx, v.volume, v.root, overwrite) })
	if errors.KindOf(err) == errors.Conflict {
		err = withCode(err, alreadyExists)
	}
	return errors.Join(err, b.Discard())
}

// sweepStaging removes files that an earlier server has not put into their volumes.
func (s *Server) sweepStaging(ctx context.Context) {
	all, err := s.opts.Volumes.List(ctx)
	if err != nil {
		return // the next start tries again
	}
	for _, info := range all {
		v, err := s.opts.Volumes.Open(ctx, info.Name)
		if d, ok := v.(volume.Directory); err == nil && ok && d.Notes() != "" {
			_ = os.RemoveAll(filepath.Join(d.Notes(), stagingDir)) // the next start tries again
		}
	}
}

// VolumePutFiles implements ModalClient. The content of the files was uploaded with MountPutFile.
func (c *control) VolumePutFiles(ctx context.Context, req *pb.VolumePutFilesRequest) (*emptypb.Empty, error) {
	v, err := c.s.outside(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer v.root.Close()
	if n := len(req.GetFiles()); n > mostPut {
		return nil, errors.Newf(errors.Exhausted, "the request has %d files, more than the maximum of %d", n, mostPut)
	}
	var files []volumefiles.File
	store := c.s.uploads.blobs
	for _, f := range req.GetFiles() {
		size, err := store.Size(v.acc, f.GetSha256Hex())
		if err != nil {
			return nil, err
		}
		files = append(files, volumefiles.File{Path: f.GetFilename(), Mode: f.GetMode(), Size: size,
			Write: func(to *os.File) error { return store.Copy(ctx, v.acc, f.GetSha256Hex(), to) }})
	}
	if err := v.put(ctx, files, !req.GetDisallowOverwriteExistingFiles()); err != nil {
		return nil, err
	}
	for _, f := range req.GetFiles() {
		store.Release(v.acc, f.GetSha256Hex())
	}
	return &emptypb.Empty{}, nil
}

// VolumePutFiles2 implements ModalClient. It returns the blocks that are missing. Once there are none, it puts the
// files.
func (c *control) VolumePutFiles2(ctx context.Context,
	req *pb.VolumePutFiles2Request) (*pb.VolumePutFiles2Response, error) {
	v, err := c.s.outside(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer v.root.Close()
	if n := len(req.GetFiles()); n > mostPut {
		return nil, errors.Newf(errors.Exhausted, "the request has %d files, more than the maximum of %d", n, mostPut)
	}
	lacks, err := c.s.missingBlocks(ctx, v.acc, req.GetFiles())
	if err != nil || len(lacks) > 0 {
		return pb.VolumePutFiles2Response_builder{MissingBlocks: lacks}.Build(), err
	}
	var files []volumefiles.File
	for _, f := range req.GetFiles() {
		files = append(files, volumefiles.File{Path: f.GetPath(), Mode: f.GetMode(), Size: int64(f.GetSize()),
			Write: func(to *os.File) error { return c.s.writeBlocks(ctx, v.acc, f, to) }})
	}
	if err := v.put(ctx, files, !req.GetDisallowOverwriteExistingFiles()); err != nil {
		return nil, err
	}
	for _, f := range req.GetFiles() {
		for _, b := range f.GetBlocks() {
			c.s.uploads.blocks.Release(v.acc, hex.EncodeToString(b.GetContentsSha256()))
		}
	}
	return &pb.VolumePutFiles2Response{}, nil
}

// missingBlocks checks files, and returns the blocks of them that were not uploaded, each once.
func (s *Server) missingBlocks(ctx context.Context, acc string,
	files []*pb.VolumePutFiles2Request_File) ([]*pb.VolumePutFiles2Response_MissingBlock, error) {
	var lacks []*pb.VolumePutFiles2Response_MissingBlock
	asked, blocks := map[string]bool{emptySum: true}, 0
	for i, f := range files {
		blocks += len(f.GetBlocks())
		if want := (f.GetSize() + transfer.BlockSize - 1) / transfer.BlockSize; f.GetSize() > largestFile ||
			want != uint64(len(f.GetBlocks())) {
			return nil, errors.Newf(errors.Invalid, "the file %.200q of %d bytes cannot have %d blocks", f.GetPath(),
				f.GetSize(), len(f.GetBlocks()))
		}
		if blocks > mostBlocks {
			return nil, errors.Remedy(errors.Newf(errors.Exhausted, "the files have more than %d blocks", mostBlocks),
				"upload fewer files at a time")
		}
		for j, b := range f.GetBlocks() {
			if len(b.GetContentsSha256()) != 32 {
				return nil, errors.Newf(errors.Invalid, "the block %d of %.200q has no SHA-256", j, f.GetPath())
			}
			sum := hex.EncodeToString(b.GetContentsSha256())
			if asked[sum] || s.uploads.blocks.Has(acc, sum) {
				continue
			}
			asked[sum] = true
			url, err := s.url(ctx, transfer.Ticket{Op: transfer.PutBlock, Sum: sum})
			if err != nil {
				return nil, err
			}
			lacks = append(lacks, pb.VolumePutFiles2Response_MissingBlock_builder{FileIndex: uint64(i),
				BlockIndex: uint64(j), PutUrl: url}.Build())
		}
	}
	return lacks, nil
}

// writeBlocks writes the blocks of a file, which lack the zeros at their ends.
func (s *Server) writeBlocks(ctx context.Context, acc string, f *pb.VolumePutFiles2Request_File, to *os.File) error {
	for i, b := range f.GetBlocks() {
		sum := hex.EncodeToString(b.GetContentsSha256())
		if sum == emptySum {
			continue
		}
		at := int64(i) * transfer.BlockSize
		size, err := s.uploads.blocks.Size(acc, sum)
		if err != nil {
			return err
		}
		if size > min(transfer.BlockSize, int64(f.GetSize())-at) {
			return errors.Newf(errors.Invalid, "block %d of %.200q exceeds its size", i, f.GetPath())
		}
		if _, err := to.Seek(at, io.SeekStart); err != nil {
			return err
		}
		if err := s.uploads.blocks.Copy(ctx, acc, sum, to); err != nil {
			return err
		}
	}
	return nil
}

// entryTypes are the protocol's types of files.
var entryTypes = map[fs.FileMode]pb.FileEntry_FileType{0: pb.FileEntry_FILE, fs.ModeDir: pb.FileEntry_DIRECTORY,
	fs.ModeSymlink: pb.FileEntry_SYMLINK, fs.ModeNamedPipe: pb.FileEntry_FIFO, fs.ModeSocket: pb.FileEntry_SOCKET}

// listFiles sends the entries of a directory in messages of at most mostEntries.
func (s *Server) listFiles(ctx context.Context, id, path string, recursive bool, most uint32,
	send func([]*pb.FileEntry) error) error {
	v, err := s.outside(ctx, id)
	if err != nil {
		return err
	}
	defer v.root.Close()
	var batch []*pb.FileEntry
	err = volumefiles.List(ctx, v.root, path, recursive, int(most), func(e volumefiles.Entry) error {
		entry := pb.FileEntry_builder{Path: e.Path, Type: entryTypes[e.Mode.Type()], Mtime: uint64(max(0,
			e.Modified.Unix()))}
		if e.Mode.IsRegular() {
			entry.Size = uint64(e.Size)
		}
		if batch = append(batch, entry.Build()); len(batch) < mostEntries {
			return nil
		}
		full := batch
		batch = nil
		return send(full)
	})
	if err != nil || len(batch) == 0 {
		return err
	}
	return send(batch)
}

// VolumeListFiles implements ModalClient.
func (c *control) VolumeListFiles(req *pb.VolumeListFilesRequest,
	stream grpc.ServerStreamingServer[pb.VolumeListFilesResponse]) error {
	return c.s.listFiles(stream.Context(), req.GetVolumeId(), req.GetPath(), req.GetRecursive(), req.GetMaxEntries(),
		func(e []*pb.FileEntry) error {
			return stream.Send(pb.VolumeListFilesResponse_builder{Entries: e}.Build())
		})
}

// VolumeListFiles2 implements ModalClient.
func (c *control) VolumeListFiles2(req *pb.VolumeListFiles2Request,
	stream grpc.ServerStreamingServer[pb.VolumeListFiles2Response]) error {
	return c.s.listFiles(stream.Context(), req.GetVolumeId(), req.GetPath(), req.GetRecursive(), req.GetMaxEntries(),
		func(e []*pb.FileEntry) error {
			return stream.Send(pb.VolumeListFiles2Response_builder{Entries: e}.Build())
		})
}

// span is the part of a file that a client requests: length 0 means the rest.
func span(size int64, start, length uint64) (from, n int64) {
	from = int64(min(start, uint64(size)))
	n = size - from
	if length > 0 {
		n = int64(min(length, uint64(n)))
	}
	return from, n
}

// VolumeGetFile2 implements ModalClient. It returns a URL for each block of the requested part.
func (c *control) VolumeGetFile2(ctx context.Context, req *pb.VolumeGetFile2Request) (*pb.VolumeGetFile2Response,
	error) {
	v, err := c.s.outside(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer v.root.Close()
	size, stamp, err := volumefiles.Stat(v.root, req.GetPath())
	if err != nil {
		return nil, err
	}
	from, n := span(size, req.GetStart(), req.GetLen())
	var urls []string
	total := 0
	for at := from; at < from+n; {
		end := min(from+n, (at/transfer.BlockSize+1)*transfer.BlockSize)
		url, err := c.s.url(ctx, transfer.Ticket{Op: transfer.GetRange, Volume: v.name, Path: req.GetPath(),
			Stamp:  stamp,
			Offset: at, Length: end - at})
		if err != nil {
			return nil, err
		}
		if total += len(url); total > mostURLBytes {
			return nil, errors.Remedy(errors.Newf(errors.Exhausted, "%.200q is too large to be read at once",
				req.GetPath()),
				"read it in parts, or with: harvest volume cp")
		}
		urls = append(urls, url)
		at = end
	}
	return pb.VolumeGetFile2Response_builder{GetUrls: urls, Size: uint64(size), Start: uint64(from),
		Len: uint64(n)}.Build(), nil
}

// rangeOf reads the part of a file that a URL names.
func (s *Server) rangeOf(ctx context.Context, t transfer.Ticket) ([]byte, error) {
	v, err := s.outsideOf(ctx, t.Account, t.Volume)
	if err != nil {
		return nil, err
	}
	defer v.root.Close()
	return volumefiles.Read(v.root, t.Path, t.Stamp, t.Offset, t.Length)
}

// VolumeGetFile implements ModalClient. Large parts are returned as a blob.
func (c *control) VolumeGetFile(ctx context.Context, req *pb.VolumeGetFileRequest) (*pb.VolumeGetFileResponse, error) {
	v, err := c.s.outside(ctx, req.GetVolumeId())
	if err != nil {
		return nil, err
	}
	defer v.root.Close()
	size, stamp, err := volumefiles.Stat(v.root, req.GetPath())
	if err != nil {
		return nil, err
	}
	from, n := span(size, req.GetStart(), req.GetLen())
	answer := pb.VolumeGetFileResponse_builder{Size: uint64(size), Start: uint64(from), Len: uint64(n)}
	if n <= mostInline {
		answer.Data, err = volumefiles.Read(v.root, req.GetPath(), stamp, from, n)
		return answer.Build(), err
	}
	sum, err := c.s.uploads.blobs.Add(ctx, v.acc, &volumefiles.Reader{Root: v.root, Path: req.GetPath(), Stamp: stamp,
		Offset: from, Left: n})
	if err != nil {
		return nil, err
	}
	id := blobID + sum
	answer.DataBlobId = &id
	return answer.Build(), nil
}

func (c *control) removeFile(ctx context.Context, id, path string, recursive bool) (*emptypb.Empty, error) {
	v, err := c.s.outside(ctx, id)
	if err != nil {
		return nil, err
	}
	defer v.root.Close()
	return &emptypb.Empty{}, v.change(func() error { return volumefiles.Remove(v.root, path, recursive) })
}

// VolumeRemoveFile implements ModalClient.
func (c *control) VolumeRemoveFile(ctx context.Context, req *pb.VolumeRemoveFileRequest) (*emptypb.Empty, error) {
	return c.removeFile(ctx, req.GetVolumeId(), req.GetPath(), req.GetRecursive())
}

// VolumeRemoveFile2 implements ModalClient.
func (c *control) VolumeRemoveFile2(ctx context.Context, req *pb.VolumeRemoveFile2Request) (*emptypb.Empty, error) {
	return c.removeFile(ctx, req.GetVolumeId(), req.GetPath(), req.GetRecursive())
}

func (c *control) copyFiles(ctx context.Context, id string, from []string, to string,
	recursive bool) (*emptypb.Empty, error) {
	v, err := c.s.outside(ctx, id)
	if err != nil {
		return nil, err
	}
	defer v.root.Close()
	return &emptypb.Empty{}, v.change(func() error {
		return volumefiles.Copy(ctx, v.volume, v.root, v.staging, from, to, recursive)
	})
}

// VolumeCopyFiles implements ModalClient.
func (c *control) VolumeCopyFiles(ctx context.Context, req *pb.VolumeCopyFilesRequest) (*emptypb.Empty, error) {
	return c.copyFiles(ctx, req.GetVolumeId(), req.GetSrcPaths(), req.GetDstPath(), req.GetRecursive())
}

// VolumeCopyFiles2 implements ModalClient.
func (c *control) VolumeCopyFiles2(ctx context.Context, req *pb.VolumeCopyFiles2Request) (*emptypb.Empty, error) {
	return c.copyFiles(ctx, req.GetVolumeId(), req.GetSrcPaths(), req.GetDstPath(), req.GetRecursive())
}
