// Package logf is Harvest's log: formatted sentences on log/slog, with attributes that come from the context.
//
// One handler, set up by Setup, removes registered secret values from all that is written. Return an error or log it,
// never both: errors are logged at the server's edge, in background loops and in main.
package logf

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync/atomic"
	"time"
)

// handler is what every function of this package writes to.
var handler atomic.Pointer[slog.Handler]

// Setup sends the log to w, one record a line, from level on; as JSON or as text for people. What libraries log through
// slog or log goes the same way. Until it is called, the log goes to stderr as text, from level Info on.
func Setup(w io.Writer, level slog.Level, json bool) {
	h := newHandler(w, level, json)
	handler.Store(&h)
	slog.SetDefault(slog.New(h))
}

func current() slog.Handler {
	if h := handler.Load(); h != nil {
		return *h
	}
	h := newHandler(os.Stderr, slog.LevelInfo, false)
	handler.CompareAndSwap(nil, &h)
	return *handler.Load()
}

func newHandler(w io.Writer, level slog.Level, json bool) slog.Handler {
	opts := &slog.HandlerOptions{Level: level, ReplaceAttr: redactAttr}
	if json {
		return slog.NewJSONHandler(w, opts)
	}
	return slog.NewTextHandler(w, opts)
}

// redactAttr sees the message and every attribute, those of groups included. Values of no basic kind are written as fmt
// prints them, so that nothing inside them passes unseen.
func redactAttr(_ []string, a slog.Attr) slog.Attr {
	switch a.Value.Kind() {
	case slog.KindString:
		a.Value = slog.StringValue(Redacted(a.Value.String()))
	case slog.KindAny:
		text := ""
		if b, ok := a.Value.Any().([]byte); ok {
			text = string(b)
		} else {
			text = fmt.Sprint(a.Value.Any())
		}
		a.Value = slog.StringValue(Redacted(text))
	}
	return a
}

type attrsKey struct{}

// With returns a context whose log records carry the attributes, given as alternating keys and values, such as
// With(ctx, "sandbox_id", id). A key that the context already has gets the new value.
func With(ctx context.Context, pairs ...any) context.Context {
	old, _ := ctx.Value(attrsKey{}).([]slog.Attr)
	attrs := make([]slog.Attr, len(old), len(old)+len(pairs)/2)
	copy(attrs, old)
next:
	for _, a := range slog.Group("", pairs...).Value.Group() {
		for i := range attrs {
			if attrs[i].Key == a.Key {
				attrs[i] = a
				continue next
			}
		}
		attrs = append(attrs, a)
	}
	return context.WithValue(ctx, attrsKey{}, attrs)
}

// Debugf logs what only somebody who looks for a fault wants to know.
func Debugf(ctx context.Context, format string, args ...any) {
	write(ctx, slog.LevelDebug, format, args)
}

// Infof logs a key operation, once, when it is done.
func Infof(ctx context.Context, format string, args ...any) {
	write(ctx, slog.LevelInfo, format, args)
}

// Warnf logs something that works less well than it should.
func Warnf(ctx context.Context, format string, args ...any) {
	write(ctx, slog.LevelWarn, format, args)
}

// Errorf logs a failure that nobody further up is told about.
func Errorf(ctx context.Context, format string, args ...any) {
	write(ctx, slog.LevelError, format, args)
}

func write(ctx context.Context, level slog.Level, format string, args []any) {
	h := current()
	if !h.Enabled(ctx, level) {
		return
	}
	r := slog.NewRecord(time.Now(), level, fmt.Sprintf(format, args...), 0)
	if attrs, ok := ctx.Value(attrsKey{}).([]slog.Attr); ok {
		r.AddAttrs(attrs...)
	}
	// A log that cannot be written has nowhere to say so.
	_ = h.Handle(ctx, r)
}
