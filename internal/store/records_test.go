package store

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/internal/store/records"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

func TestRecordsConformance(t *testing.T) {
	t.Parallel()
	storetest.RunRecords(t, func(t *testing.T) records.Store {
		return open(t, filepath.Join(t.TempDir(), "db")).Records()
	})
}

func TestRecordsErrors(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s, ctx, id := db.Records(), t.Context(), records.ID{Account: "acme", ID: "ap-1"}
	_, get := s.Get(ctx, records.App, id)
	_, list := s.List(ctx, records.App)
	_, ids := s.IDs(ctx, records.App)
	for what, err := range map[string]error{
		"Put": s.Put(ctx, records.Record{Kind: records.App, ID: id}), "Get": get, "List": list, "IDs": ids,
		"Delete": s.Delete(ctx, records.App, id),
	} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}
