package server

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// Spans contain the route, the result, the account and the sandbox ID. They contain no data that clients choose, such
// as paths, queries, names and bodies. Names of attributes follow
// https://opentelemetry.io/docs/specs/semconv/http/http-spans/ where it defines one.

// traced starts the span of a request, as a part of the trace that its sender names. The returned function ends the
// span.
func (s *Server) traced(r *http.Request, rec *edge.Recorder) (context.Context, func(r *http.Request, v *visit)) {
	ctx := otel.GetTextMapPropagator().Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	ctx, span := s.tracer.Start(ctx, "request", trace.WithSpanKind(trace.SpanKindServer))
	if !span.IsRecording() {
		return ctx, func(*http.Request, *visit) {}
	}
	ctx = logf.With(ctx, "trace_id", span.SpanContext().TraceID().String())
	return ctx, func(r *http.Request, v *visit) {
		defer span.End()
		if r.Pattern != "" {
			span.SetName(r.Pattern)
		}
		span.SetAttributes(attribute.String("http.request.method", method(r)),
			attribute.String("http.route", r.Pattern),
			attribute.Int("http.response.status_code", rec.Status),
			attribute.Int64("http.response.body.size", rec.Bytes),
			attribute.String("harvest.request_id", edge.RequestID(r.Context())),
			attribute.String("harvest.account", v.who.Account))
		if rec.Status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(rec.Status))
		}
	}
}

// method returns the request's method, or _OTHER for an unknown one.
func method(r *http.Request) string {
	switch r.Method {
	case "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "TRACE":
		return r.Method
	}
	return "_OTHER"
}
