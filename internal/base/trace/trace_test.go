package trace

import (
	"context"
	"encoding/hex"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	api "go.opentelemetry.io/otel/trace"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/RelevanceAI/harvest/client/errors"
)

// receiver receives spans by the protocol.
type receiver struct {
	mu      sync.Mutex
	headers []http.Header
	got     []*tracev1.ResourceSpans
	refuse  []int // statuses of the next answers
}

func (c *receiver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	// An ExportTraceServiceRequest has the same field, as the proto file says.
	var data tracev1.TracesData
	if err == nil {
		err = proto.UnmarshalOptions{DiscardUnknown: false}.Unmarshal(body, &data)
	}
	if err != nil || r.Method != http.MethodPost || r.URL.Path != "/v1/traces" ||
		r.Header.Get("Content-Type") != "application/x-protobuf" {
		http.Error(w, "not an export", http.StatusBadRequest)
		return
	}
	c.headers = append(c.headers, r.Header)
	if len(c.refuse) > 0 {
		status := c.refuse[0]
		c.refuse = c.refuse[1:]
		w.Header().Set("Retry-After", "1")
		w.WriteHeader(status)
		return
	}
	c.got = append(c.got, data.ResourceSpans...)
	w.Header().Set("Content-Type", "application/x-protobuf")
}

func environ(pairs ...string) func(string) string {
	return func(name string) string {
		for _, pair := range pairs {
			if value, ok := strings.CutPrefix(pair, name+"="); ok {
				return value
			}
		}
		return ""
	}
}

// mission: F6
func TestSpansReachACollector(t *testing.T) {
	c := &receiver{refuse: []int{503}}
	ts := httptest.NewServer(c)
	defer ts.Close()
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
	end, err := Open(t.Context(), environ("OTEL_EXPORTER_OTLP_ENDPOINT="+ts.URL,
		"OTEL_EXPORTER_OTLP_HEADERS=api-key=a%20b, x=1"), "v1")
	if err != nil {
		t.Fatal(err)
	}
	in := propagation.MapCarrier{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
		"tracestate": "vendor=1"}
	ctx := otel.GetTextMapPropagator().Extract(t.Context(), in)
	tracer := otel.Tracer("one", api.WithInstrumentationVersion("2"))
	ctx, parent := tracer.Start(ctx, "GET /v1/things", api.WithSpanKind(api.SpanKindServer))
	_, child := tracer.Start(ctx, "child", api.WithTimestamp(time.Unix(10, 5)))
	child.SetAttributes(attribute.String("s", "text"), attribute.Int("i", -7), attribute.Bool("b", true),
		attribute.Float64("f", 0.5), attribute.StringSlice("l", []string{"x", "y"}))
	child.SetStatus(codes.Error, "invalid")
	child.End(api.WithTimestamp(time.Unix(12, 0)))
	parent.SetStatus(codes.Ok, "")
	parent.End()
	_, other := otel.Tracer("two").Start(t.Context(), "other")
	other.End()
	end(t.Context())

	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.got) != 1 || len(c.headers) != 2 || c.headers[1].Get("Api-Key") != "a b" || c.headers[1].Get("X") != "1" {
		t.Fatalf("%d batches, %v", len(c.got), c.headers)
	}
	what := map[string]string{}
	for _, kv := range c.got[0].Resource.Attributes {
		what[kv.Key] = kv.Value.GetStringValue()
	}
	if what["service.name"] != "harvest" || what["service.version"] != "v1" ||
		what["deployment.environment"] != "test" {
		t.Errorf("the resource is %v", what)
	}
	scopes := c.got[0].ScopeSpans
	if len(scopes) != 2 || scopes[0].Scope.Name != "one" || scopes[0].Scope.Version != "2" ||
		len(scopes[0].Spans) != 2 || scopes[1].Scope.Name != "two" {
		t.Fatalf("scopes: %v", scopes)
	}
	kid, dad := scopes[0].Spans[0], scopes[0].Spans[1]
	if hex.EncodeToString(dad.TraceId) != "0af7651916cd43dd8448eb211c80319c" ||
		hex.EncodeToString(dad.ParentSpanId) != "b7ad6b7169203331" || dad.TraceState != "vendor=1" ||
		dad.Kind != tracev1.Span_SPAN_KIND_SERVER || dad.Status.Code != tracev1.Status_STATUS_CODE_OK ||
		string(kid.ParentSpanId) != string(dad.SpanId) || string(kid.TraceId) != string(dad.TraceId) {
		t.Errorf("parent %v, child %v", dad, kid)
	}
	values := map[string]any{}
	for _, kv := range kid.Attributes {
		values[kv.Key] = kv.Value
	}
	if kid.StartTimeUnixNano != 10_000_000_005 || kid.EndTimeUnixNano != 12_000_000_000 ||
		kid.Status.Code != tracev1.Status_STATUS_CODE_ERROR || kid.Status.Message != "invalid" ||
		kid.Kind != tracev1.Span_SPAN_KIND_INTERNAL || len(kid.Attributes) != 5 ||
		kid.Attributes[1].Value.GetIntValue() != -7 || !kid.Attributes[2].Value.GetBoolValue() ||
		kid.Attributes[3].Value.GetDoubleValue() != 0.5 ||
		len(kid.Attributes[4].Value.GetArrayValue().GetValues()) != 2 {
		t.Errorf("child %v, %v", kid, values)
	}
	if len(scopes[1].Spans[0].ParentSpanId) != 0 {
		t.Error("a root has a parent")
	}
}

func TestWhatCannotBeDelivered(t *testing.T) {
	t.Parallel()
	c := &receiver{refuse: []int{400}}
	ts := httptest.NewServer(c)
	defer ts.Close()
	send := func(ctx context.Context, url string) error {
		t.Helper()
		to, err := configure(environ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT="+url, "OTEL_EXPORTER_OTLP_TIMEOUT=60000"))
		if err != nil {
			t.Fatal(err)
		}
		e, err := to.exporter(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return errors.Join(e.ExportSpans(ctx, spans(t)), e.Shutdown(t.Context()))
	}
	if err := send(t.Context(), ts.URL+"/v1/traces"); err == nil || len(c.headers) != 1 {
		t.Errorf("refused for good: %v, %d times", err, len(c.headers))
	}
	if err := send(t.Context(), ts.URL+"/elsewhere"); err == nil {
		t.Error("a collector that does not know the path took it")
	}
	other := httptest.NewServer(http.RedirectHandler(ts.URL+"/v1/traces", http.StatusTemporaryRedirect))
	defer other.Close()
	if err := send(t.Context(), other.URL); err == nil || len(c.headers) != 1 {
		t.Errorf("a redirect: %v, %d requests", err, len(c.headers))
	}
	if err := send(t.Context(), "http://127.0.0.1:1"); err == nil {
		t.Error("no collector took it")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := send(ctx, ts.URL+"/v1/traces"); err == nil {
		t.Error("sent after the end")
	}
}

// spans returns a span.
func spans(t *testing.T) []sdk.ReadOnlySpan {
	t.Helper()
	kept := tracetest.NewInMemoryExporter()
	provider := sdk.NewTracerProvider(sdk.WithSyncer(kept))
	_, span := provider.Tracer("one").Start(t.Context(), "span")
	span.End()
	return kept.GetSpans().Snapshots()
}

func TestConfiguration(t *testing.T) {
	t.Parallel()
	const at = "OTEL_EXPORTER_OTLP_ENDPOINT=http://127.0.0.1:4318/base"
	for _, off := range [][]string{nil, {at, "OTEL_SDK_DISABLED=true"}, {at, "OTEL_TRACES_EXPORTER=none"}} {
		if end, err := Open(t.Context(), environ(off...), ""); end != nil || err != nil {
			t.Errorf("%v: %v", off, err)
		}
	}
	to, err := configure(environ(at, "OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf",
		"OTEL_EXPORTER_OTLP_TRACES_TIMEOUT=20"))
	if err != nil || to.url.String() != "http://127.0.0.1:4318/base/v1/traces" ||
		to.timeout != 20*time.Millisecond {
		t.Errorf("%+v, %v", to, err)
	}
	none := filepath.Join(t.TempDir(), "none")
	for _, bad := range []string{
		"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_TRACES_EXPORTER=zipkin", "OTEL_EXPORTER_OTLP_TIMEOUT=soon",
		"OTEL_EXPORTER_OTLP_TIMEOUT=-1", "OTEL_EXPORTER_OTLP_HEADERS=CANARY",
		"OTEL_EXPORTER_OTLP_HEADERS=a=%zzCANARY", "OTEL_EXPORTER_OTLP_CERTIFICATE=" + none,
		"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=CANARY:4317", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=ftp://x",
	} {
		name, _, _ := strings.Cut(bad, "=")
		_, err := Open(t.Context(), environ(at, bad), "")
		if errors.KindOf(err) != errors.Invalid || strings.Contains(errors.Message(err), "CANARY") ||
			name != "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT" && !strings.Contains(errors.Message(err), name) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

func TestCollectorWithTLS(t *testing.T) {
	t.Parallel()
	c := &receiver{}
	ts := httptest.NewTLSServer(c)
	defer ts.Close()
	file := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ts.Certificate().Raw}),
		0o600); err != nil {
		t.Fatal(err)
	}
	to, err := configure(environ("OTEL_EXPORTER_OTLP_ENDPOINT="+ts.URL, "OTEL_EXPORTER_OTLP_CERTIFICATE="+file))
	if err != nil {
		t.Fatal(err)
	}
	e, err := to.exporter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(e.ExportSpans(t.Context(), spans(t)), e.Shutdown(t.Context()))
	if err != nil || len(c.got) != 1 {
		t.Errorf("%d batches, %v", len(c.got), err)
	}
}
