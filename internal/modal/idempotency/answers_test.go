package idempotency

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
)

func background(f func()) { go f() }

// TestAttemptsShareAnAnswer checks that attempts with one key get the answer of one operation, also the attempt that
// comes while it runs and those after a caller has left, until the answer is old.
func TestAttemptsShareAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a Answers
		done := 0
		attempt := func(ctx context.Context, key string) (int, error) {
			return Do(ctx, &a, key, background, func() (int, error) {
				time.Sleep(time.Minute)
				done++
				return done, nil
			})
		}
		impatient, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := attempt(impatient, "a"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("an attempt whose caller leaves ends with %v", err)
		}
		for _, key := range []string{"a", "a", "b", "a"} {
			want := map[string]int{"a": 1, "b": 2}[key]
			if got, err := attempt(t.Context(), key); got != want || err != nil {
				t.Errorf("an attempt of %s gets the answer %d, %v, want %d", key, got, err, want)
			}
		}
		time.Sleep(Kept + 1)
		if got, err := attempt(t.Context(), "a"); got != 3 || err != nil {
			t.Errorf("long after, an attempt gets the answer %d, %v", got, err)
		}
		if len(a.calls) != 1 {
			t.Errorf("%d answers are kept", len(a.calls))
		}
	})
}

// TestFailuresThatPassAreNotKept checks that an attempt after a transient failure does the operation, and one after any
// other failure gets the same failure.
func TestFailuresThatPassAreNotKept(t *testing.T) {
	t.Parallel()
	for kind, want := range map[errors.Kind]int{errors.Unavailable: 2, errors.Timeout: 2, errors.Canceled: 2,
		errors.Internal: 2, errors.Exhausted: 2, errors.Invalid: 1, errors.Conflict: 1, errors.NotFound: 1} {
		var a Answers
		done := 0
		for range 2 {
			_, err := Do(t.Context(), &a, "a", background, func() (int, error) {
				done++
				return 0, errors.Newf(kind, "failed")
			})
			if errors.KindOf(err) != kind {
				t.Errorf("%s: the error is %v", kind, err)
			}
		}
		if done != want {
			t.Errorf("%s: the operation was done %d times, want %d", kind, done, want)
		}
	}
}

// TestKeptAnswers checks that the answer of an earlier server holds until its time.
func TestKeptAnswers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a Answers
		a.Keep("a", 7, time.Now().Add(time.Minute))
		attempt := func() int {
			got, err := Do(t.Context(), &a, "a", background, func() (int, error) { return 8, nil })
			if err != nil {
				t.Error(err)
			}
			return got
		}
		if got := attempt(); got != 7 {
			t.Errorf("the answer is %d, want the kept one", got)
		}
		time.Sleep(time.Minute + 1)
		if got := attempt(); got != 8 {
			t.Errorf("after its time the answer is %d", got)
		}
	})
}
