package store

import (
	"path/filepath"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/store/storetest"
)

func TestSecretsConformance(t *testing.T) {
	t.Parallel()
	storetest.RunSecrets(t, func(t *testing.T) secret.Store {
		return open(t,
			filepath.Join(t.TempDir(), "db")).Secrets()
	})
}

func TestSecretsErrors(t *testing.T) {
	t.Parallel()
	db := open(t, filepath.Join(t.TempDir(), "db"))
	_, err := db.write.Exec("INSERT INTO secrets VALUES ('acme', 'one', 'no JSON', x'00', 0, 0, 0, '', '', '')")
	if err != nil {
		t.Fatal(err)
	}
	_, err = db.Secrets().Get(t.Context(), "acme", "one")
	check(t, errors.Message(err), "damaged")
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	s := db.Secrets()
	_, get := s.Get(t.Context(), "acme", "one")
	_, list := s.List(t.Context(), "")
	_, swap := s.Swap(t.Context(), secret.Record{}, secret.Record{})
	for what, err := range map[string]error{
		"Put": s.Put(t.Context(), secret.Record{}), "Get": get, "List": list,
		"Delete": s.Delete(t.Context(), "acme", "one"),
		"Swap":   swap,
		"Used":   s.Used(t.Context(), "acme", "one", storetest.Full("x").Created),
	} {
		if err == nil {
			t.Errorf("%s on a closed database succeeded", what)
		}
	}
}
