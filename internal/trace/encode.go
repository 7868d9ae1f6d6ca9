package trace

import (
	"math"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/protobuf/encoding/protowire"
)

// The messages are those of opentelemetry/proto/trace/v1/trace.proto
// (https://github.com/open-telemetry/opentelemetry-proto), written field by field. Events and links of spans
// are left out, because Harvest's spans have none.

// field appends a message or a text.
func field(b []byte, number protowire.Number, data []byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(b, number, protowire.BytesType), data)
}

func varint(b []byte, number protowire.Number, v uint64) []byte {
	return protowire.AppendVarint(protowire.AppendTag(b, number, protowire.VarintType), v)
}

func fixed(b []byte, number protowire.Number, v uint64) []byte {
	return protowire.AppendFixed64(protowire.AppendTag(b, number, protowire.Fixed64Type), v)
}

// encode encodes a batch as an ExportTraceServiceRequest. All spans of a server have the same resource, and
// nearly all the same scope.
func encode(spans []sdk.ReadOnlySpan) []byte {
	if len(spans) == 0 {
		return nil
	}
	var resource []byte
	for _, kv := range spans[0].Resource().Attributes() {
		resource = field(resource, 1, keyValue(kv))
	}
	all := field(nil, 1, resource)
	for len(spans) > 0 {
		scope := spans[0].InstrumentationScope()
		n := 1
		for n < len(spans) && spans[n].InstrumentationScope() == scope {
			n++
		}
		one := field(nil, 1, field(field(nil, 1, []byte(scope.Name)), 2, []byte(scope.Version)))
		for _, s := range spans[:n] {
			one = field(one, 2, span(s))
		}
		all = field(all, 2, one)
		spans = spans[n:]
	}
	return field(nil, 1, all)
}

func span(s sdk.ReadOnlySpan) []byte {
	trace, id := s.SpanContext().TraceID(), s.SpanContext().SpanID()
	b := field(field(nil, 1, trace[:]), 2, id[:])
	if state := s.SpanContext().TraceState().String(); state != "" {
		b = field(b, 3, []byte(state))
	}
	if parent := s.Parent().SpanID(); parent.IsValid() {
		b = field(b, 4, parent[:])
	}
	b = field(b, 5, []byte(s.Name()))
	b = varint(b, 6, uint64(s.SpanKind()))
	b = fixed(b, 7, uint64(s.StartTime().UnixNano()))
	b = fixed(b, 8, uint64(s.EndTime().UnixNano()))
	for _, kv := range s.Attributes() {
		b = field(b, 9, keyValue(kv))
	}
	if n := s.DroppedAttributes(); n > 0 {
		b = varint(b, 10, uint64(n))
	}
	var status []byte
	switch s.Status().Code {
	case codes.Ok:
		status = varint(nil, 3, 1)
	case codes.Error:
		status = varint(field(nil, 2, []byte(s.Status().Description)), 3, 2)
	}
	return field(b, 15, status)
}

func keyValue(kv attribute.KeyValue) []byte {
	var v []byte
	switch kv.Value.Type() {
	case attribute.BOOL:
		v = varint(nil, 2, protowire.EncodeBool(kv.Value.AsBool()))
	case attribute.INT64:
		v = varint(nil, 3, uint64(kv.Value.AsInt64()))
	case attribute.FLOAT64:
		v = fixed(nil, 4, math.Float64bits(kv.Value.AsFloat64()))
	default:
		v = field(nil, 1, []byte(kv.Value.String()))
	}
	return field(field(nil, 1, []byte(kv.Key)), 2, v)
}
