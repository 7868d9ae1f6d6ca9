package secret_test

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/binding"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/grant"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/test/stubs/oauthtest"
)

// clock is a time that a test moves.
type clock struct{ ahead atomic.Int64 }

func (c *clock) now() time.Time        { return time.Now().Add(time.Duration(c.ahead.Load())) }
func (c *clock) move(by time.Duration) { c.ahead.Add(int64(by)) }

// loginHome is a home with an authorization server.
type loginHome struct {
	*home
	*clock
	server *oauthtest.Server

	mu     sync.Mutex
	failed []string
}

func newLoginHome(t *testing.T) *loginHome {
	t.Helper()
	return &loginHome{home: newHome(t), clock: &clock{}, server: oauthtest.New(t)}
}

func (h *loginHome) open(t *testing.T) *secret.Vault {
	t.Helper()
	var settings []string
	for _, name := range []string{"claude", "codex", "github", "gemini"} {
		settings = append(settings, h.server.Settings(name)...)
	}
	p, err := grant.NewProviders(settings, http.DefaultTransport)
	if err != nil {
		t.Fatal(err)
	}
	p.Now = h.now
	v, err := secret.Open(t.Context(), secret.Options{Store: h.store, KeyFile: h.keyFile, Providers: p, Now: h.now,
		Failed: func(account, name, reason string) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.failed = append(h.failed, account+" "+name+": "+reason)
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := v.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return v
}

// login logs an account in, and returns the access token.
func (h *loginHome) login(t *testing.T, v *secret.Vault, provider string) string {
	t.Helper()
	access, refresh := h.server.Grant()
	g := grant.Grant{Provider: provider, Client: h.server.Client, Access: config.Secret(access),
		Refresh: config.Secret(refresh), Expires: h.now().Add(h.server.Life)}
	if _, err := v.SetLogin(t.Context(), account, g); err != nil {
		t.Fatal(err)
	}
	return access
}

// value returns the value of a login as the broker of credentials gets it.
func value(t *testing.T, v *secret.Vault, name string) (placeholder, value string, err error) {
	t.Helper()
	all, err := v.Credentials(t.Context(), account, name)
	if err != nil || len(all) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	c := all[0]
	if c.Renew != nil {
		c.Value, err = c.Renew(t.Context())
	}
	return c.Placeholder, c.Value.Reveal(), err
}

// TestLoginIsRenewed checks that a login has new values behind the same placeholder, through restarts and new keys, and
// that no refresh token is lost.
//
// mission: 9.1
func TestLoginIsRenewed(t *testing.T) {
	t.Parallel()
	h := newLoginHome(t)
	v := h.open(t)
	h.login(t, v, "claude")
	held, first, err := value(t, v, "claude")
	if err != nil || held == first || h.server.Renewals() != 0 {
		t.Fatalf("%q, %q, %v", held, first, err)
	}
	for round := 1; round <= 4; round++ {
		h.move(h.server.Life - time.Minute)
		if round%2 == 0 {
			v = h.open(t)
		}
		if _, err := v.Rekey(t.Context()); err != nil {
			t.Fatal(err)
		}
		again, got, err := value(t, v, "claude")
		if err != nil || again != held || got == first || !h.server.Valid(got) || h.server.Renewals() != round {
			t.Errorf("round %d: %q, valid %t, %d renewals, %v", round, again, h.server.Valid(got),
				h.server.Renewals(), err)
		}
		if !hidden(got) {
			t.Error("the log shows the new token")
		}
		first = got
	}
	p := reveal(t, v, "claude")
	if len(p) != 1 || p["CLAUDE_CODE_OAUTH_TOKEN"] != first {
		t.Errorf("revealed %d pairs", len(p))
	}
}

// TestOneRenewalForAll checks that 50 sandboxes on two servers that ask at once cause one renewal, and all get its
// value. A second one with the same refresh token would end the grant.
//
// mission: 9.1
func TestOneRenewalForAll(t *testing.T) {
	t.Parallel()
	h := newLoginHome(t)
	vaults := []*secret.Vault{h.open(t)}
	h.login(t, vaults[0], "codex")
	vaults = append(vaults, h.open(t))
	for round := 1; round <= 3; round++ {
		h.move(2 * h.server.Life)
		release := h.server.Hold()
		var wg sync.WaitGroup
		values := make([]string, 50)
		for i := range values {
			wg.Go(func() {
				_, got, err := value(t, vaults[i%2], "codex")
				if err != nil {
					t.Error(err)
				}
				values[i] = got
			})
		}
		for h.server.Renewals() < round {
			time.Sleep(time.Millisecond)
		}
		release()
		wg.Wait()
		for _, got := range values {
			if got != values[0] || !h.server.Valid(got) {
				t.Fatalf("round %d: got another or an invalid token", round)
			}
		}
		if n := h.server.Renewals(); n != round {
			t.Errorf("round %d: %d renewals", round, n)
		}
	}
}

// TestFailedLogin checks that a grant that the provider no longer accepts is refused at once, without further renewals,
// and is reported once, and that a new login repairs it.
func TestFailedLogin(t *testing.T) {
	t.Parallel()
	h := newLoginHome(t)
	v := h.open(t)
	h.login(t, v, "claude")
	held, _, _ := value(t, v, "claude")
	h.server.RevokeAll()
	h.move(h.server.Life - time.Minute)
	for range 3 {
		_, _, err := value(t, v, "claude")
		wantError(t, err, errors.Denied, "claude no longer accepts the login (invalid_grant)")
		if !strings.Contains(errors.RemedyOf(err), "harvest login claude") {
			t.Errorf("the remedy is %q", errors.RemedyOf(err))
		}
		v = h.open(t)
	}
	_, _, err := v.Find(t.Context(), account, nil, []string{"CLAUDE_CODE_OAUTH_TOKEN"})
	if !errors.Is(err, errors.Denied) {
		t.Errorf("for the gateway of models: %v", err)
	}
	if p, _, err := v.Lend(t.Context(), account, "sbx_a", secret.Bound, "claude"); err != nil ||
		p["CLAUDE_CODE_OAUTH_TOKEN"] != held {
		t.Errorf("a sandbox without the need for a value: %v", err)
	}
	if _, _, err := v.Lend(t.Context(), account, "sbx_b", secret.Revealed, "claude"); !errors.Is(err, errors.Denied) {
		t.Errorf("a sandbox that gets the value: %v", err)
	}
	s, err := v.Get(t.Context(), account, "claude")
	if err != nil || s.Login == nil || s.Login.Failed == "" || s.Login.Lease != nil {
		t.Errorf("%+v, %v", s.Login, err)
	}
	if h.server.Renewals() != 1 || len(h.failed) != 1 || !strings.HasPrefix(h.failed[0], account+" claude: ") {
		t.Errorf("%d renewals, reported %q", h.server.Renewals(), h.failed)
	}
	h.login(t, v, "claude")
	if again, got, err := value(t, v, "claude"); err != nil || again != held || !h.server.Valid(got) {
		t.Errorf("after a new login: %q, %v", again, err)
	}
	v.Return(t.Context(), "sbx_a")
}

// TestProviderIsDown checks that a failure that passes leaves the old token in use until its end, that there are pauses
// between attempts, and that no request waits for a provider that gives no answer.
func TestProviderIsDown(t *testing.T) {
	t.Parallel()
	h := newLoginHome(t)
	v := h.open(t)
	first := h.login(t, v, "github")
	h.server.Fail(http.StatusBadGateway)
	h.move(h.server.Life - time.Minute)
	for range 3 {
		if _, got, err := value(t, v, "github"); err != nil || got != first {
			t.Errorf("before its end: %v", err)
		}
	}
	if n := h.server.Renewals(); n != 1 {
		t.Errorf("%d renewals without a pause", n)
	}
	h.move(2 * time.Minute)
	for range 3 {
		_, _, err := value(t, v, "github")
		wantError(t, err, errors.Unavailable, "github cannot be reached")
	}
	if n := h.server.Renewals(); n != 2 {
		t.Errorf("%d renewals without a pause", n)
	}
	h.server.Fail(0)
	h.move(3 * time.Minute)
	if _, got, err := value(t, v, "github"); err != nil || !h.server.Valid(got) {
		t.Errorf("afterwards: %v", err)
	}
	h.move(h.server.Life - time.Minute)
	defer h.server.Hold()()
	if _, got, err := value(t, v, "github"); err != nil || got == "" {
		t.Errorf("without an answer: %v", err)
	}
}

// TestKilledServerLeavesALease checks that a server that was killed during a renewal delays the next one only.
func TestKilledServerLeavesALease(t *testing.T) {
	t.Parallel()
	h := newLoginHome(t)
	v := h.open(t)
	first := h.login(t, v, "claude")
	h.move(h.server.Life - time.Minute)
	rec, err := h.store.Get(t.Context(), account, "claude")
	if err != nil {
		t.Fatal(err)
	}
	leased := rec
	state := *rec.Login
	state.Lease = &grant.Lease{ID: "of a killed server", Until: h.now().Add(40 * time.Second)}
	leased.Login = &state
	if done, err := h.store.Swap(t.Context(), rec, leased); err != nil || !done {
		t.Fatal(done, err)
	}
	if _, got, err := value(t, v, "claude"); err != nil || got != first || h.server.Renewals() != 0 {
		t.Errorf("during the lease: %d renewals, %v", h.server.Renewals(), err)
	}
	h.move(45 * time.Second)
	if _, got, err := value(t, v, "claude"); err != nil || !h.server.Valid(got) {
		t.Errorf("after the lease: %v", err)
	}
}

// full is a store that is full at times.
type full struct {
	secret.Store
	full atomic.Bool
}

func (f *full) Swap(ctx context.Context, old, changed secret.Record) (bool, error) {
	if f.full.Load() && changed.Login.Lease == nil {
		return false, errors.Newf(errors.Exhausted, "the disk is full")
	}
	return f.Store.Swap(ctx, old, changed)
}

// TestRotationSurvivesAFullDisk checks that a refresh token that cannot be stored is not lost while the server runs.
func TestRotationSurvivesAFullDisk(t *testing.T) {
	t.Parallel()
	h := newLoginHome(t)
	disk := &full{Store: h.store}
	h.store = disk
	v := h.open(t)
	h.login(t, v, "claude")
	h.move(2 * h.server.Life)
	disk.full.Store(true)
	if _, _, err := value(t, v, "claude"); err == nil {
		t.Error("a token that was not stored is used")
	}
	h.move(time.Minute)
	if _, _, err := value(t, v, "claude"); err == nil || h.server.Renewals() != 1 {
		t.Errorf("%d renewals, %v", h.server.Renewals(), err)
	}
	disk.full.Store(false)
	h.move(10 * time.Minute)
	if _, got, err := value(t, v, "claude"); err != nil || !h.server.Valid(got) || h.server.Renewals() != 1 {
		t.Errorf("%d renewals, %v", h.server.Renewals(), err)
	}
}

// TestLoginChangedDuringItsRenewal checks that a logout, and a new login, win over a renewal.
func TestLoginChangedDuringItsRenewal(t *testing.T) {
	t.Parallel()
	h := newLoginHome(t)
	v := h.open(t)
	for _, again := range []bool{false, true} {
		h.login(t, v, "claude")
		before := h.server.Renewals()
		h.move(2 * h.server.Life)
		release := h.server.Hold()
		var wg sync.WaitGroup
		wg.Go(func() { _, _, _ = value(t, v, "claude") })
		for h.server.Renewals() == before {
			time.Sleep(time.Millisecond)
		}
		want := ""
		if again {
			want = h.login(t, v, "claude")
		} else if _, err := v.Logout(t.Context(), account, "claude"); err != nil {
			t.Error(err)
		}
		release()
		wg.Wait()
		if _, err := v.Get(t.Context(), account, "claude"); again != (err == nil) {
			t.Errorf("new login %t: %v", again, err)
		}
		if again {
			if _, got, err := value(t, v, "claude"); err != nil || got != want {
				t.Errorf("the new login was overwritten: %v", err)
			}
		}
	}
}

// TestLoginsAreSecrets checks what can be done with a login as a secret.
func TestLoginsAreSecrets(t *testing.T) {
	t.Parallel()
	h := newLoginHome(t)
	h.server.Prefix = "jwt"
	v := h.open(t)
	set(t, v, "gemini", secret.Pairs{"GEMINI_API_KEY": "AIza-of-somebody"}, secret.Create)
	_, err := v.SetLogin(t.Context(), account, grant.Grant{Provider: "gemini", Access: "ya29.x"})
	wantError(t, err, errors.Conflict, "that is not a login")
	h.login(t, v, "codex")
	_, err = v.Set(t.Context(), account, "codex", secret.Pairs{"A": "b"}, secret.Merge)
	wantError(t, err, errors.Conflict, "is a login")
	_, err = v.SetBound(t.Context(), account, "codex", nil, secret.Merge, &binding.Binding{})
	wantError(t, err, errors.Conflict, "is a login")
	bound, err := binding.Preset("openai")
	if err != nil {
		t.Fatal(err)
	}
	made, err := v.SetBound(t.Context(), account, "codex", nil, secret.Merge, &bound)
	if err != nil || made.Login == nil || len(made.Keys) != 1 || made.Binding.Places[0].Host.Name != "api.openai.com" {
		t.Errorf("%+v, %v", made, err)
	}
	h.move(h.server.Life)
	held, _, err := value(t, v, "codex")
	if err != nil {
		t.Errorf("after a change of the binding: %v", err)
	}
	files, err := v.Files(t.Context(), account, "codex", "gemini", "none")
	if err != nil || len(files) != 1 || files[0].Path != ".codex/auth.json" || !strings.Contains(files[0].Text, held) ||
		!strings.Contains(files[0].Text, "acc-1") {
		t.Errorf("%+v, %v", files, err)
	}
	g, err := v.Logout(t.Context(), account, "codex")
	if err != nil || !h.server.Valid(g.Access.Reveal()) || g.Refresh == "" {
		t.Errorf("logged out: %v", err)
	}
	for _, name := range []string{"codex", "gemini"} {
		_, err = v.Logout(t.Context(), account, name)
		wantError(t, err, errors.NotFound, "no login")
	}
	if logf.Redacted(g.Refresh.Reveal()) == logf.Hidden {
		t.Error("the refresh token stays hidden for ever")
	}
}

// TestTokenWithoutRenewal checks a token that was given alone: it is used until its end, and then refused.
func TestTokenWithoutRenewal(t *testing.T) {
	t.Parallel()
	h := newLoginHome(t)
	v := h.open(t)
	for _, expires := range []time.Time{{}, h.now().Add(time.Hour)} {
		g := grant.Grant{Provider: "claude", Access: "sk-ant-oat01-alone", Expires: expires}
		if _, err := v.SetLogin(t.Context(), account, g); err != nil {
			t.Fatal(err)
		}
		h.move(59 * time.Minute)
		if _, got, err := value(t, v, "claude"); err != nil || got != "sk-ant-oat01-alone" {
			t.Errorf("%v", err)
		}
		h.move(-59 * time.Minute)
	}
	h.move(time.Hour)
	_, _, err := value(t, v, "claude")
	wantError(t, err, errors.Denied, "has expired, and cannot be renewed")
	if h.server.Renewals() != 0 {
		t.Error("it was renewed")
	}
}
