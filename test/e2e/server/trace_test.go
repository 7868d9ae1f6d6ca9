package server

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/RelevanceAI/harvest/test/host"
)

// TestTraces checks that the server's work arrives as traces at a collector, without any text written by clients.
// mission: F6
func TestTraces(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var got []*tracev1.Span
	raw := ""
	ts := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var data tracev1.TracesData
		if err != nil || proto.Unmarshal(body, &data) != nil || r.URL.Path != "/v1/traces" {
			w.WriteHeader(http.StatusBadRequest)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		raw += string(body)
		for _, rs := range data.ResourceSpans {
			for _, ss := range rs.ScopeSpans {
				got = append(got, ss.Spans...)
			}
		}
	}))
	defer ts.Close()
	h := host.New(t, "fake", nil)
	h.Env.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", ts.URL)
	h.Env.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "key=CANARY-header")
	h.Must("sandbox", "create", "--name", "CANARY-name", "-e", "A=CANARY-env")
	h.Must("sandbox", "exec", "CANARY-name", "--", "echo", "CANARY-argument")
	h.Run("sandbox", "get", "CANARY-nosuch")
	h.Must("run", "--", "true")
	h.Must("down", "--sandboxes") // at which the rest is sent
	mu.Lock()
	defer mu.Unlock()
	byName := map[string]*tracev1.Span{}
	byID := map[string]*tracev1.Span{}
	for _, s := range got {
		byName[s.Name], byID[string(s.SpanId)] = s, s
	}
	for _, name := range []string{"POST /v1/sandboxes", "GET /v1/sandboxes/{id}/exec", "GET /v1/sandboxes/{id}",
		"sandbox.create", "sandbox.create.create", "GET /v1/run"} {
		if byName[name] == nil {
			t.Errorf("there is no span %s", name)
		}
	}
	if stage := byName["sandbox.create.create"]; stage != nil {
		up := byID[string(stage.ParentSpanId)]
		if up == nil || up.Name != "sandbox.create" || byID[string(up.ParentSpanId)] == nil ||
			stage.EndTimeUnixNano < stage.StartTimeUnixNano || stage.StartTimeUnixNano < up.StartTimeUnixNano {
			t.Errorf("a stage is not below its creation: %v, %v", stage, up)
		}
	}
	if strings.Contains(raw, "CANARY") {
		t.Error("spans have what clients wrote")
	}
	if strings.Contains(h.Log(), "CANARY-header") {
		t.Error("the collector's key is in the log")
	}
}
