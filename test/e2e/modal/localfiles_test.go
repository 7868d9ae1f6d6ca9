package modal

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
)

// uploads does what Python's SDK does with local files.
type uploads struct {
	t    *testing.T
	ctx  context.Context
	stub pb.ModalClientClient
	app  string
}

// mount uploads files and makes a mount of them. Those whose content begins with "#!" are executable.
func (u uploads) mount(files map[string]string) string {
	u.t.Helper()
	var list []*pb.MountFile
	for name, text := range files {
		sum := sha256.Sum256([]byte(text))
		digest, mode := hex.EncodeToString(sum[:]), uint32(0o644)
		if strings.HasPrefix(text, "#!") {
			mode = 0o755
		}
		if put, err := u.stub.MountPutFile(u.ctx, pb.MountPutFileRequest_builder{Sha256Hex: digest,
			Data: []byte(text)}.Build()); err != nil || !put.GetExists() {
			u.t.Fatalf("put %s: %v, %v", name, put, err)
		}
		list = append(list, pb.MountFile_builder{Filename: name, Sha256Hex: digest, Mode: &mode}.Build())
	}
	made, err := u.stub.MountGetOrCreate(u.ctx, pb.MountGetOrCreateRequest_builder{AppId: u.app, Files: list,
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_ANONYMOUS_OWNED_BY_APP}.Build())
	if err != nil {
		u.t.Fatal(err)
	}
	return made.GetMountId()
}

// image builds an image and waits for it.
func (u uploads) image(def pb.Image_builder) string {
	u.t.Helper()
	reply, err := u.stub.ImageGetOrCreate(u.ctx, pb.ImageGetOrCreateRequest_builder{Image: def.Build()}.Build())
	if err != nil {
		u.t.Fatal(err)
	}
	for !reply.HasResult() { // the build continues
		stream, err := u.stub.ImageJoinStreaming(u.ctx,
			pb.ImageJoinStreamingRequest_builder{ImageId: reply.GetImageId(),
				Timeout: 55}.Build())
		if err != nil {
			u.t.Fatal(err)
		}
		for part, err := stream.Recv(); err == nil && !reply.HasResult(); part, err = stream.Recv() {
			if part.HasResult() {
				reply.SetResult(part.GetResult())
			}
		}
	}
	if reply.GetResult().GetStatus() != pb.GenericResult_GENERIC_STATUS_SUCCESS {
		u.t.Fatalf("the build: %v", reply.GetResult())
	}
	return reply.GetImageId()
}

// block puts a file of one block into a volume.
func (u uploads) block(volume, name, text string) {
	u.t.Helper()
	sum := sha256.Sum256([]byte(text))
	req := pb.VolumePutFiles2Request_builder{VolumeId: volume, DisallowOverwriteExistingFiles: true,
		Files: []*pb.VolumePutFiles2Request_File{pb.VolumePutFiles2Request_File_builder{Path: name,
			Size: uint64(len(text)), Blocks: []*pb.VolumePutFiles2Request_Block{
				pb.VolumePutFiles2Request_Block_builder{ContentsSha256: sum[:]}.Build()}}.Build()}}
	lacks, err := u.stub.VolumePutFiles2(u.ctx, req.Build())
	if err != nil || len(lacks.GetMissingBlocks()) != 1 {
		u.t.Fatalf("missing are %v, %v", lacks, err)
	}
	put, err := http.NewRequestWithContext(u.t.Context(), http.MethodPut, lacks.GetMissingBlocks()[0].GetPutUrl(),
		strings.NewReader(text))
	if err != nil {
		u.t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(put)
	if err != nil {
		u.t.Fatal(err)
	}
	defer answer.Body.Close()
	if text, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		u.t.Fatalf("the block: %s %s, %v", answer.Status, text, err)
	}
	if lacks, err = u.stub.VolumePutFiles2(u.ctx, req.Build()); err != nil || len(lacks.GetMissingBlocks()) != 0 {
		u.t.Fatalf("still missing are %v, %v", lacks, err)
	}
}

// TestModalLocalFiles checks local files in images and sandboxes, and files of volumes from outside, on gVisor.
//
// mission: B2, C1
func TestModalLocalFiles(t *testing.T) {
	testenv.Long(t)
	h := modalhost.WithBase(t)
	m := newModalClient(t, h, "local")
	ctx, stub := plain(h, t)
	u := uploads{t, ctx, stub, m.app.AppID}
	def := pb.Image_builder{DockerfileCommands: []string{"FROM base", "COPY . /"}}
	def.ContextMountId = u.mount(map[string]string{"/root/pkg/a.py": "x = 1\n",
		"/opt/tools/hello": "#!/bin/sh\necho hello\n"})
	img := u.image(def)
	vol, err := m.sdk.Volumes.FromName(t.Context(), "data", &modal.VolumeFromNameParams{CreateIfMissing: true,
		Version: 2})
	if err != nil {
		t.Fatal(err)
	}
	u.block(vol.VolumeID, "/in/data.txt", "from outside\n")
	made, err := stub.SandboxCreateV2(ctx, pb.SandboxCreateV2Request_builder{AppId: u.app,
		Definition: pb.Sandbox_builder{ImageId: img, TimeoutSecs: 300,
			MountIds:     []string{u.mount(map[string]string{"/root/main.sh": "#!/bin/sh\n/opt/tools/hello\n"})},
			VolumeMounts: []*pb.VolumeMount{pb.VolumeMount_builder{VolumeId: vol.VolumeID, MountPath: "/data"}.Build()},
		}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	sb, err := m.sdk.Sandboxes.FromID(t.Context(), made.GetSandboxId(), nil)
	if err != nil {
		t.Fatal(err)
	}
	ending(t, sb)
	got, _ := m.run(t, sb, "/root/main.sh; cat /root/pkg/a.py /data/in/data.txt; "+
		"echo ok >/data/in/out.txt; ls -ln /root/main.sh")
	if !strings.HasPrefix(got, "hello\nx = 1\nfrom outside\n-rwxr-xr-x") || !strings.Contains(got, " 0 ") {
		t.Errorf("the sandbox says %q", got)
	}
	if err := sb.ReloadVolumes(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	file, err := stub.VolumeGetFile(ctx, pb.VolumeGetFileRequest_builder{VolumeId: vol.VolumeID,
		Path: "in/out.txt"}.Build())
	if err != nil || string(file.GetData()) != "ok\n" {
		t.Errorf("from outside the file is %q, %v", file.GetData(), err)
	}
}
