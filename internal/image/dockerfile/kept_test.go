package dockerfile

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/moby/buildkit/solver/pb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/image"
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

// TestCacheMountsAreLocked checks that the files of a cache mount have one user at a time, unless it is shared.
func TestCacheMountsAreLocked(t *testing.T) {
	t.Parallel()
	x := &executor{build: &build{source: New(Options{})}}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for sharing, shared := range map[pb.CacheSharingOpt]bool{pb.CacheSharingOpt_SHARED: true,
		pb.CacheSharingOpt_PRIVATE: false, pb.CacheSharingOpt_LOCKED: false} {
		r := &run{mounts: []mount{{Mount: &pb.Mount{MountType: pb.MountType_CACHE,
			CacheOpt: &pb.CacheOpt{ID: sharing.String(), Sharing: sharing}}}}}
		unlock, err := x.lockCaches(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := x.lockCaches(ended, r); (err == nil) != shared {
			t.Errorf("%s: while it is in use, got %v", sharing, err)
		}
		unlock()
		if unlock, err = x.lockCaches(ended, r); err != nil {
			t.Errorf("%s: once it is free, got %v", sharing, err)
		}
		unlock()
	}
}

// TestSecretsInVariables checks that a secret with a NUL byte is not cut short in a variable.
//
// mission: B2
func TestSecretsInVariables(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	for value, want := range map[string]errors.Kind{"whole": "", "a\x00b": errors.Invalid} {
		const text = "FROM tiny\nRUN --mount=type=secret,id=k,env=K test \"$K\" = whole\n"
		_, err := b.try(t, image.Spec{Dockerfile: text},
			image.BuildOptions{Force: true, Secrets: map[string][]byte{"k": []byte(value)}})
		if err != nil && (errors.KindOf(err) != want || !strings.Contains(errors.Message(err), "NUL byte")) ||
			err == nil && want != "" {
			t.Errorf("%q: got %v", value, err)
		}
	}
}

// mission: B2
func TestPrune(t *testing.T) {
	t.Parallel()
	b := newBench(t, Options{})
	text := "FROM tiny\nRUN echo 1 >/1\nRUN echo 2 >/2\n"
	b.build(t, text, image.BuildOptions{})
	layers, err := b.cache.layers()
	if err != nil || len(layers) != 2 || layers[0].Size == 0 {
		t.Fatalf("got %+v, %v", layers, err)
	}
	size := layers[0].Size + layers[1].Size
	if freed, _, err := b.source.Collect(t.Context(), time.Now().Add(-time.Hour), -1, false); err != nil || freed != 0 {
		t.Errorf("fresh layers were removed: %d, %v", freed, err)
	}
	end := b.cache.begin()
	for key := range keys(t, b.cache) {
		if _, ok := b.cache.get(key); !ok {
			t.Errorf("%s is no layer", key)
		}
	}
	if freed, _, err := b.cache.Collect(t.Context(), time.Time{}, 0, false); err != nil || freed != 0 {
		t.Errorf("layers that a build uses were removed: %d, %v", freed, err)
	}
	end()
	if freed, _, err := b.cache.Collect(t.Context(), time.Time{}, 0, true); err != nil || freed != size {
		t.Errorf("%d bytes would be freed of %d, %v", freed, size, err)
	}
	if freed, left, err := b.cache.Collect(t.Context(), time.Now(), -1, false); left != 0 || err != nil ||
		freed != size {
		t.Errorf("%d bytes were freed of %d, %v", freed, size, err)
	}
	if left, err := b.cache.made("*", layerExt, rootExt); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
	before := b.runner.starts()
	b.build(t, text, image.BuildOptions{}).want(map[string]string{"/1": "1\n", "/2": "2\n"})
	if b.runner.starts() == before {
		t.Error("what was pruned is still used")
	}
	// A layer that is damaged, or only half there, is built again; leftovers go when the cache is opened.
	for key := range keys(t, b.cache) {
		e, err := b.cache.read(key)
		if err == nil {
			err = os.Truncate(b.cache.layerName(key, e), 1)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	half := []string{"x.new", strings.Repeat("a", 64) + ".1.tar", strings.Repeat("b", 64) + ".1.new"}
	for key := range keys(t, b.cache) { // of a build that replaced the layer
		half = append(half, key+".old.tar")
	}
	for _, name := range half {
		if err := os.WriteFile(filepath.Join(b.cache.dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := OpenCache(b.cache.dir, 1); err != nil {
		t.Fatal(err)
	}
	for _, name := range half {
		if _, err := os.Stat(filepath.Join(b.cache.dir, name)); err == nil {
			t.Errorf("left: %s", name)
		}
	}
	if layers, err := b.cache.made("*", layerExt); err != nil || len(layers) != 2 {
		t.Errorf("got %v, %v", layers, err)
	}
	b.build(t, text, image.BuildOptions{}).want(map[string]string{"/1": "1\n", "/2": "2\n"})
	if _, err := OpenCache(b.cache.path(strings.Repeat("c", 64), "json")+"/x\x00", 1); err == nil {
		t.Error("a cache was opened at a name that cannot be")
	}
}

func keys(t *testing.T, c *Cache) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	names, err := filepath.Glob(filepath.Join(c.dir, "*.json"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		all[strings.TrimSuffix(filepath.Base(name), ".json")] = true
	}
	return all
}
