package transfer_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/modal/blobs"
	"github.com/RelevanceAI/harvest/internal/modal/transfer"
)

// TestTicketsAllowOneThing checks that a URL works only as it was made: with its method and its key, and signed by the
// same server. Each request is reported.
//
// mission: 6.10
func TestTicketsAllowOneThing(t *testing.T) {
	t.Parallel()
	store, err := blobs.Open(t.TempDir(), blobs.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	var reported []string
	options := func(key string) transfer.Options {
		return transfer.Options{Key: []byte(key), Blobs: store, Blocks: store,
			Admit: func(ctx context.Context, account, key string) (context.Context, context.CancelFunc, error) {
				if key != "key_1" {
					return nil, nil, errors.Newf(errors.Unauthenticated, "the key has ended")
				}
				return ctx, func() {}, nil
			},
			Range: func(_ context.Context, ticket transfer.Ticket) ([]byte, error) {
				if ticket.Path == "gone" {
					return nil, errors.Newf(errors.NotFound, "it has gone")
				}
				return []byte(ticket.Account + ticket.Path), nil
			},
			Done: func(_ context.Context, ticket transfer.Ticket, _ string, err error) {
				reported = append(reported, strings.TrimSpace(ticket.Op+" "+string(errors.KindOf(err))))
			}}
	}
	s := transfer.New(options("secret"))
	url := func(by *transfer.Server, ticket transfer.Ticket) string {
		t.Helper()
		made, err := by.URL("http://host/", ticket)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	get := transfer.Ticket{Account: "a", Key: "key_1", Op: transfer.GetRange, Path: "f"}
	ended, gone, nothing := get, get, get
	ended.Key, gone.Path, nothing.Op = "key_2", "gone", "none"
	for _, c := range []struct {
		what, method, url string
		code              int
		report            string
	}{
		{"a part of a file", http.MethodGet, url(s, get), http.StatusOK, "range"},
		{"another method", http.MethodPut, url(s, get), http.StatusNotFound, "range not_found"},
		{"a key that has ended", http.MethodGet, url(s, ended), http.StatusUnauthorized, "range unauthenticated"},
		{"a file that has gone", http.MethodGet, url(s, gone), http.StatusNotFound, "range not_found"},
		{"no operation", http.MethodGet, url(s, nothing), http.StatusNotFound, "none not_found"},
		{"another server", http.MethodGet, url(transfer.New(options("other")), get), http.StatusForbidden, "denied"},
	} {
		reported = nil
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), c.method, c.url, nil))
		if w.Code != c.code || strings.Join(reported, ",") != c.report {
			t.Errorf("%s: %d %q, reported %q", c.what, w.Code, w.Body, reported)
		}
		if c.code == http.StatusOK && (w.Body.String() != "af" ||
			w.Header().Get("Repr-Digest") != "sha-256=:UDEmh40X/Na9598yD/brfCeKHELzABSgOxfz3QwCPB0=:") {
			t.Errorf("%s: %q, %v", c.what, w.Body, w.Header())
		}
	}
}
