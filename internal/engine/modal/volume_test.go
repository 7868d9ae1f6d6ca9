package modal

import (
	"archive/tar"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/modal/records"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
)

// noted are volumes of which only notes exist.
func noted(t *testing.T, names ...string) *volumes {
	t.Helper()
	v := &volumes{e: &Engine{server: "abcdefghijkl"}, records: records.Volumes{Dir: t.TempDir()}}
	for _, name := range names {
		n := records.Volume{Name: name, Modal: v.nameOf(name), Created: time.Unix(5, 0), Made: true, Size: 3, Files: 2}
		if err := v.records.Write(n); err != nil {
			t.Fatal(err)
		}
	}
	return v
}

// mission: C1
func TestVolumeNotes(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	long := "acme~" + strings.Repeat("x", 128)
	v := noted(t, "b", "a", long)
	if err := v.records.Write(records.Volume{Name: "half"}); err != nil {
		t.Fatal(err)
	}
	list, err := v.List(ctx)
	if err != nil || len(list) != 3 || list[0].Name != "a" || list[1].Name != long || list[2].Size != 3 ||
		list[2].Files != 2 || !list[0].Created.Equal(time.Unix(5, 0)) {
		t.Errorf("List: %+v, %v", list, err)
	}
	for _, name := range []string{"half", "none"} { // the first is being made
		if _, err := v.Open(ctx, name); errors.KindOf(err) != errors.NotFound {
			t.Errorf("Open %s: %v", name, err)
		}
		if _, err := v.Use(name, "who"); errors.KindOf(err) != errors.NotFound {
			t.Errorf("Use %s: %v", name, err)
		}
	}
	if vol, err := v.Open(ctx, "a"); err != nil || vol.Name() != "a" {
		t.Errorf("Open: %v, %v", vol, err)
	}
	if _, err := v.Create(ctx, "../x"); errors.KindOf(err) != errors.Invalid {
		t.Errorf("a bad name: %v", err)
	}
	if err := v.Delete(ctx, "none"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("Delete of none: %v", err)
	}
	release, err := v.Use("a", "the sandbox x")
	if err != nil {
		t.Fatal(err)
	}
	if err := v.Delete(ctx, "a"); errors.KindOf(err) != errors.Conflict ||
		!strings.Contains(errors.Message(err), "the sandbox x") {
		t.Errorf("Delete of one in use: %v", err)
	}
	release()
	release()
	unbar, err := v.uses.Bar("a", "it")
	if err != nil {
		t.Fatalf("after its release: %v", err)
	}
	_, used := v.Use("a", "the sandbox y")
	_, _, mounted := v.mount(ctx, engine.Spec{ID: "y", Mounts: []engine.Mount{{Volume: "a", Path: "/x"}}},
		&sdk.SandboxCreateParams{})
	for what, err := range map[string]error{"Use": used, "mount": mounted, "Delete": v.Delete(ctx, "a")} {
		if errors.KindOf(err) != errors.Conflict || !strings.Contains(errors.Message(err), "is being deleted") {
			t.Errorf("%s while it is being deleted: %v", what, err)
		}
	}
	unbar()
	if release, err = v.Use("a", "the sandbox z"); err != nil {
		t.Errorf("after that: %v", err)
	} else {
		release()
	}
	if err := v.records.Change("none", func(*records.Volume) {}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("a change of none: %v", err)
	}
	if err := os.WriteFile(filepath.Join(v.records.Dir, records.Digest("a")+".json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := v.List(ctx); err == nil {
		t.Error("a damaged note is no error")
	}
	if err := v.records.Change("a", func(*records.Volume) {}); err == nil {
		t.Error("a change of a damaged note is no error")
	}
	if _, err := v.Create(ctx, "a"); err == nil {
		t.Error("Create with a damaged note is no error")
	}
}

// Names at Modal, where all of an environment share theirs.
func TestVolumeNames(t *testing.T) {
	t.Parallel()
	v, seen := noted(t), map[string]string{}
	for _, name := range []string{"a", "a~b", "a~c", strings.Repeat("x", 41), strings.Repeat("x", 128), "acme~data",
		"other~data"} {
		at := v.nameOf(name)
		if len(at) > 64 || !strings.HasPrefix(at, "abcdefghijkl-") || strings.Contains(at, "~") || seen[at] != "" {
			t.Errorf("%s is named %q, as is %q", name, at, seen[at])
		}
		seen[at] = name
	}
	if tag := tagOf("acme~data"); len(tag) > 63 || tag == tagOf("other~data") {
		t.Errorf("the tag is %q", tag)
	}
	from := tar.NewReader(directories(volume.StateDirs))
	for _, name := range volume.StateDirs {
		if hdr, err := from.Next(); err != nil || hdr.Name != name+"/" || hdr.Typeflag != tar.TypeDir {
			t.Errorf("%+v, %v", hdr, err)
		}
	}
}

func TestMountsThatCannotBe(t *testing.T) {
	t.Parallel()
	v := noted(t, "a")
	for what, c := range map[string]struct {
		mount engine.Mount
		kind  errors.Kind
	}{
		"a directory":         {engine.Mount{Dir: "/tmp", Path: "/x"}, errors.Unsupported},
		"no volume":           {engine.Mount{Volume: "none", Path: "/x"}, errors.NotFound},
		"a bucket":            {engine.Mount{Place: places.Place{Bucket: "b"}, Path: "/x"}, ""},
		"the program's place": {engine.Mount{Place: places.Place{Bucket: "b"}, Path: programDir}, errors.Invalid},
	} {
		if _, _, err := v.mount(t.Context(), engine.Spec{ID: "box", Mounts: []engine.Mount{c.mount}},
			&sdk.SandboxCreateParams{}); errors.KindOf(err) != c.kind {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := v.uses.Bar("a", "it"); err != nil {
		t.Error(err)
	}
}
