package memory_test

import (
	"archive/tar"
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/session/memory"
)

func open(t *testing.T) memory.Store {
	t.Helper()
	all, err := volume.OpenDir(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = all.Close() })
	return memory.Store{Volumes: volume.Of(all, "")}
}

// TestSeed checks that the seed of the agent image fills a memory once: forgotten entries stay forgotten, and known
// ones stay unchanged.
// mission: C3, E6
func TestSeed(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	seed, err := os.ReadFile("../../image/agent/files/app/memory-seed.json")
	if err != nil {
		t.Fatal(err)
	}
	known := memory.Entity{Name: "repository", Type: "project", Observations: []string{"make test"}}
	if err := s.Set(ctx, "o-n", known); err != nil {
		t.Fatal(err)
	}
	if did, err := s.Seed(ctx, "o-n", seed); !did || err != nil {
		t.Fatalf("%t, %v", did, err)
	}
	g, err := s.Get(ctx, "o-n")
	if e, _ := g.Entity("repository"); err != nil || cmp.Diff(known, e) != "" || len(g.Entities) < 4 ||
		len(g.Relations) < 3 {
		t.Errorf("%+v, %v", g, err)
	}
	if err := s.Remove(ctx, "o-n", "panic-button"); err != nil {
		t.Fatal(err)
	}
	if did, err := s.Seed(ctx, "o-n", seed); did || err != nil {
		t.Errorf("again: %t, %v", did, err)
	}
	g, err = s.Get(ctx, "o-n")
	if _, ok := g.Entity("panic-button"); ok || err != nil {
		t.Errorf("%+v, %v", g, err)
	}
	for _, r := range g.Relations {
		if r.To == "panic-button" || r.From == "panic-button" {
			t.Errorf("%+v", r)
		}
	}
	if _, err := s.Seed(ctx, "other", []byte("{")); errors.KindOf(err) != errors.Invalid {
		t.Error(err)
	}
	list, err := s.List(ctx)
	if err != nil || len(list) != 2 || list[0].Name != "o-n" || list[0].Size == 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if err := s.Delete(ctx, "o-n"); err != nil {
		t.Error(err)
	}
	if _, err := s.Get(ctx, "o-n"); errors.KindOf(err) != errors.NotFound {
		t.Error(err)
	}
}

func TestSet(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	for _, e := range []memory.Entity{{Name: "a", Type: "t"},
		{Name: "a", Type: "u", Observations: []string{"1 <2>", "3"}}, {Name: "b", Type: "t"}} {
		if err := s.Set(ctx, "x", e); err != nil {
			t.Fatal(err)
		}
	}
	want := memory.Graph{Entities: []memory.Entity{{Name: "a", Type: "u", Observations: []string{"1 <2>", "3"}},
		{Name: "b", Type: "t", Observations: []string{}}}, Relations: []memory.Relation{}}
	if got, err := s.Get(ctx, "x"); err != nil || cmp.Diff(want, got) != "" {
		t.Errorf("%v %s", err, cmp.Diff(want, got))
	}
	for _, e := range []memory.Entity{{Name: " ", Type: "t"}, {Name: "a\nb", Type: "t"}, {Name: "a"},
		{Name: "a", Type: "t", Observations: []string{strings.Repeat("x", 1<<20)}}} {
		if err := s.Set(ctx, "x", e); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%.30v: %v", e, err)
		}
	}
	if err := s.Set(ctx, "../x", memory.Entity{Name: "a", Type: "t"}); errors.KindOf(err) != errors.Invalid {
		t.Error(err)
	}
	for what, err := range map[string]error{"no entity": s.Remove(ctx, "x", "c"), "no memory": s.Remove(ctx, "y", "c"),
		"bad name": s.Remove(ctx, "../y", "c"), "delete": s.Delete(ctx, "y")} {
		if errors.KindOf(err) != errors.NotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestOddFiles checks that arbitrary files that an agent writes into its memory are handled.
func TestOddFiles(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	v, err := s.Volumes.Create(ctx, memory.Prefix+"odd")
	if err != nil {
		t.Fatal(err)
	}
	put := func(h *tar.Header, text string) {
		t.Helper()
		var b bytes.Buffer
		w := tar.NewWriter(&b)
		h.Name, h.Size = memory.File, int64(len(text))
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if err := v.CopyIn(ctx, "", &b); err != nil {
			t.Fatal(err)
		}
	}
	put(&tar.Header{Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"}, "")
	if g, err := s.Get(ctx, "odd"); err == nil && len(g.Entities) > 0 {
		t.Errorf("%+v", g)
	}
	if err := v.Remove(ctx, memory.File); err != nil {
		t.Fatal(err)
	}
	put(&tar.Header{Mode: 0o600},
		"no json\n{\"type\":\"other\"}\n\n{\"type\":\"entity\",\"name\":\"a\",\"entityType\":\"t\"}\n")
	if g, err := s.Get(ctx, "odd"); err != nil || len(g.Entities) != 1 {
		t.Errorf("%+v, %v", g, err)
	}
}

func TestName(t *testing.T) {
	t.Parallel()
	for want, parts := range map[string][3]string{
		"owner-repo": {"github.com", "Owner", "Repo"}, "gitlab.com-a-b-c": {"gitlab.com", "a-b", "c"},
		"g-8443-o-n": {"g:8443", "o", "n"}, "local-x": {"", "local", "x"}, "": {"github.com", "o", ""},
	} {
		if got := memory.Name(parts[0], parts[1], parts[2]); got != want {
			t.Errorf("%v: %q, want %q", parts, got, want)
		}
	}
	long := memory.Name("", strings.Repeat("o", 200), "n")
	if err := volume.CheckName(memory.Prefix + long); err != nil {
		t.Error(err)
	}
}

func FuzzDecode(f *testing.F) {
	f.Add("{\"type\":\"entity\",\"name\":\"a\",\"entityType\":\"t\",\"observations\":[\"x\"]}\n" +
		"{\"type\":\"relation\",\"from\":\"a\",\"to\":\"b\",\"relationType\":\"r\"}\n")
	f.Add("\x00\n{")
	f.Fuzz(func(t *testing.T, text string) {
		g, err := memory.Decode(strings.NewReader(text))
		if err != nil {
			return
		}
		again, err := g.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if back, err := memory.Decode(bytes.NewReader(again)); err != nil || cmp.Diff(g, back) != "" {
			t.Errorf("%v %s", err, cmp.Diff(g, back))
		}
	})
}
