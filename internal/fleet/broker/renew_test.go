package broker

import (
	"context"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
)

// TestLoginsAreRenewed checks that a request gets the renewed value of a login, and that one whose login has failed
// gets an answer with the reason, even if its placeholder may be sent elsewhere. A request without the placeholder
// does not ask for a renewal.
//
// mission: 9.1
func TestLoginsAreRenewed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, bound(t, host))
	w.serve(t, echo)
	c := w.client(t)
	asked := 0
	renew := func(answer string, err error) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.credentials[0].Renew = func(context.Context) (config.Secret, error) {
			asked++
			return config.Secret(answer), err
		}
	}
	renew("renewed-value-of-the-login", nil)
	if status, got := get(t, c, "GET", "https://"+host+"/", nil); status != 200 || asked != 0 {
		t.Errorf("without the placeholder: %d %q, asked %d times", status, got, asked)
	}
	head := map[string]string{"Authorization": "Bearer " + placeholder}
	if status, got := get(t, c, "GET", "https://"+host+"/", head); status != 200 ||
		!strings.Contains(got, "Authorization: Bearer renewed-value-of-the-login\n") {
		t.Errorf("got %d %q", status, got)
	}
	for want, err := range map[int]error{
		403: errors.Newf(errors.Denied, "claude no longer accepts the login"),
		503: errors.Newf(errors.Unavailable, "claude cannot be reached for the login"),
	} {
		renew("", err)
		status, got := get(t, c, "GET", "https://"+host+"/", head)
		if status != want || !strings.Contains(got, errors.Message(err)) {
			t.Errorf("got %d %q, want %d", status, got, want)
		}
		uses := w.taken()
		if u := uses[len(uses)-1]; u.Refused != errors.Message(err) || u.Status != want {
			t.Errorf("reported %+v", u)
		}
	}
}
