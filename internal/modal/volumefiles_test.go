package modal_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// block is the size of the blocks of volumes.
const block = 8 << 20

// volume makes a volume and returns its ID.
func (w *world) volume(name string, version pb.VolumeFsVersion) string {
	w.t.Helper()
	made, err := w.control.VolumeGetOrCreate(w.ctx(), pb.VolumeGetOrCreateRequest_builder{DeploymentName: name,
		Version: version, ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	return made.GetVolumeId()
}

// upload1 puts files into a volume of version 1 as batch_upload does.
func (w *world) upload1(id string, files map[string]string, force bool) error {
	w.t.Helper()
	var list []*pb.MountFile
	for name, text := range files {
		w.putFile(text)
		mode := uint32(0o640)
		list = append(list, pb.MountFile_builder{Filename: name, Sha256Hex: sumOf(text), Mode: &mode}.Build())
	}
	return second(w.control.VolumePutFiles(w.ctx(), pb.VolumePutFilesRequest_builder{VolumeId: id, Files: list,
		DisallowOverwriteExistingFiles: !force}.Build()))
}

// upload2 puts files into a volume of version 2 as batch_upload does: it sends the blocks that the server lacks,
// without the zeros at their ends.
func (w *world) upload2(id string, files map[string]string, force bool) error {
	w.t.Helper()
	responses := map[string][]byte{}
	for range 2 {
		var list []*pb.VolumePutFiles2Request_File
		var contents [][][]byte
		for name, text := range files {
			mode := uint32(0o755)
			file := pb.VolumePutFiles2Request_File_builder{Path: name, Size: uint64(len(text)), Mode: &mode}
			var blocks [][]byte
			for rest := []byte(text); len(rest) > 0; rest = rest[min(block, len(rest)):] {
				data := bytes.TrimRight(rest[:min(block, len(rest))], "\x00")
				sum := sha256.Sum256(data)
				file.Blocks = append(file.Blocks, pb.VolumePutFiles2Request_Block_builder{ContentsSha256: sum[:],
					PutResponse: responses[string(sum[:])]}.Build())
				blocks = append(blocks, data)
			}
			list, contents = append(list, file.Build()), append(contents, blocks)
		}
		answer, err := w.control.VolumePutFiles2(w.ctx(), pb.VolumePutFiles2Request_builder{VolumeId: id, Files: list,
			DisallowOverwriteExistingFiles: !force}.Build())
		if err != nil || len(answer.GetMissingBlocks()) == 0 {
			return err
		}
		for _, m := range answer.GetMissingBlocks() {
			data := contents[m.GetFileIndex()][m.GetBlockIndex()]
			code, _, body := w.request(http.MethodPut, m.GetPutUrl(), data)
			if code != http.StatusOK {
				w.t.Fatalf("put a block: %d %s", code, body)
			}
			sum := sha256.Sum256(data)
			responses[string(sum[:])] = []byte(body)
		}
	}
	return errors.Errorf("blocks are still missing")
}

// listed returns the entries of a directory as text.
func (w *world) listedFiles(id, path string, recursive bool) (string, error) {
	w.t.Helper()
	stream, err := w.control.VolumeListFiles2(w.ctx(), pb.VolumeListFiles2Request_builder{VolumeId: id, Path: path,
		Recursive: recursive}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	var all []string
	for {
		batch, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return strings.Join(all, " "), nil
		}
		if err != nil {
			return "", err
		}
		for _, e := range batch.GetEntries() {
			text := e.GetPath()
			if e.GetType() == pb.FileEntry_DIRECTORY {
				text += "/"
			} else {
				text += fmt.Sprintf(":%d", e.GetSize())
			}
			if since := time.Now().Unix() - int64(e.GetMtime()); since < 0 || since > 3600 {
				w.t.Errorf("%s was changed %d s ago", e.GetPath(), since)
			}
			all = append(all, text)
		}
	}
}

// download reads a file as read_file does.
func (w *world) download(id, path string, start, length uint64) (string, error) {
	w.t.Helper()
	answer, err := w.control.VolumeGetFile2(w.ctx(), pb.VolumeGetFile2Request_builder{VolumeId: id, Path: path,
		Start: start, Len: length, ClientPadsBlocks: true}.Build())
	if err != nil {
		return "", err
	}
	var all strings.Builder
	for _, url := range answer.GetGetUrls() {
		code, _, body := w.request(http.MethodGet, url, nil)
		if code != http.StatusOK {
			return "", errors.Errorf("%d %s", code, body)
		}
		all.WriteString(body)
	}
	if uint64(all.Len()) != answer.GetLen() {
		w.t.Errorf("%s: %d bytes came, %d were announced", path, all.Len(), answer.GetLen())
	}
	return all.String(), nil
}

// TestVolumeFilesFromOutside checks what Python's SDK does with the files of a volume without a sandbox: batch_upload,
// listdir, iterdir, read_file, copy_files and remove_file, for both versions of volumes, and that sandboxes see it.
//
// mission: C1
func TestVolumeFilesFromOutside(t *testing.T) {
	w := newWorld(t)
	large := strings.Repeat("0123456789abcdef", block/16+1) + strings.Repeat("\x00", block) + "end"
	for version, upload := range map[pb.VolumeFsVersion]func(string, map[string]string, bool) error{
		pb.VolumeFsVersion_VOLUME_FS_VERSION_V1: w.upload1, pb.VolumeFsVersion_VOLUME_FS_VERSION_V2: w.upload2,
	} {
		id := w.volume(fmt.Sprintf("data%d", version), version)
		if got, err := w.listedFiles(id, "/", true); err != nil || got != "" {
			t.Errorf("an empty volume: %q, %v", got, err)
		}
		if err := upload(id, map[string]string{"/a.txt": "one", "dir/b.txt": "two", "/dir/sub/large": large,
			"/empty": ""}, false); err != nil {
			t.Fatalf("version %d: %v", version, err)
		}
		for path, want := range map[string]string{
			"/": "a.txt:3 dir/ empty:0", "": "a.txt:3 dir/ empty:0", "dir": "dir/b.txt:3 dir/sub/", "/a.txt": "a.txt:3",
		} {
			if got, err := w.listedFiles(id, path, false); err != nil || got != want {
				t.Errorf("version %d: %q has %q, %v, want %q", version, path, got, err, want)
			}
		}
		if got, err := w.listedFiles(id, "/dir/", true); err != nil ||
			got != fmt.Sprintf("dir/b.txt:3 dir/sub/ dir/sub/large:%d", len(large)) {
			t.Errorf("version %d: all of dir: %q, %v", version, got, err)
		}
		if got, err := w.download(id, "dir/sub/large", 0, 0); err != nil || got != large {
			t.Errorf("version %d: the file has %d bytes, %v", version, len(got), err)
		}
		if got, err := w.download(id, "dir/sub/large", block-5, block+10); err != nil ||
			got != large[block-5:2*block+5] {
			t.Errorf("version %d: a part has %d bytes, %v", version, len(got), err)
		}
		if got, err := w.download(id, "/empty", 0, 0); err != nil || got != "" {
			t.Errorf("version %d: the empty file has %d bytes, %v", version, len(got), err)
		}
		if err := upload(id, map[string]string{"/new": "n", "/a.txt": "other"},
			false); status.Code(err) != codes.AlreadyExists {
			t.Errorf("version %d: a file that exists: %v", version, err)
		}
		if _, err := w.download(id, "/new", 0, 0); status.Code(err) != codes.NotFound {
			t.Errorf("version %d: a batch that was refused left a file: %v", version, err)
		}
		if err := upload(id, map[string]string{"/dir": "x"}, true); status.Code(err) != codes.AlreadyExists {
			t.Errorf("version %d: a file in place of a directory: %v", version, err)
		}
		if err := upload(id, map[string]string{"/a.txt": "other"}, true); err != nil {
			t.Errorf("version %d: with force: %v", version, err)
		}
		if err := upload(id, map[string]string{"../out": "x"}, true); status.Code(err) != codes.InvalidArgument {
			t.Errorf("version %d: a path that leads out: %v", version, err)
		}
	}
	w.copiesAndRemovals(w.volume("data2", pb.VolumeFsVersion_VOLUME_FS_VERSION_V2))
}

// copiesAndRemovals continues with the files of TestVolumeFilesFromOutside.
func (w *world) copiesAndRemovals(id string) {
	w.t.Helper()
	cp := func(to string, recursive bool, from ...string) error {
		return second(w.control.VolumeCopyFiles2(w.ctx(), pb.VolumeCopyFiles2Request_builder{VolumeId: id,
			SrcPaths: from,
			DstPath:  to, Recursive: recursive}.Build()))
	}
	rm := func(path string, recursive bool) error {
		return second(w.control.VolumeRemoveFile2(w.ctx(), pb.VolumeRemoveFile2Request_builder{VolumeId: id, Path: path,
			Recursive: recursive}.Build()))
	}
	if err := errors.Join(cp("/copy.txt", false, "a.txt"), cp("dir", false, "a.txt", "copy.txt"), cp("/tree", true,
		"dir"),
		rm("dir/sub", true), rm("tree/sub", true), rm("/a.txt", false)); err != nil {
		w.t.Fatal(err)
	}
	want := "copy.txt:5 dir/ dir/a.txt:5 dir/b.txt:3 dir/copy.txt:5 empty:0 " +
		"tree/ tree/a.txt:5 tree/b.txt:3 tree/copy.txt:5"
	if got, err := w.listedFiles(id, "/", true); err != nil || got != want {
		w.t.Errorf("the volume has %q, %v, want %q", got, err, want)
	}
	for what, c := range map[string]struct {
		err  error
		code codes.Code
	}{
		"a copy of nothing":                   {cp("/x", false, "none"), codes.NotFound},
		"copies of two files to one":          {cp("/x", false, "copy.txt", "empty"), codes.InvalidArgument},
		"a directory as a file":               {cp("/x", false, "dir"), codes.InvalidArgument},
		"a directory into itself":             {cp("/dir/x", true, "dir"), codes.InvalidArgument},
		"a copy that leads out":               {cp("../x", false, "copy.txt"), codes.InvalidArgument},
		"a copy from elsewhere":               {cp("/x", false, "../../etc/passwd"), codes.InvalidArgument},
		"a removal of nothing":                {rm("none", false), codes.NotFound},
		"a removal of a directory":            {rm("dir", false), codes.InvalidArgument},
		"a removal of the volume":             {rm("/", true), codes.InvalidArgument},
		"a removal elsewhere":                 {rm("../x", true), codes.InvalidArgument},
		"a list of nothing":                   {second(w.listedFiles(id, "none", false)), codes.NotFound},
		"a list elsewhere":                    {second(w.listedFiles(id, "..", false)), codes.InvalidArgument},
		"a directory that is read":            {second(w.download(id, "dir", 0, 0)), codes.InvalidArgument},
		"a file of a volume that is not here": {second(w.download("vo-none", "a", 0, 0)), codes.NotFound},
	} {
		if st := status.Convert(c.err); st.Code() != c.code || len(st.Message()) < 8 {
			w.t.Errorf("%s: %s %q, want %s", what, st.Code(), st.Message(), c.code)
		}
	}
	vol, err := w.sdk.Volumes.FromName(w.t.Context(), "data2", nil)
	if err != nil {
		w.t.Fatal(err)
	}
	sb := w.create(&modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/volume": vol}})
	if got := w.output(sb, "cat", "volume/tree/b.txt"); got != "two" {
		w.t.Errorf("a sandbox sees %q", got)
	}
	if err := w.upload2(id, map[string]string{"/later": "later"}, false); err != nil {
		w.t.Fatal(err)
	}
	if err := sb.ReloadVolumes(w.t.Context(), nil); err != nil {
		w.t.Fatal(err)
	}
	if got := w.output(sb, "cat", "volume/later"); got != "later" {
		w.t.Errorf("after a reload a sandbox sees %q", got)
	}
	w.output(sb, "sh", "-c", "ln -s /etc/passwd volume/out; ln -s tree volume/in; mkfifo volume/pipe")
	if err := sb.ReloadVolumes(w.t.Context(), nil); err != nil {
		w.t.Fatal(err)
	}
	if _, err := w.download(id, "out", 0, 0); status.Code(err) != codes.InvalidArgument {
		w.t.Errorf("a link that leads out of the volume: %v", err)
	}
	if got, err := w.download(id, "in/b.txt", 0, 0); err != nil || got != "two" {
		w.t.Errorf("a link within the volume: %q, %v", got, err)
	}
}

// TestVolumeFilesOfVersion1 checks the calls that Python's SDK makes for volumes of version 1 only: batch_upload,
// iterdir, copy_files, read_file and remove_file.
//
// mission: C1
func TestVolumeFilesOfVersion1(t *testing.T) {
	w := newWorld(t)
	id := w.volume("data", pb.VolumeFsVersion_VOLUME_FS_VERSION_V1)
	if err := w.upload1(id, map[string]string{"a": "one", "dir/b": "two"}, false); err != nil {
		t.Fatal(err)
	}
	list := func(path string) (names []string, err error) {
		t.Helper()
		stream, err := w.control.VolumeListFiles(w.ctx(), pb.VolumeListFilesRequest_builder{VolumeId: id, Path: path,
			Recursive: true}.Build())
		for err == nil {
			var batch *pb.VolumeListFilesResponse
			if batch, err = stream.Recv(); errors.Is(err, io.EOF) {
				return names, nil
			}
			for _, e := range batch.GetEntries() {
				names = append(names, fmt.Sprintf("%s:%d", e.GetPath(), e.GetSize()))
			}
		}
		return nil, err
	}
	cp := func(to string, recursive bool, from ...string) error {
		return second(w.control.VolumeCopyFiles(w.ctx(), pb.VolumeCopyFilesRequest_builder{VolumeId: id,
			SrcPaths: from, DstPath: to, Recursive: recursive}.Build()))
	}
	rm := func(path string, recursive bool) error {
		return second(w.control.VolumeRemoveFile(w.ctx(), pb.VolumeRemoveFileRequest_builder{VolumeId: id, Path: path,
			Recursive: recursive}.Build()))
	}
	err := errors.Join(cp("/copy", false, "a"), cp("tree", true, "dir"), rm("a", false), rm("/dir", true))
	if err != nil {
		t.Fatal(err)
	}
	got, err := list("/")
	files := slices.DeleteFunc(got, func(name string) bool { return strings.HasPrefix(name, "tree:") })
	if want := []string{"copy:3", "tree/b:3"}; err != nil || !slices.Equal(files, want) {
		t.Errorf("the volume has %q, %v, want %q", files, err, want)
	}
	read, err := w.control.VolumeGetFile(w.ctx(), pb.VolumeGetFileRequest_builder{VolumeId: id, Path: "tree/b",
		Start: 1, Len: 1}.Build())
	if err != nil || string(read.GetData()) != "w" || read.GetSize() != 3 {
		t.Errorf("a part of a file: %v, %v", read, err)
	}
	for what, c := range map[string]struct {
		err  error
		code codes.Code
	}{
		"a copy of a directory":    {cp("x", false, "tree"), codes.InvalidArgument},
		"a removal of a directory": {rm("tree", false), codes.InvalidArgument},
		"a removal of nothing":     {rm("none", false), codes.NotFound},
		"a list of nothing":        {second(list("none")), codes.NotFound},
	} {
		if status.Code(c.err) != c.code {
			t.Errorf("%s: %v, want %s", what, c.err, c.code)
		}
	}
}

// TestVolumeFileChangesBetweenRequests checks that a URL for a file that was replaced is refused, that the older call
// returns content and blobs, and that a volume is renamed unless a sandbox uses it.
//
// mission: C1
func TestVolumeFileChangesBetweenRequests(t *testing.T) {
	w := newWorld(t)
	id := w.volume("data", pb.VolumeFsVersion_VOLUME_FS_VERSION_V1)
	large := strings.Repeat("x", 5<<20)
	if err := w.upload1(id, map[string]string{"f": "first", "large": large}, false); err != nil {
		t.Fatal(err)
	}
	answer, err := w.control.VolumeGetFile2(w.ctx(), pb.VolumeGetFile2Request_builder{VolumeId: id, Path: "f"}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.upload1(id, map[string]string{"f": "other"}, true); err != nil {
		t.Fatal(err)
	}
	if code, _, body := w.request(http.MethodGet, answer.GetGetUrls()[0], nil); code != http.StatusConflict {
		t.Errorf("a file that was replaced: %d %q", code, body)
	}
	get := func(path string) *pb.VolumeGetFileResponse {
		t.Helper()
		got, err := w.control.VolumeGetFile(w.ctx(), pb.VolumeGetFileRequest_builder{VolumeId: id, Path: path}.Build())
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := get("f"); string(got.GetData()) != "other" || got.GetSize() != 5 {
		t.Errorf("the file is %v", got)
	}
	blob, err := w.control.BlobGet(w.ctx(), pb.BlobGetRequest_builder{BlobId: get("large").GetDataBlobId()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if code, _, body := w.request(http.MethodGet, blob.GetDownloadUrl(), nil); code != http.StatusOK || body != large {
		t.Errorf("the large file: %d, %d bytes", code, len(body))
	}
	rename := func(id, name string) error {
		return second(w.control.VolumeRename(w.ctx(), pb.VolumeRenameRequest_builder{VolumeId: id, Name: name}.Build()))
	}
	vol, err := w.sdk.Volumes.FromName(t.Context(), "data", nil)
	if err != nil {
		t.Fatal(err)
	}
	sb := w.create(&modal.SandboxCreateParams{Volumes: map[string]*modal.Volume{"/volume": vol}})
	if err := rename(id, "other"); status.Code(err) != codes.FailedPrecondition &&
		status.Code(err) != codes.AlreadyExists {
		t.Errorf("a volume that a sandbox uses: %v", err)
	}
	if _, err := sb.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil {
		t.Fatal(err)
	}
	w.volume("taken", pb.VolumeFsVersion_VOLUME_FS_VERSION_V1)
	for name, code := range map[string]codes.Code{"taken": codes.AlreadyExists, "a/b": codes.InvalidArgument,
		"": codes.InvalidArgument} {
		if err := rename(id, name); status.Code(err) != code {
			t.Errorf("the name %q: %v, want %s", name, err, code)
		}
	}
	if err := rename(id, "other"); err != nil {
		t.Fatal(err)
	}
	if err := rename(id, "other"); err != nil {
		t.Errorf("the same request again: %v", err)
	}
	w.reopen()
	if other := w.volume("other", 0); other != id {
		t.Errorf("the renamed volume has the ID %s, not %s", other, id)
	}
	if data := w.volume("data", 0); data == id {
		t.Error("a new volume of the earlier name has the same ID")
	}
	if got, err := w.download(id, "f", 0, 0); err != nil || got != "other" {
		t.Errorf("the renamed volume has %q, %v", got, err)
	}
	known, err := w.control.VolumeGetById(w.ctx(), pb.VolumeGetByIdRequest_builder{VolumeId: w.volume("other",
		0)}.Build())
	if err != nil || known.GetMetadata().GetName() != "other" {
		t.Errorf("by its ID: %v, %v", known, err)
	}
}

// TestFilesFromOutsideHaveTheFileLimit checks that clients cannot put more files into a volume, or copy more in it,
// than it may have, in both versions of the protocol.
//
// mission: A6
func TestFilesFromOutsideHaveTheFileLimit(t *testing.T) {
	w := newWorld(t)
	w.engine.Volumes().(*volume.Local).SetFileLimit(5)
	for name, c := range map[string]struct {
		version pb.VolumeFsVersion
		upload  func(id string, files map[string]string, force bool) error
		copies  func(id string, from, to string) error
	}{
		"one": {pb.VolumeFsVersion_VOLUME_FS_VERSION_V1, w.upload1, func(id, from, to string) error {
			return second(w.control.VolumeCopyFiles(w.ctx(), pb.VolumeCopyFilesRequest_builder{VolumeId: id,
				SrcPaths: []string{from}, DstPath: to, Recursive: true}.Build()))
		}},
		"two": {pb.VolumeFsVersion_VOLUME_FS_VERSION_V2, w.upload2, func(id, from, to string) error {
			return second(w.control.VolumeCopyFiles2(w.ctx(), pb.VolumeCopyFiles2Request_builder{VolumeId: id,
				SrcPaths: []string{from}, DstPath: to, Recursive: true}.Build()))
		}},
	} {
		id := w.volume("limited-"+name, c.version)
		if err := c.upload(id, map[string]string{"a": "1", "b": "2", "dir/c": "3"}, false); err != nil {
			t.Fatal(err)
		}
		if err := c.upload(id, map[string]string{"a": "again", "b": "again", "dir/c": "again"}, true); err != nil {
			t.Errorf("%s: replace files: %v", name, err)
		}
		for what, err := range map[string]error{
			"a tree":   c.upload(id, map[string]string{"x/y/z": "4"}, false),
			"a copy":   c.copies(id, "a", "more/deep/a"),
			"one file": c.upload(id, map[string]string{"e": "5"}, false),
		} {
			if (err == nil) != (what == "one file") || err != nil && status.Code(err) != codes.ResourceExhausted {
				t.Errorf("%s: %s: %v", name, what, err)
			}
		}
	}
}
