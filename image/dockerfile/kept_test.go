package dockerfile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
)

func (b *bench) kept(t *testing.T, owner string) map[image.KeptKind][]image.Kept {
	t.Helper()
	all, err := b.source.Kept(t.Context(), owner)
	if err != nil {
		t.Fatal(err)
	}
	byKind := map[image.KeptKind][]image.Kept{}
	for _, k := range all {
		byKind[k.Kind] = append(byKind[k.Kind], k)
	}
	return byKind
}

// TestAccountsHaveBuildCachesOfTheirOwn checks that each account sees and removes only its own builds' caches, and that
// builds of other accounts do not find them.
//
// mission: B2
func TestAccountsHaveBuildCachesOfTheirOwn(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	text := "FROM tiny\nRUN echo 1 >/1\nRUN --mount=type=cache,id=pkgs,target=/cache echo x >>/cache/n; cat /cache/n >/n\n"
	build := func(owner string) {
		t.Helper()
		if _, err := b.try(t, image.Spec{Dockerfile: text, Owner: owner}, image.BuildOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	build("alice")
	before := b.runner.starts()
	build("bob")
	if b.runner.starts() == before {
		t.Error("bob's build was served what alice's has made")
	}
	for _, owner := range []string{"alice", "bob"} {
		got := b.kept(t, owner)
		if layers := got[image.KeptLayer]; len(layers) != 2 || layers[0].Size == 0 ||
			!strings.HasPrefix(layers[1].Text, "RUN ") {
			t.Errorf("%s has the layers %+v", owner, layers)
		}
		if mounts := got[image.KeptMount]; len(mounts) != 1 || mounts[0].Text != "pkgs" || mounts[0].Size == 0 ||
			time.Since(mounts[0].Used) > time.Hour {
			t.Errorf("%s has the mounts %+v", owner, mounts)
		}
	}
	if got := b.kept(t, ""); len(got) != 0 {
		t.Errorf("the first account has %v", got)
	}

	mount, layer := b.kept(t, "alice")[image.KeptMount][0].ID, b.kept(t, "alice")[image.KeptLayer][0].ID
	for _, id := range []string{mount, layer, "", "0123"} {
		if _, err := b.source.Forget(t.Context(), "bob", id); errors.KindOf(err) != errors.NotFound {
			t.Errorf("bob removes %q: %v", id, err)
		}
	}
	end := b.cache.begin()
	if _, ok := b.cache.get(layer); !ok {
		t.Error("there is no such layer")
	}
	if _, err := b.source.Forget(t.Context(), "alice", layer); errors.KindOf(err) != errors.Conflict {
		t.Errorf("a layer in use: %v", err)
	}
	end()
	for _, id := range []string{mount[:12], layer[:12]} {
		if k, err := b.source.Forget(t.Context(), "alice", id); err != nil || !strings.HasPrefix(k.ID, id) {
			t.Errorf("%s: %+v, %v", id, k, err)
		}
	}
	if got := b.kept(t, "alice"); len(got[image.KeptMount]) != 0 || len(got[image.KeptLayer]) != 1 {
		t.Errorf("alice still has %+v", got)
	}
	if got := b.kept(t, "bob"); len(got[image.KeptMount]) != 1 || len(got[image.KeptLayer]) != 2 {
		t.Errorf("bob has %+v", got)
	}
}

// TestCollectCacheMounts checks that cache mounts are collected like layers, including those that a machine has
// excepted and those without a record.
//
// mission: B2
func TestCollectCacheMounts(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	b.build(t, "FROM tiny\nRUN --mount=type=cache,id=pkgs,target=/cache echo x >/cache/n\n", image.BuildOptions{})
	lost := filepath.Join(b.lib.dir, "volumes", "build-cache-lost")
	if err := os.Mkdir(lost, 0o755); err != nil {
		t.Fatal(err)
	}
	if freed, left, err := b.source.Collect(t.Context(), time.Now().Add(-time.Hour), -1, false); freed != 0 ||
		left == 0 || err != nil {
		t.Errorf("of what is too young it freed %d, left %d, %v", freed, left, err)
	}
	dry, left, err := b.source.Collect(t.Context(), time.Now().Add(time.Hour), -1, true)
	if dry == 0 || left != 0 || err != nil || len(b.kept(t, "")[image.KeptMount]) != 1 {
		t.Errorf("dry, it freed %d, left %d, %v", dry, left, err)
	}
	b.runner.refuse(func(op string) error {
		if op == "volume" {
			return errors.Newf(errors.Conflict, "in use")
		}
		return nil
	})
	if _, left, err := b.source.Collect(t.Context(), time.Now().Add(time.Hour), -1, false); left == 0 || err != nil {
		t.Errorf("of what is in use it left %d, %v", left, err)
	}
	b.runner.refuse(func(op string) error {
		if op == "volume" {
			return errors.Newf(errors.Internal, "broken")
		}
		return nil
	})
	if _, _, err := b.source.Collect(t.Context(), time.Now().Add(time.Hour), -1,
		false); errors.KindOf(err) != errors.Internal {
		t.Errorf("what cannot be removed: %v", err)
	}
	b.runner.refuse(nil)
	if _, left, err := b.source.Collect(t.Context(), time.Time{}, 0, false); left != 0 || err != nil {
		t.Errorf("for its size it left %d, %v", left, err)
	}
	if volumes, err := b.runner.Volumes(t.Context()); len(volumes) != 0 || err != nil {
		t.Errorf("there are still %v, %v", volumes, err)
	}
	if notes, _ := filepath.Glob(filepath.Join(b.cache.dir, "*.mount")); len(notes) != 0 {
		t.Errorf("there are still %v", notes)
	}
	b.runner.refuse(func(op string) error { return errors.Newf(errors.Internal, "broken") })
	if _, err := b.source.Kept(t.Context(), ""); err == nil {
		t.Error("volumes that cannot be listed are not there")
	}
	if _, err := New(Options{Cache: b.cache}).Kept(t.Context(), ""); errors.KindOf(err) != errors.Unavailable {
		t.Errorf("not connected: %v", err)
	}
}

// TestBindMountsInCacheKey checks that another owner, mode or content of a mounted file or directory is another step.
//
// mission: B2
func TestBindMountsInCacheKey(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	for _, change := range []string{"true", "chown 1000 /d", "chown 1000:50 /d/f", "chmod 700 /d", "chmod 600 /d/f",
		"echo 2 >/d/f"} {
		img := b.build(t, "FROM tiny AS a\nRUN mkdir /d && echo 1 >/d/f && "+change+"\nFROM tiny\n"+
			"RUN --mount=from=a,source=/d,target=/m stat -c '%a %u:%g' /m >/dir\n"+
			"FROM tiny\nRUN --mount=from=a,source=/d/f,target=/m { stat -c '%a %u:%g' /m; cat /m; } >/file\n"+
			"COPY --from=1 /dir /dir\n", image.BuildOptions{})
		want := map[string]string{"/dir": "755 0:0\n", "/file": "644 0:0\n1\n"}
		switch change {
		case "chown 1000 /d":
			want["/dir"] = "755 1000:0\n"
		case "chown 1000:50 /d/f":
			want["/file"] = "644 1000:50\n1\n"
		case "chmod 700 /d":
			want["/dir"] = "700 0:0\n"
		case "chmod 600 /d/f":
			want["/file"] = "600 0:0\n1\n"
		case "echo 2 >/d/f":
			want["/file"] = "644 0:0\n2\n"
		}
		img.want(want)
	}
}
