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
	"github.com/RelevanceAI/harvest/internal/session/memory/names"
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

// TestMove checks that a moved memory is added to the other one, whose own entries stay, with the mark of its seed.
func TestMove(t *testing.T) {
	t.Parallel()
	s, ctx := open(t), t.Context()
	set := func(name, entity, text string) {
		t.Helper()
		e := memory.Entity{Name: entity, Type: "note", Observations: []string{text}}
		if err := s.Set(ctx, name, e); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Seed(ctx, "local-p", []byte(`{"entities":[{"name":"seed","entityType":"note"}],`+
		`"relations":[{"from":"seed","to":"test","relationType":"knows"}]}`)); err != nil {
		t.Fatal(err)
	}
	set("local-p", "test", "old")
	set("local-p", "lint", "old")
	set("local-p-0123", "test", "own")
	if err := s.Move(ctx, "local-p", "local-p-0123"); err != nil {
		t.Fatal(err)
	}
	g, err := s.Get(ctx, "local-p-0123")
	want := memory.Graph{Entities: []memory.Entity{
		{Name: "test", Type: "note", Observations: []string{"own"}},
		{Name: "seed", Type: "note", Observations: []string{}},
		{Name: "lint", Type: "note", Observations: []string{"old"}},
	}, Relations: []memory.Relation{{From: "seed", To: "test", Type: "knows"}}}
	if err != nil || cmp.Diff(want, g) != "" {
		t.Errorf("%v\n%s", err, cmp.Diff(want, g))
	}
	if done, err := s.Seeded(ctx, "local-p-0123"); !done || err != nil {
		t.Errorf("the moved memory would be seeded again: %v", err)
	}
	if _, err := s.Get(ctx, "local-p"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("the old memory is still there: %v", err)
	}
	for to, kind := range map[string]errors.Kind{"local-p-0123": errors.Invalid, "../x": errors.Invalid} {
		if err := s.Move(ctx, "local-p-0123", to); errors.KindOf(err) != kind {
			t.Errorf("to %q: %v, want %s", to, err, kind)
		}
	}
	if err := s.Move(ctx, "nosuch", "local-p"); errors.KindOf(err) != errors.NotFound {
		t.Errorf("without a memory: %v", err)
	}
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
	if err != nil || len(list) != 1 || list[0].Name != "o-n" || list[0].Size == 0 {
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

// TestLongestName checks that volumes take the longest names of memories.
func TestLongestName(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("o", 200)
	for _, name := range []string{names.Of("", long, "n"), names.Local(long, strings.Repeat("0", 64))} {
		if err := volume.CheckName(memory.Prefix + name); err != nil {
			t.Error(err)
		}
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
