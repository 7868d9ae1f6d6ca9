package store

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/store/dicts"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

func TestDictsConformance(t *testing.T) {
	t.Parallel()
	storetest.RunDicts(t, func(t *testing.T) dicts.Store { return open(t, filepath.Join(t.TempDir(), "db")).Dicts() })
}

func TestDictsErrors(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s, ctx := db.Dicts(), t.Context()
	_, get := s.Get(ctx, "acme", "di-1")
	_, list := s.List(ctx, "acme")
	_, put := s.Put(ctx, "acme", "di-1", nil, dicts.Put{})
	_, _, _, value := s.Value(ctx, "acme", "di-1", nil)
	_, _, used := s.Used(ctx, "acme", "di-1", nil)
	_, _, _, remove := s.Remove(ctx, "acme", "di-1", nil)
	_, keys := s.Keys(ctx, "acme", "di-1", nil, 1, time.Time{})
	_, count := s.Count(ctx, "acme", "di-1", 1, time.Time{})
	for what, err := range map[string]error{
		"Create": s.Create(ctx, dicts.Dict{}), "Get": get, "List": list, "Put": put, "Value": value, "Used": used,
		"Remove": remove, "Keys": keys, "Count": count, "Clear": s.Clear(ctx, "acme", "di-1"),
		"Delete": s.Delete(ctx, "acme", "di-1"), "Hear": s.Hear(ctx, "acme", "di-1", time.Time{}),
		"Touch": s.Touch(ctx, "acme", "di-1", nil, time.Time{}), "Expire": s.Expire(ctx, time.Time{}, time.Time{}),
	} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}
