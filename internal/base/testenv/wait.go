package testenv

import (
	"testing"
	"time"
)

// Limit is the time that Eventually and tests that await an event allow. It exceeds the needs of any machine that can
// run the tests.
const Limit = 2 * time.Minute

// Long skips the test in the quick suite, which `make test` runs with -short.
func Long(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip("long: run make test-long")
	}
}

// Eventually calls f until it returns true. It fails the test, and names the condition, if f still returns false after
// two minutes.
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	deadline := time.Now().Add(Limit)
	for wait := time.Millisecond; !f(); wait = min(2*wait, 100*time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", Limit, what)
		}
		time.Sleep(wait)
	}
}

// Try calls f until it returns nil. It fails the test with f's last error if that does not happen within two minutes.
func Try(t testing.TB, f func() error) {
	t.Helper()
	deadline := time.Now().Add(Limit)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still after %s: %v", Limit, err)
		}
		time.Sleep(wait)
	}
}
