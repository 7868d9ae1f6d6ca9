package inside

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// in performs an operation on the volume in dir.
func in(t *testing.T, c *wire.Client, stdin []byte, req VolumeRequest) (string, error) {
	t.Helper()
	text, err := json.Marshal(req)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = c.Tool(t.Context(), &out, bytes.NewReader(stdin), ToolVolume, string(text))
	return out.String(), err
}

// mission: C1
func TestVolumeFiles(t *testing.T) {
	t.Parallel()
	c, dir := claimed(t), t.TempDir()
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	for _, h := range []*tar.Header{{Typeflag: tar.TypeReg, Name: "file", Mode: 0o640, Size: 3},
		{Typeflag: tar.TypeSymlink, Name: "out", Linkname: "/etc"}} {
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte("abc")); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	answer, err := in(t, c, archive.Bytes(), VolumeRequest{Op: VolumeUnpack, Dir: dir, Path: "sub"})
	if err != nil || answer != `{"Size":3,"Files":2}`+"\n" {
		t.Fatalf("unpack: %q, %v", answer, err)
	}
	answer, err = in(t, c, nil, VolumeRequest{Op: VolumeList, Dir: dir, Path: "/sub"})
	var list []volume.Entry
	if json.Unmarshal([]byte(answer), &list) != nil || len(list) != 2 || list[0].Mode != 0o100640 ||
		list[1].Link != "/etc" || err != nil {
		t.Errorf("list: %q, %v", answer, err)
	}
	r, err := c.ToolOutput(t.Context(), ToolVolume, `{"Op":"pack","Dir":"`+dir+`","Path":"sub/file"}`)
	if err != nil {
		t.Fatal(err)
	}
	hdr, err := tar.NewReader(r).Next()
	if err != nil || hdr.Name != "file" || hdr.Size != 3 {
		t.Errorf("pack: %+v, %v", hdr, err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	for _, op := range []VolumeOp{VolumePack, VolumeList, VolumeRemove, VolumeUnpack} {
		if answer, err := in(t, c, archive.Bytes(),
			VolumeRequest{Op: op, Dir: dir, Path: "sub/out/passwd"}); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s of what is elsewhere: %q, %v", op, answer, err)
		}
	}
	if answer, err := in(t, c, nil, VolumeRequest{Op: VolumeRemove, Dir: dir, Path: "sub/file"}); err != nil ||
		answer != `{"Size":0,"Files":1}`+"\n" {
		t.Errorf("remove: %q, %v", answer, err)
	}
	if _, err := in(t, c, nil, VolumeRequest{Op: VolumeMeasure, Dir: dir + "/none"}); err == nil {
		t.Error("a volume that is not there can be measured")
	}
	if _, err := in(t, c, nil, VolumeRequest{Op: "dance", Dir: dir}); errors.KindOf(err) != errors.Unsupported {
		t.Errorf("an unknown operation: %v", err)
	}
	if err := c.Tool(t.Context(), &archive, nil, ToolVolume, "{"); err == nil {
		t.Error("half a request is no error")
	}
}

func claim(t *testing.T, c *wire.Client, id string, mounts ...wire.Mount) error {
	t.Helper()
	_, err := c.Call(t.Context(), wire.Request{Op: wire.Claim,
		Claim: &wire.ClaimArgs{ID: id, Env: map[string]string{"A": "b"}, OutputBytes: 1 << 20, Mounts: mounts,
			Spec: &engine.Spec{ID: id}}})
	return err
}

func TestLinks(t *testing.T) {
	t.Parallel()
	c, dir := first(t), t.TempDir()
	source, deep, full := filepath.Join(dir, "source"), filepath.Join(dir, "a/b"), filepath.Join(dir, "full")
	for _, d := range []string{source, filepath.Join(full, "files")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 { // the second time it is there
		if err := claim(t, c, "box", wire.Mount{Source: source, Path: deep}); err != nil {
			t.Fatal(err)
		}
	}
	if to, err := os.Readlink(deep); err != nil || to != source {
		t.Errorf("the second path leads to %q, %v", to, err)
	}
	if err := claim(t, c, "box", wire.Mount{Source: source, Path: full}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a path with files: %v", err)
	}
	if err := claim(t, c, "box", wire.Mount{Source: source,
		Path: "/proc/none/x"}); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a path that cannot be made: %v", err)
	}
	reply, err := c.Call(t.Context(), wire.Request{Op: wire.Info})
	if err != nil || reply.Claim == nil || reply.Claim.Spec == nil || reply.Claim.Spec.ID != "box" ||
		reply.Claim.Env["A"] != "b" {
		t.Errorf("it remembers %+v, %v", reply.Claim, err)
	}
}

// TestInherit checks that the command records in a snapshot belong to the original sandbox.
func TestInherit(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	dir := filepath.Join(home, "commands")
	put := func(id, info string) string {
		name := filepath.Join(dir, id, "info.json")
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(info), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := inherit(dir, "first"); err != nil {
		t.Fatal(err)
	}
	running, ended := put("running", `{"id":"running"}`), put("ended", `{"id":"ended","exit":{"code":3}}`)
	put("none", "?")
	if err := inherit(dir, "first"); err != nil { // carried over
		t.Fatal(err)
	}
	for file, want := range map[string]string{running: `"code":137`, ended: `"code":3`} {
		if text, err := os.ReadFile(file); err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s has %s, %v", file, text, err)
		}
	}
	if err := inherit(dir, "second"); err != nil { // a fork
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("another sandbox has %v, %v", left, err)
	}
	if err := inherit(filepath.Join(home, "none", "commands"), "x"); err == nil {
		t.Error("a directory that is not there is no error")
	}
	if err := os.Mkdir(filepath.Join(home, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(home, "d", ownerName), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := inherit(filepath.Join(home, "d", "commands"), "x"); err == nil {
		t.Error("an owner that cannot be read is no error")
	}
}
