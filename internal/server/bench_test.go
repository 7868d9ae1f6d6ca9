package server_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/server"
	"github.com/RelevanceAI/harvest/internal/store"
)

// BenchmarkList is P14 in one process, for profiles.
func BenchmarkList(b *testing.B) {
	ctx, dir := b.Context(), b.TempDir()
	db, err := store.Open(ctx, filepath.Join(dir, "harvest.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer db.Close()
	for n := range 1000 {
		at := time.Now().Add(-time.Hour)
		if err := db.Sandboxes().Put(ctx, record.Sandbox{ID: fmt.Sprintf("sbx_%026d", n), Account: account.Personal,
			Name: fmt.Sprintf("ended-%d", n), Status: record.Terminated, Engine: "fake",
			Created: at, Started: at, Ended: at, Expires: at, LastUsed: at,
			Tags: map[string]string{"n": "1"}}); err != nil {
			b.Fatal(err)
		}
	}
	eng, err := fake.Open(dir, fake.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer eng.Close()
	fleet, err := fleet.Open(ctx, fleet.Options{Engine: eng, Store: db.Sandboxes()})
	if err != nil {
		b.Fatal(err)
	}
	for range 100 {
		if _, err := fleet.Create(ctx, account.Personal, spec.Request{}); err != nil {
			b.Fatal(err)
		}
	}
	ring := account.NewRing(db.Keys())
	_, key, err := ring.Create(ctx, account.Local(), account.Request{Name: "bench", Role: account.Admin})
	if err != nil {
		b.Fatal(err)
	}
	srv := server.New(ctx, server.Options{Fleet: fleet, Images: eng.Images(), Volumes: eng.Volumes(), Keys: ring})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go func() { _ = srv.Serve(l) }()
	defer srv.Close()
	for _, query := range []string{"?limit=20", "?all=true&limit=20"} {
		b.Run(query, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				req, err := http.NewRequestWithContext(ctx, http.MethodGet,
					"http://"+l.Addr().String()+api.Sandboxes+query, nil)
				if err != nil {
					b.Fatal(err)
				}
				req.Header.Set("Authorization", "Bearer "+key.Reveal())
				resp, err := http.DefaultClient.Do(req)
				if err != nil || resp.StatusCode != http.StatusOK {
					b.Fatal(resp, err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
}
