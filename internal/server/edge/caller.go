package edge

import (
	"context"
	"net/http"

	"github.com/RelevanceAI/harvest/internal/base/account"
)

type (
	principalKey struct{}
	requestIDKey struct{}
)

// PrincipalOf returns the authenticated caller. Every handler of a route with a scope has one.
func PrincipalOf(ctx context.Context) account.Principal {
	p, _ := ctx.Value(principalKey{}).(account.Principal)
	return p
}

// WithPrincipal returns ctx for the requests of an authenticated caller.
func WithPrincipal(ctx context.Context, who account.Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, who)
}

// Account returns the account of the caller of r.
func Account(r *http.Request) string { return AccountOf(r.Context()) }

// AccountOf returns the caller's account, which owns everything that the request creates or sees.
func AccountOf(ctx context.Context) string { return PrincipalOf(ctx).Account }

// RequestID returns the ID of a request, by which the log and the client name it.
func RequestID(ctx context.Context) string {
	id, _ := ctx.Value(requestIDKey{}).(string)
	return id
}

// WithRequestID returns ctx for the request with this ID.
func WithRequestID(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, requestIDKey{}, id)
}
