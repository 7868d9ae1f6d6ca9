package modal_test

import (
	"bytes"
	"crypto/md5"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// sumOf is the SHA-256 of a text in hexadecimal digits.
func sumOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// largeFile is the size from which on Python's SDK uploads a file as a blob.
const largeFile = 4 << 20

// request sends an HTTP request as Python's SDK does with the URLs that it gets, and returns the status, the ETag and
// the body.
func (w *world) request(method, url string, body []byte) (int, string, string) {
	w.t.Helper()
	req, err := http.NewRequestWithContext(w.t.Context(), method, url, bytes.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, strings.Trim(resp.Header.Get("ETag"), `"`), string(text)
}

// blob uploads content in parts, as Python's SDK does, and returns the blob's ID.
func (w *world) blob(text string) string {
	w.t.Helper()
	sum, sum5 := sha256.Sum256([]byte(text)), md5.Sum([]byte(text))
	made, err := w.control.BlobCreate(w.ctx(), pb.BlobCreateRequest_builder{
		ContentMd5:          base64.StdEncoding.EncodeToString(sum5[:]),
		ContentSha256Base64: base64.StdEncoding.EncodeToString(sum[:]), ContentLength: int64(len(text)),
	}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	if len(made.GetBlobIds()) != 1 || len(made.GetMultiparts().GetItems()) != 1 {
		w.t.Fatalf("the blob is %v", made)
	}
	parts := made.GetMultiparts().GetItems()[0]
	body, all, rest := "<CompleteMultipartUpload>\n", []byte{}, []byte(text)
	for i, url := range parts.GetUploadUrls() {
		part := rest[:min(int64(len(rest)), parts.GetPartLength())]
		rest = rest[len(part):]
		code, etag, answer := w.request(http.MethodPut, url, part)
		want := md5.Sum(part)
		if code != http.StatusOK || etag != hex.EncodeToString(want[:]) {
			w.t.Fatalf("part %d: %d, ETag %q, %s", i+1, code, etag, answer)
		}
		all = append(all, want[:]...)
		body += fmt.Sprintf("<Part>\n<PartNumber>%d</PartNumber>\n<ETag>\"%s\"</ETag>\n</Part>\n", i+1, etag)
	}
	code, _, answer := w.request(http.MethodPost, parts.GetCompletionUrl(), []byte(body+"</CompleteMultipartUpload>"))
	if want := fmt.Sprintf("%x-%d", md5.Sum(all), len(parts.GetUploadUrls())); code != http.StatusOK ||
		!strings.Contains(answer, want) {
		w.t.Fatalf("completing: %d, %s, want %s", code, answer, want)
	}
	return made.GetBlobIds()[0]
}

// putFile uploads the content of a file of a mount, unless the server has it, and reports whether it had.
func (w *world) putFile(text string) bool {
	w.t.Helper()
	req := pb.MountPutFileRequest_builder{Sha256Hex: sumOf(text)}
	had, err := w.control.MountPutFile(w.ctx(), req.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	if had.GetExists() {
		return true
	}
	if len(text) < largeFile {
		req.Data = []byte(text)
	} else {
		id := w.blob(text)
		req.DataBlobId = &id
	}
	if put, err := w.control.MountPutFile(w.ctx(), req.Build()); err != nil || !put.GetExists() {
		w.t.Fatalf("put a file: %v, %v", put, err)
	}
	return false
}

// mountOf makes a mount of files as Python's SDK does. Executable are those whose content begins with "#!".
func (w *world) mountOf(app string, files map[string]string) string {
	w.t.Helper()
	var list []*pb.MountFile
	for name, text := range files {
		w.putFile(text)
		mode := uint32(0o644)
		if strings.HasPrefix(text, "#!") {
			mode = 0o755
		}
		list = append(list, pb.MountFile_builder{Filename: name, Sha256Hex: sumOf(text), Mode: &mode}.Build())
	}
	made, err := w.control.MountGetOrCreate(w.ctx(), pb.MountGetOrCreateRequest_builder{AppId: app, Files: list,
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_ANONYMOUS_OWNED_BY_APP}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	if made.GetMountId() == "" || len(made.GetHandleMetadata().GetContentChecksumSha256Hex()) != 64 {
		w.t.Fatalf("the mount is %v", made)
	}
	return made.GetMountId()
}

// appID makes the app "app".
func (w *world) appID() string {
	w.t.Helper()
	app, err := w.control.AppGetOrCreate(w.ctx(), pb.AppGetOrCreateRequest_builder{AppName: "app",
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	return app.GetAppId()
}

// TestLocalFilesInImages checks that files of the client are built into images: add_local_file, add_local_dir and
// add_local_python_source with copy=True, and COPY of a Dockerfile with a context.
//
// mission: B2
func TestLocalFilesInImages(t *testing.T) {
	w := newWorld(t)
	app := w.appID()
	base, _, err := w.imageOf(pb.Image_builder{DockerfileCommands: []string{"FROM base"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	large := strings.Repeat("0123456789abcdef", largeFile/16+1)
	files := map[string]string{"/root/pkg/__init__.py": "x = 1\n", "/root/run.sh": "#!/bin/sh\n", "/data/large": large}
	copied := on(base, "COPY . /")
	copied.ContextMountId = w.mountOf(app, files)
	first, made, err := w.imageOf(copied, false)
	if err != nil || len(made) != 1 {
		t.Fatalf("the image: %d builds, %v", len(made), err)
	}
	for name, text := range files {
		if made[0].files[name[1:]] != text {
			t.Errorf("%s has %d bytes in the context, want %d", name, len(made[0].files[name[1:]]), len(text))
		}
	}
	if !w.putFile(large) {
		t.Error("a file is uploaded again")
	}
	copied.ContextMountId = w.mountOf(app, files)
	if second, made, err := w.imageOf(copied, false); err != nil || second != first || len(made) != 0 {
		t.Errorf("the same files again: %s and %s, %d builds, %v", first, second, len(made), err)
	}
	files["/root/pkg/__init__.py"] = "x = 2\n"
	copied.ContextMountId = w.mountOf(app, files)
	if other, made, err := w.imageOf(copied, false); err != nil || other == first || len(made) != 1 ||
		made[0].files["root/pkg/__init__.py"] != "x = 2\n" {
		t.Errorf("another file: the image %s, %d builds, %v", other, len(made), err)
	}
	// A Dockerfile's context, beside files that come with the request.
	context := pb.Image_builder{DockerfileCommands: []string{"FROM base", "COPY src /app",
		"COPY /.requirements.txt /r"},
		ContextMountId: w.mountOf(app, map[string]string{"/src/a.py": "a", "/.requirements.txt": "not this"}),
		ContextFiles: []*pb.ImageContextFile{pb.ImageContextFile_builder{Filename: "/.requirements.txt",
			Data: []byte("numpy")}.Build()}}
	if _, made, err := w.imageOf(context, false); err != nil || len(made) != 1 || made[0].files["src/a.py"] != "a" ||
		made[0].files[".requirements.txt"] != "numpy" {
		t.Errorf("a Dockerfile with a context: %+v, %v", made, err)
	}
	context.ContextMountId = "mo-none"
	if _, _, err := w.imageOf(context, false); status.Code(err) != codes.NotFound {
		t.Errorf("a mount that does not exist: %v", err)
	}
}

// TestStandalonePython checks that add_python works once its mount was deployed, and says before what to do instead.
//
// mission: B2
func TestStandalonePython(t *testing.T) {
	w := newWorld(t)
	find := pb.MountGetOrCreateRequest_builder{DeploymentName: "python-build-standalone.20240107.3.12.1-gnu",
		Namespace: pb.DeploymentNamespace_DEPLOYMENT_NAMESPACE_GLOBAL}
	if _, err := w.control.MountGetOrCreate(w.ctx(), find.Build()); status.Code(err) != codes.NotFound ||
		!strings.Contains(status.Convert(err).Message(), "python:3.12-slim") {
		t.Errorf("without the mount: %v", err)
	}
	w.putFile("#!python")
	deploy := find
	mode := uint32(0o755)
	deploy.Files = []*pb.MountFile{pb.MountFile_builder{Filename: "/python/bin/python3", Sha256Hex: sumOf("#!python"),
		Mode: &mode}.Build()}
	deploy.ObjectCreationType = pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_FAIL_IF_EXISTS
	if _, err := w.control.MountGetOrCreate(w.ctx(), deploy.Build()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.control.MountGetOrCreate(w.ctx(), deploy.Build()); status.Code(err) != codes.AlreadyExists {
		t.Errorf("a second time: %v", err)
	}
	found, err := w.control.MountGetOrCreate(w.ctx(), find.Build())
	if err != nil {
		t.Fatal(err)
	}
	if _, made, err := w.imageOf(pb.Image_builder{ContextMountId: found.GetMountId(), DockerfileCommands: []string{
		"FROM base", "COPY /python/. /usr/local", "RUN ln -s /usr/local/bin/python3 /usr/local/bin/python"}},
		false); err != nil ||
		len(made) != 1 || made[0].files["python/bin/python3"] != "#!python" {
		t.Errorf("the image: %+v, %v", made, err)
	}
}

// TestLocalFilesInSandboxes checks that local files which are not built into the image are in the sandbox before its
// command starts, and in sidecars.
//
// mission: A6
func TestLocalFilesInSandboxes(t *testing.T) {
	w := newWorld(t)
	app := w.appID()
	img, _, err := w.imageOf(pb.Image_builder{DockerfileCommands: []string{"FROM base"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	mounts := []string{w.mountOf(app, map[string]string{"/root/a/main.sh": "#!/bin/sh\necho from $(cat root/data)\n"}),
		w.mountOf(app, map[string]string{"/root/data": "local files"})}
	made, err := w.control.SandboxCreateV2(w.ctx(), pb.SandboxCreateV2Request_builder{AppId: app,
		Definition: pb.Sandbox_builder{ImageId: img, TimeoutSecs: 60, MountIds: mounts,
			EntrypointArgs: []string{"sh", "-c", "root/a/main.sh; sleep 60"}}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	ctx, task := w.started(made.GetSandboxId(), pb.TaskExecStartRequest_builder{ExecId: "e",
		CommandArgs: []string{"sh", "-c", "root/a/main.sh"}})
	if got := w.said(ctx, task, "e"); got != "from local files\n" {
		t.Errorf("a command says %q", got)
	}
	stream, err := w.router.SandboxStdioReadV2(ctx, pb.SandboxStdioReadV2Request_builder{TaskId: task}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if part, err := stream.Recv(); err != nil || string(part.GetData()) != "from local files\n" {
		t.Errorf("the sandbox's command says %q, %v", part.GetData(), err)
	}
	side, err := w.control.SandboxContainerCreateV2(w.ctx(), pb.SandboxContainerCreateV2Request_builder{
		SandboxId: made.GetSandboxId(), ContainerName: "side",
		Definition: pb.Sandbox_builder{ImageId: img, MountIds: mounts[1:]}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	ctx, task = w.started(made.GetSandboxId(), pb.TaskExecStartRequest_builder{ExecId: "s",
		ContainerId: side.GetContainerId(), CommandArgs: []string{"cat", "root/data"}})
	if got := w.said(ctx, task, "s"); got != "local files" {
		t.Errorf("in the sidecar: %q", got)
	}
	_, err = w.control.SandboxCreateV2(w.ctx(), pb.SandboxCreateV2Request_builder{AppId: app,
		Definition: pb.Sandbox_builder{ImageId: img, MountIds: []string{"mo-none"}}.Build()}.Build())
	if status.Code(err) != codes.NotFound {
		t.Errorf("a mount that does not exist: %v", err)
	}
}

// TestUploadsOfBlobs checks what is refused of uploads, that accounts are apart, that blobs are downloaded, and that
// uploads continue after a restart.
//
// mission: A7
func TestUploadsOfBlobs(t *testing.T) {
	w := newWorld(t)
	text := strings.Repeat("x", 1000)
	id := w.blob(text)
	get, err := w.control.BlobGet(w.ctx(), pb.BlobGetRequest_builder{BlobId: id}.Build())
	if err != nil {
		t.Fatal(err)
	}
	if code, _, body := w.request(http.MethodGet, get.GetDownloadUrl(), nil); code != http.StatusOK || body != text {
		t.Errorf("the download: %d, %d bytes", code, len(body))
	}
	sum := sha256.Sum256([]byte("later"))
	begin := pb.BlobCreateRequest_builder{ContentSha256Base64: base64.StdEncoding.EncodeToString(sum[:]),
		ContentLength: 5}
	begun, err := w.control.BlobCreate(w.ctx(), begin.Build())
	if err != nil {
		t.Fatal(err)
	}
	put := begun.GetMultiparts().GetItems()[0].GetUploadUrls()[0]
	for what, c := range map[string]struct {
		method, url, body string
		code              int
	}{
		"another method":     {http.MethodDelete, put, "", http.StatusNotFound},
		"a changed URL":      {http.MethodPut, put[:len(put)-2] + "xx", "later", http.StatusForbidden},
		"no token":           {http.MethodPut, put[:strings.LastIndexByte(put, '/')+1], "later", http.StatusForbidden},
		"a download's token": {http.MethodPut, get.GetDownloadUrl(), "later", http.StatusNotFound},
		"too much":           {http.MethodPut, put, "much later", http.StatusBadRequest},
		"too little":         {http.MethodPut, put, "late", http.StatusBadRequest},
		"another address":    {http.MethodGet, w.url + "/", "", http.StatusNotFound},
		"an early end": {http.MethodPost, begun.GetMultiparts().GetItems()[0].GetCompletionUrl(),
			"<CompleteMultipartUpload></CompleteMultipartUpload>", http.StatusBadRequest},
		"an end without XML": {http.MethodPost, begun.GetMultiparts().GetItems()[0].GetCompletionUrl(), "x",
			http.StatusBadRequest},
	} {
		if code, _, body := w.request(c.method, c.url, []byte(c.body)); code != c.code {
			t.Errorf("%s: %d %q, want %d", what, code, body, c.code)
		}
	}
	for what, c := range map[string]struct {
		err  error
		code codes.Code
	}{
		"a blob without a checksum": {second(w.control.BlobCreate(w.ctx(),
			pb.BlobCreateRequest_builder{ContentLength: 5}.Build())), codes.InvalidArgument},
		"a blob of a negative size": {second(w.control.BlobCreate(w.ctx(),
			pb.BlobCreateRequest_builder{ContentSha256Base64: begin.ContentSha256Base64, ContentLength: -1}.Build())),
			codes.InvalidArgument},
		"a blob that is too large": {second(w.control.BlobCreate(w.ctx(),
			pb.BlobCreateRequest_builder{ContentSha256Base64: begin.ContentSha256Base64,
				ContentLength: 1 << 50}.Build())),
			codes.ResourceExhausted},
		"a file with another checksum": {second(w.control.MountPutFile(w.ctx(), pb.MountPutFileRequest_builder{
			Sha256Hex: sumOf("a"), Data: []byte("b")}.Build())), codes.InvalidArgument},
		"a file from another blob": {second(w.control.MountPutFile(w.ctx(), pb.MountPutFileRequest_builder{
			Sha256Hex: sumOf("a"), DataBlobId: &id}.Build())), codes.InvalidArgument},
		"a file from a blob that does not exist": {second(w.control.MountPutFile(w.ctx(),
			pb.MountPutFileRequest_builder{Sha256Hex: sumOf("a"), DataBlobId: new("bl-" + sumOf("a"))}.Build())),
			codes.NotFound},
		"a checksum that is none": {second(w.control.MountPutFile(w.ctx(), pb.MountPutFileRequest_builder{
			Sha256Hex: "../../x"}.Build())), codes.InvalidArgument},
		"a mount with a path that leads out": {second(w.control.MountGetOrCreate(w.ctx(),
			pb.MountGetOrCreateRequest_builder{Files: []*pb.MountFile{pb.MountFile_builder{Filename: "/../etc/passwd",
				Sha256Hex: sumOf(text)}.Build()},
				ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_EPHEMERAL,
			}.Build())), codes.InvalidArgument},
		"a blob that is not there": {second(w.control.BlobGet(w.ctx(),
			pb.BlobGetRequest_builder{BlobId: "bl-" + sumOf("none")}.Build())), codes.NotFound},
		"a standalone Python": {second(w.control.MountGetOrCreate(w.ctx(), pb.MountGetOrCreateRequest_builder{
			DeploymentName: "python-build-standalone.20240107.3.12.1-gnu",
			Namespace:      pb.DeploymentNamespace_DEPLOYMENT_NAMESPACE_GLOBAL}.Build())), codes.NotFound},
	} {
		if st := status.Convert(c.err); st.Code() != c.code || len(st.Message()) < 10 {
			t.Errorf("%s: %s %q, want %s", what, st.Code(), st.Message(), c.code)
		}
	}
	have, err := w.control.MountBatchedCheckExistence(w.ctx(), pb.MountBatchedCheckExistenceRequest_builder{
		Sha256HexHashes: []string{sumOf(text), sumOf("later")}}.Build())
	if err != nil || len(have.GetMissingSha256HexHashes()) != 1 ||
		have.GetMissingSha256HexHashes()[0] != sumOf("later") {
		t.Errorf("missing are %v, %v", have, err)
	}

	// Another account sees none of it.
	key, secret, err := w.ring.Create(t.Context(), account.Local(), account.Request{Name: "other", Account: "acme"})
	if err != nil {
		t.Fatal(err)
	}
	id0, secret0 := w.id, w.secret
	w.id, w.secret = key.ID, secret.Reveal()
	if had, err := w.control.MountPutFile(w.ctx(),
		pb.MountPutFileRequest_builder{Sha256Hex: sumOf(text)}.Build()); err != nil || had.GetExists() {
		t.Errorf("another account has the file: %v, %v", had, err)
	}
	if _, err := w.control.BlobGet(w.ctx(),
		pb.BlobGetRequest_builder{BlobId: id}.Build()); status.Code(err) != codes.NotFound {
		t.Errorf("another account gets the blob: %v", err)
	}
	w.id, w.secret = id0, secret0

	// The next server continues, and removes what a killed one has left beside a volume.
	w.volume("data", pb.VolumeFsVersion_VOLUME_FS_VERSION_V2)
	kept, err := w.engine.Volumes().Open(t.Context(), "data")
	if err != nil {
		t.Fatal(err)
	}
	left := filepath.Join(kept.(volume.Directory).Notes(), "modal-put")
	if err := os.MkdirAll(filepath.Join(left, "1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	before := w.url
	w.serve()
	moved := func(url string) string { return strings.Replace(url, before, w.url, 1) }
	if code, etag, body := w.request(http.MethodPut, moved(put), []byte("later")); code != http.StatusOK ||
		len(etag) != 32 {
		t.Errorf("after a restart: %d %s", code, body)
	}
	end := fmt.Sprintf("<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>%x</ETag></Part>"+
		"</CompleteMultipartUpload>", md5.Sum([]byte("later")))
	if code, _, body := w.request(http.MethodPost, moved(begun.GetMultiparts().GetItems()[0].GetCompletionUrl()),
		[]byte(end)); code != http.StatusOK {
		t.Errorf("completing after a restart: %d %s", code, body)
	}
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("incomplete files of a volume are left: %v", err)
	}
	if !w.putFile("later") {
		t.Error("the upload is not there after a restart")
	}

	// The URLs end with the key that made them.
	if err := w.ring.Revoke(t.Context(), account.Local(), w.id); err != nil {
		t.Fatal(err)
	}
	if code, _, body := w.request(http.MethodGet, moved(get.GetDownloadUrl()), nil); code != http.StatusUnauthorized {
		t.Errorf("after the end of the key: %d %s", code, body)
	}
}
