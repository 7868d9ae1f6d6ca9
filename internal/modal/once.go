package modal

import (
	"context"

	"github.com/RelevanceAI/harvest/internal/modal/idempotency"
)

// once1 calls do once for each idempotency key; without a key, on each call. do continues when ctx ends, for the next
// attempt.
func once1[T any](ctx context.Context, s *Server, what string, do func() (T, error)) (T, error) {
	c := callerOf(ctx)
	if c.key == "" {
		return do()
	}
	return once2(ctx, s, c.Account+" "+c.KeyID+" "+what+" "+c.key, do)
}

// once2 calls do once for a key.
func once2[T any](ctx context.Context, s *Server, key string, do func() (T, error)) (T, error) {
	return idempotency.Do(ctx, &s.answers, key, func(f func()) { s.tasks.Go(f) }, do)
}
