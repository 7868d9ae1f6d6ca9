package server

import (
	"context"
	"net/http"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/logf"
	"github.com/RelevanceAI/harvest/sandbox"
)

// Spans contain the route, the result, the account and the sandbox ID. They contain no data that clients choose, such
// as paths, queries, names and bodies. Names of attributes follow
// https://opentelemetry.io/docs/specs/semconv/http/http-spans/ where it defines one.

// traced starts the span of a request, as a part of the trace that its sender names. The returned function ends the
// span.
func (s *Server) traced(r *http.Request, rec *recorder) (context.Context, func(r *http.Request, v *visit)) {
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
			attribute.Int("http.response.status_code", rec.status),
			attribute.Int64("http.response.body.size", rec.bytes),
			attribute.String("harvest.request_id", requestID(r.Context())),
			attribute.String("harvest.account", v.who.Account))
		if rec.status >= http.StatusInternalServerError {
			span.SetStatus(codes.Error, http.StatusText(rec.status))
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

// create is Fleet.Create with a span, which has a child span for each stage.
func (s *Server) create(ctx context.Context, req sandbox.Request) (sandbox.Sandbox, error) {
	ctx, span := s.tracer.Start(ctx, "sandbox.create")
	defer span.End()
	at := time.Now()
	made, err := s.opts.Fleet.Create(ctx, accountOf(ctx), req)
	if !span.IsRecording() {
		return made, err
	}
	for _, stage := range made.Stages {
		_, part := s.tracer.Start(ctx, "sandbox.create."+stage.Name, trace.WithTimestamp(at))
		at = at.Add(time.Duration(stage.MS * float64(time.Millisecond)))
		part.End(trace.WithTimestamp(at))
	}
	span.SetAttributes(attribute.String("harvest.sandbox_id", made.ID), attribute.Bool("harvest.warm", made.Warm))
	if err != nil {
		span.SetAttributes(attribute.String("harvest.failed_stage", errors.StageOf(err)))
		span.SetStatus(codes.Error, string(errors.KindOf(err)))
	}
	return made, err
}
