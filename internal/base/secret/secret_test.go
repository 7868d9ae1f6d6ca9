package secret_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/store"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

const account = "acme"

func TestMain(m *testing.M) {
	logf.Setup(io.Discard, 0, false)
	os.Exit(m.Run())
}

// home is the storage of a Vault, through restarts.
type home struct {
	store   secret.Store
	keyFile string
	environ []string
}

func newHome(t *testing.T) *home {
	t.Helper()
	return &home{store: testdb.Open(t).Secrets(), keyFile: filepath.Join(t.TempDir(), "secret.key")}
}

func (h *home) open(t *testing.T) *secret.Vault {
	t.Helper()
	v, err := secret.Open(t.Context(), secret.Options{Store: h.store, KeyFile: h.keyFile, Environ: h.environ,
		EnvironAccount: account})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func set(t *testing.T, v *secret.Vault, name string, p secret.Pairs, how secret.How) secret.Secret {
	t.Helper()
	s, err := v.Set(t.Context(), account, name, p, how)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func reveal(t *testing.T, v *secret.Vault, names ...string) map[string]string {
	t.Helper()
	p, release, err := v.Reveal(t.Context(), account, names...)
	if err != nil {
		t.Fatal(err)
	}
	release()
	return p
}

func wantError(t *testing.T, err error, kind errors.Kind, words ...string) {
	t.Helper()
	if !errors.Is(err, kind) {
		t.Errorf("error is %v (%s), want %s", err, errors.KindOf(err), kind)
		return
	}
	text := errors.Message(err) + " | " + errors.RemedyOf(err)
	for _, w := range words {
		if !strings.Contains(text, w) {
			t.Errorf("%q does not say %q", text, w)
		}
	}
}

// mission: F4, 9.3, 9.4
func TestSecretsComeBack(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	v := h.open(t)
	want := secret.Pairs{"TOKEN": "vault-come-back-1", "EMPTY": "", "MULTI": "line one\nline two é\n"}
	made := set(t, v, "one", want, secret.Create)
	if made.Name != "one" || made.Origin != secret.Stored ||
		!slices.Equal(made.Keys, []string{"EMPTY", "MULTI", "TOKEN"}) || made.Created.IsZero() || !made.Used.IsZero() {
		t.Errorf("%+v", made)
	}
	for _, v := range []*secret.Vault{v, h.open(t)} {
		if diff := cmp.Diff(map[string]string(want), reveal(t, v, "one")); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
	info, err := os.Stat(h.keyFile)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key file: %v, %v", info, err)
	}
	if got, err := v.Get(t.Context(), account, "one"); err != nil || got.Used.IsZero() {
		t.Errorf("after use: %+v, %v", got, err)
	}
	// mission: A7
	_, _, err = v.Reveal(t.Context(), "other", "one")
	wantError(t, err, errors.NotFound, `"one"`, "harvest secret")
}

func TestCreateReplaceMergeDelete(t *testing.T) {
	t.Parallel()
	v := newHome(t).open(t)
	first := set(t, v, "s", secret.Pairs{"A": "value one", "B": "value two"}, secret.Create)
	_, err := v.Set(t.Context(), account, "s", secret.Pairs{"A": "x"}, secret.Create)
	wantError(t, err, errors.Conflict, `"s"`, "replace")
	merged := set(t, v, "s", secret.Pairs{"B": "value three", "C": ""}, secret.Merge)
	if !merged.Created.Equal(first.Created.Truncate(time.Microsecond)) || !merged.Updated.After(first.Updated) {
		t.Errorf("times: %+v, then %+v", first, merged)
	}
	if diff := cmp.Diff(map[string]string{"A": "value one", "B": "value three", "C": ""},
		reveal(t, v, "s")); diff != "" {
		t.Errorf("merged (-want +got):\n%s", diff)
	}
	set(t, v, "s", secret.Pairs{"D": "value four"}, secret.Replace)
	set(t, v, "t", secret.Pairs{"D": "value five", "E": "e"}, secret.Merge)
	if diff := cmp.Diff(map[string]string{"D": "value five", "E": "e"}, reveal(t, v, "s", "t")); diff != "" {
		t.Errorf("the later wins (-want +got):\n%s", diff)
	}
	all, err := v.List(t.Context(), account)
	if err != nil || len(all) != 2 || all[0].Name != "s" || !slices.Equal(all[0].Keys, []string{"D"}) {
		t.Errorf("list: %+v, %v", all, err)
	}
	if err := v.Delete(t.Context(), account, "s"); err != nil {
		t.Fatal(err)
	}
	wantError(t, v.Delete(t.Context(), account, "s"), errors.NotFound, `"s"`)
	_, _, err = v.Reveal(t.Context(), account, "s", "t", "u")
	wantError(t, err, errors.NotFound, `no secrets "s", "u"`)
	_, err = v.Get(t.Context(), account, "s")
	wantError(t, err, errors.NotFound)
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	v := newHome(t).open(t)
	many := secret.Pairs{}
	for i := range secret.MaxPairs + 1 {
		many[fmt.Sprintf("K%d", i)] = "x"
	}
	for what, c := range map[string]struct {
		name  string
		pairs secret.Pairs
		words []string
	}{
		"no name":    {"", secret.Pairs{"A": "x"}, []string{"cannot be a secret's name", "letters"}},
		"a path":     {"../x", secret.Pairs{"A": "x"}, []string{"cannot be a secret's name"}},
		"no pairs":   {"s", nil, []string{"no pairs", "KEY=VALUE"}},
		"many pairs": {"s", many, []string{"129 pairs", "128"}},
		"a bad key":  {"s", secret.Pairs{"hunter2-in-the-wrong-place": "x"}, []string{"one of the secret's keys"}},
		"a long value": {"s", secret.Pairs{"A": strings.Repeat("hunter2 ", 9000)},
			[]string{"value of A takes 72000 bytes"}},
		"a NUL": {"s", secret.Pairs{"A": "hunter2\x00"}, []string{"value of A contains a NUL"}},
	} {
		_, err := v.Set(t.Context(), account, c.name, c.pairs, secret.Replace)
		wantError(t, err, errors.Invalid, c.words...)
		if strings.Contains(fmt.Sprint(err, errors.Message(err), errors.RemedyOf(err)), "hunter2") {
			t.Errorf("%s: the error has the value: %v", what, err)
		}
	}
	full := secret.Pairs{}
	for i := range 15 {
		full[fmt.Sprintf("K%d", i)] = strings.Repeat("x", secret.MaxValue)
	}
	set(t, v, "full", full, secret.Create)
	_, err := v.Set(t.Context(), account, "more", secret.Pairs{"A": strings.Repeat("y", secret.MaxValue)},
		secret.Create)
	wantError(t, err, errors.Exhausted, "1024 KiB", "delete unused secrets")
	set(t, v, "full", full, secret.Replace) // counts once
	other := secret.Pairs{}
	for i := range 120 {
		other[fmt.Sprintf("L%d", i)] = "x"
	}
	_, err = v.Set(t.Context(), account, "full", other, secret.Merge)
	wantError(t, err, errors.Invalid, "135 pairs")
}

func TestKeyFile(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(path string) error
		kind  errors.Kind
		words []string
	}{
		"missing": {os.Remove, errors.Internal, []string{"missing", "put back a copy"}},
		"open": {func(p string) error { return os.Chmod(p, 0o640) }, errors.Denied,
			[]string{"mode 0640", "chmod 600"}},
		"a link": {func(p string) error { return errors.Join(os.Rename(p, p+"2"), os.Symlink(p+"2", p)) },
			errors.Denied, []string{"not a plain file"}},
		"no base64": {func(p string) error { return os.WriteFile(p, []byte("hunter2\n"), 0o600) }, errors.Internal,
			[]string{"damaged", "put back"}},
		"empty": {func(p string) error { return os.WriteFile(p, nil, 0o600) }, errors.Internal,
			[]string{"damaged"}},
		"short": {func(p string) error { return os.WriteFile(p, []byte("aGVsbG8=\n"), 0o600) }, errors.Internal,
			[]string{"damaged"}},
		"somebody's": {func(p string) error { return chown(t, p) }, errors.Denied, []string{"another user"}},
		"another's key": {func(p string) error { return otherKey(t, p) }, errors.Internal,
			[]string{"another key", "put back the key file"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHome(t)
			set(t, h.open(t), "s", secret.Pairs{"A": "value"}, secret.Create)
			key, err := os.ReadFile(h.keyFile)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.spoil(h.keyFile); err != nil {
				t.Fatal(err)
			}
			v := h.open(t)
			_, _, err = v.Reveal(t.Context(), account, "s")
			wantError(t, err, c.kind, c.words...)
			_, err = v.Set(t.Context(), account, "s", secret.Pairs{"B": "b"}, secret.Merge)
			wantError(t, err, c.kind, c.words...)
			_, err = v.Rekey(t.Context())
			wantError(t, err, c.kind, c.words...)
			if all, err := v.List(t.Context(), account); err != nil || len(all) != 1 {
				t.Errorf("list: %v, %v", all, err)
			}
			if name == "another's key" {
				return // read once, at the start
			}
			// Put in order, it works without a restart.
			if err := errors.Join(os.RemoveAll(h.keyFile), os.WriteFile(h.keyFile, key, 0o600)); err != nil {
				t.Fatal(err)
			}
			if got := reveal(t, v, "s"); got["A"] != "value" {
				t.Errorf("after putting it back: %v", got)
			}
		})
	}
}

func chown(t *testing.T, path string) error {
	if os.Geteuid() != 0 {
		t.Skip("this needs root, to give a file to somebody else")
	}
	return os.Chown(path, 65534, 65534)
}

func otherKey(t *testing.T, path string) error {
	other := newHome(t)
	set(t, other.open(t), "s", secret.Pairs{"A": "x"}, secret.Create)
	return os.Rename(other.keyFile, path)
}

func TestWithoutTheKeySecretsCanBeDeletedAndSetAgain(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	set(t, h.open(t), "s", secret.Pairs{"A": "value"}, secret.Create)
	if err := os.Remove(h.keyFile); err != nil {
		t.Fatal(err)
	}
	v := h.open(t)
	_, err := v.Set(t.Context(), account, "t", secret.Pairs{"A": "new"}, secret.Create)
	wantError(t, err, errors.Internal,
		"missing") // it must not create a second key beside data that the first has sealed
	if err := v.Delete(t.Context(), account, "s"); err != nil {
		t.Fatal(err)
	}
	set(t, v, "s", secret.Pairs{"A": "new"}, secret.Create)
	if got := reveal(t, h.open(t), "s"); got["A"] != "new" {
		t.Errorf("%v", got)
	}
}

func TestKeyFileThatCannotBeWritten(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.keyFile = filepath.Join(t.TempDir(), "none", "secret.key")
	_, err := h.open(t).Set(t.Context(), account, "s", secret.Pairs{"A": "x"}, secret.Create)
	if err == nil || errors.StageOf(err) != "key" {
		t.Errorf("%v", err)
	}
	if all, err := h.store.List(t.Context(), ""); err != nil || len(all) != 0 {
		t.Errorf("stored all the same: %v, %v", all, err)
	}
}

// TestSealedValuesAreBound checks that a record that was changed, or moved to another name or account, cannot be
// opened.
func TestSealedValuesAreBound(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	v := h.open(t)
	set(t, v, "a", secret.Pairs{"A": "value of a"}, secret.Create)
	set(t, v, "b", secret.Pairs{"A": "value of b"}, secret.Create)
	a, err := h.store.Get(t.Context(), account, "a")
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*secret.Record){
		"another name":    func(r *secret.Record) { r.Name = "b" },
		"another account": func(r *secret.Record) { r.Account = "other" },
		"shifted":         func(r *secret.Record) { r.Account, r.Name = account+"a", "" },
		"a bit":           func(r *secret.Record) { r.Sealed[len(r.Sealed)-1] ^= 1 },
		"cut":             func(r *secret.Record) { r.Sealed = r.Sealed[:20] },
		"short":           func(r *secret.Record) { r.Sealed = r.Sealed[:3] },
		"empty":           func(r *secret.Record) { r.Sealed = []byte{} },
		"format":          func(r *secret.Record) { r.Sealed[0] = 9 },
	} {
		r := a
		r.Sealed = bytes.Clone(a.Sealed)
		change(&r)
		moved := &home{store: testdb.Open(t).Secrets(), keyFile: h.keyFile}
		if err := moved.store.Put(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		_, _, err := moved.open(t).Reveal(t.Context(), r.Account, r.Name)
		if !errors.Is(err, errors.Internal) || !strings.Contains(errors.Message(err), "damaged") ||
			errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// failing is a Store whose Puts fail.
type failing struct{ secret.Store }

func (failing) Put(context.Context, ...secret.Record) error {
	return errors.Newf(errors.Exhausted, "the disk is full")
}

func TestRekey(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	v := h.open(t)
	set(t, v, "a", secret.Pairs{"A": "value of a"}, secret.Create)
	before, err := os.ReadFile(h.keyFile)
	if err != nil {
		t.Fatal(err)
	}
	// Cut off between key file and records: both keys are there, and everything can be read.
	good := h.store
	h.store = failing{good}
	_, err = h.open(t).Rekey(t.Context())
	wantError(t, err, errors.Exhausted, "full")
	h.store = good
	v = h.open(t)
	if got := reveal(t, v, "a"); got["A"] != "value of a" {
		t.Errorf("after half a rekey: %v", got)
	}
	if n, err := v.Rekey(t.Context()); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	after, err := os.ReadFile(h.keyFile)
	if err != nil || bytes.Equal(before, after) || bytes.Count(after, []byte("\n")) != 2 {
		t.Errorf("the key file has %d lines, %v", bytes.Count(after, []byte("\n")), err)
	}
	for _, v := range []*secret.Vault{v, h.open(t)} {
		if got := reveal(t, v, "a"); got["A"] != "value of a" {
			t.Errorf("after rekey: %v", got)
		}
	}
	if err := os.WriteFile(h.keyFile, before, 0o600); err != nil {
		t.Fatal(err)
	}
	_, _, err = h.open(t).Reveal(t.Context(), account, "a")
	wantError(t, err, errors.Internal, "another key")
}

// mission: F3, 9.4
func TestEnvironment(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	h.environ = []string{"ANTHROPIC_API_KEY=environment-value-1", "GITHUB_TOKEN=environment-value-2", "GH_TOKEN=",
		"PATH=/bin", "AWS_REGION=eu-west-1", "odd"}
	v := h.open(t)
	all, err := v.List(t.Context(), account)
	if err != nil || len(all) != 2 || all[0].Name != "anthropic" || all[1].Name != "github" ||
		all[0].Origin != secret.Environment {
		t.Fatalf("%+v, %v", all, err)
	}
	if got := reveal(t, v, "anthropic", "github"); got["ANTHROPIC_API_KEY"] != "environment-value-1" || len(got) != 2 {
		t.Errorf("%v", got)
	}
	wantError(t, v.Delete(t.Context(), account, "github"), errors.Conflict, "environment", "GITHUB_TOKEN")
	_, _, err = v.Reveal(t.Context(), "other", "github")
	wantError(t, err, errors.NotFound)
	set(t, v, "github", secret.Pairs{"GITHUB_TOKEN": "stored-value-3"}, secret.Create)
	if got := reveal(t, v, "github"); got["GITHUB_TOKEN"] != "stored-value-3" {
		t.Errorf("a stored one does not win: %v", got)
	}
	if text := logf.Redacted("x environment-value-1 x"); strings.Contains(text, "value") {
		t.Errorf("not hidden: %q", text)
	}
	if !slices.Contains(secret.Known(), "MODAL_TOKEN_SECRET") {
		t.Error("Modal's tokens are not known")
	}
	if data, err := filepath.Glob(filepath.Dir(h.keyFile) + "/*"); err != nil || len(data) != 1 {
		t.Errorf("files: %v, %v", data, err)
	}
}

// mission: F6
func TestValuesAreHidden(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	v := h.open(t)
	hidden := func(text string) bool { return logf.Redacted("a "+text+" b") == "a "+logf.Hidden+" b" }
	set(t, v, "s", secret.Pairs{"TOKEN": "hide-first-value", "SHORT": "1", "AWS_REGION": "hide-not-a-region"},
		secret.Create)
	if !hidden("hide-first-value") || hidden("1") || hidden("hide-not-a-region") {
		t.Error("the rule of what is hidden does not hold")
	}
	p, release, err := v.Reveal(t.Context(), account, "s")
	if err != nil {
		t.Fatal(err)
	}
	set(t, v, "s", secret.Pairs{"TOKEN": "hide-second-value"}, secret.Replace)
	if !hidden("hide-first-value") || !hidden("hide-second-value") {
		t.Error("a replaced value that a sandbox has is seen")
	}
	release()
	if hidden("hide-first-value") {
		t.Error("a value that nobody has is still hidden")
	}
	if err := v.Delete(t.Context(), account, "s"); err != nil {
		t.Fatal(err)
	}
	if hidden("hide-second-value") {
		t.Error("a deleted value that nobody has is still hidden")
	}
	var out bytes.Buffer
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "p", p, "in", struct{ P secret.Pairs }{p})
	asJSON, err := json.Marshal(map[string]any{"p": p})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{fmt.Sprintf("%v %+v %#v %s %q", p, p, p, p, p), out.String(), string(asJSON)} {
		if strings.Contains(text, "hide-first") || !strings.Contains(text, "TOKEN") {
			t.Errorf("it prints %q", text)
		}
	}
}

// TestValuesAreHiddenAfterARestart checks that the values that the log must hide are known after a restart before the
// first request for them.
// mission: F6
func TestValuesAreHiddenAfterARestart(t *testing.T) {
	t.Parallel()
	h := newHome(t)
	set(t, h.open(t), "s", secret.Pairs{"TOKEN": "restart-hidden-value"}, secret.Create)
	sealed, err := h.store.Get(t.Context(), account, "s")
	if err != nil {
		t.Fatal(err)
	}
	other := &home{store: testdb.Open(t).Secrets(), keyFile: h.keyFile}
	bad := sealed
	bad.Name = "damaged"
	if err := other.store.Put(t.Context(), sealed, bad); err != nil {
		t.Fatal(err)
	}
	other.open(t)
	if got := logf.Redacted("restart-hidden-value"); got != logf.Hidden {
		t.Errorf("%q", got)
	}
}

// mission: B2, F4
func TestLogins(t *testing.T) {
	t.Parallel()
	hub := secret.Pairs{"REGISTRY_USERNAME": "u", "REGISTRY_PASSWORD": "p"}
	own := secret.Pairs{"REGISTRY_SERVER": "https://Reg.example.org:5000/v2/", "REGISTRY_USERNAME": "u",
		"REGISTRY_PASSWORD": "q"}
	for _, c := range []struct {
		pairs secret.Pairs
		host  string
		want  secret.Login
		ok    bool
	}{
		{hub, "docker.io", secret.Login{Server: "docker.io", User: "u", Password: "p"}, true},
		{hub, "index.docker.io", secret.Login{Server: "docker.io", User: "u", Password: "p"}, true},
		{hub, "ghcr.io", secret.Login{}, false},
		{own, "reg.example.org:5000", secret.Login{Server: "reg.example.org:5000", User: "u", Password: "q"}, true},
		{own, "reg.example.org", secret.Login{}, false},
		{secret.Pairs{"GH_TOKEN": "t"}, "ghcr.io", secret.Login{Server: "ghcr.io", User: "x-access-token",
			Password: "t"}, true},
		{secret.Pairs{"GH_TOKEN": "t"}, "docker.io", secret.Login{}, false},
	} {
		if got, ok := c.pairs.Login(c.host); ok != c.ok || got.Server != c.want.Server || got.User != c.want.User ||
			got.Password.Reveal() != c.want.Password.Reveal() {
			t.Errorf("%v at %s: %s %s, %t", c.pairs, c.host, got.Server, got.User, ok)
		}
	}
	v := newHome(t).open(t)
	set(t, v, "a-damaged-lookalike", secret.Pairs{"OTHER": "x"}, secret.Create)
	set(t, v, "reg", own, secret.Create)
	for _, name := range []string{"", "reg"} {
		l, ok, err := v.Registry(t.Context(), account, name, "reg.example.org:5000")
		if err != nil || !ok || l.Password.Reveal() != "q" {
			t.Errorf("%q: %v, %t, %v", name, l, ok, err)
		}
	}
	if _, ok, err := v.Registry(t.Context(), account, "", "ghcr.io"); ok || err != nil {
		t.Errorf("a login out of nothing: %t, %v", ok, err)
	}
	_, _, err := v.Registry(t.Context(), account, "none", "ghcr.io")
	wantError(t, err, errors.NotFound)
}

// mission: E7
func TestGit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		pairs secret.Pairs
		host  string
		want  secret.Git
	}{
		"a token": {secret.Pairs{"GITHUB_TOKEN": "t"}, "GitHub.com",
			secret.Git{Host: "github.com", User: "x-access-token", Password: "t"}},
		"an enterprise": {secret.Pairs{"GH_TOKEN": "t", "GITHUB_HOST": "Git.example.org"}, "git.example.org",
			secret.Git{Host: "git.example.org", User: "x-access-token", Password: "t"}},
		"an app": {secret.Pairs{"GITHUB_APP_ID": "1", "GITHUB_APP_PRIVATE_KEY": "k", "GITHUB_APP_INSTALLATION_ID": "2",
			"GITHUB_API_URL": "http://api"}, "github.com",
			secret.Git{Host: "github.com", User: "x-access-token", App: "1", Key: "k", Installation: "2",
				API: "http://api"}},
		"a password": {secret.Pairs{"GIT_HOST": "g:1", "GIT_PASSWORD": "p"}, "g:1",
			secret.Git{Host: "g:1", User: "git", Password: "p"}},
		"a user": {secret.Pairs{"GIT_HOST": "g", "GIT_PASSWORD": "p", "GIT_USERNAME": "u"}, "g",
			secret.Git{Host: "g", User: "u", Password: "p"}},
	} {
		if got, ok := c.pairs.Git(c.host); !ok || got != c.want {
			t.Errorf("%s: %+v, %t", name, got, ok)
		}
	}
	for _, p := range []secret.Pairs{{}, {"GITHUB_TOKEN": "t", "GITHUB_HOST": "other"}, {"GITHUB_APP_ID": "1"},
		{"GIT_PASSWORD": "p"}, {"GIT_HOST": "other", "GIT_PASSWORD": "p"}} {
		if got, ok := p.Git("github.com"); ok {
			t.Errorf("%v: %+v", p, got)
		}
	}
	v := newHome(t).open(t)
	set(t, v, "b", secret.Pairs{"GITHUB_TOKEN": "of-b"}, secret.Create)
	set(t, v, "a", secret.Pairs{"GITHUB_TOKEN": "of-a", "GITHUB_HOST": "other"}, secret.Create)
	if g, ok, err := v.Git(t.Context(), account, "", "github.com"); err != nil || !ok || g.Password.Reveal() != "of-b" {
		t.Errorf("%v, %t, %v", g, ok, err)
	}
	if g, ok, err := v.Git(t.Context(), account, "a", "github.com"); err != nil || ok {
		t.Errorf("another host's: %v, %t, %v", g, ok, err)
	}
}

// mission: 9.3
func TestAWS(t *testing.T) {
	t.Parallel()
	got, err := secret.Pairs{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": "token",
		"AWS_DEFAULT_REGION": "r", "AWS_ENDPOINT_URL": "e", "AWS_ENDPOINT_URL_S3": "s", secret.PathStyle: "true"}.AWS()
	want := secret.AWS{AccessKeyID: "id", SecretAccessKey: config.Secret("key"), SessionToken: config.Secret("token"),
		Region: "r", Endpoint: "s", PathStyle: true}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	_, err = secret.Pairs{"AWS_ACCESS_KEY_ID": "id"}.AWS()
	wantError(t, err, errors.Invalid, "AWS_SECRET_ACCESS_KEY")
	for _, c := range []struct {
		pairs     secret.Pairs
		want      secret.AWS
		ofMachine bool
	}{
		{secret.Pairs{"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_ROLE_ARN": "a",
			"AWS_EXTERNAL_ID": "x", "AWS_ENDPOINT_URL_STS": "s"},
			secret.AWS{AccessKeyID: "id", SecretAccessKey: config.Secret("key"), RoleARN: "a", ExternalID: "x",
				STS: "s"}, false},
		{secret.Pairs{"AWS_WEB_IDENTITY_TOKEN_FILE": "/f", "AWS_ROLE_ARN": "a"},
			secret.AWS{TokenFile: "/f", RoleARN: "a"}, true},
		{secret.Pairs{secret.FromMachine: "true"}, secret.AWS{Machine: true}, true},
	} {
		if got, err := c.pairs.AWS(); err != nil || got != c.want || got.OfMachine() != c.ofMachine {
			t.Errorf("%v: %+v, %v", c.pairs, got, err)
		}
	}
	_, err = secret.Pairs{"AWS_WEB_IDENTITY_TOKEN_FILE": "/f"}.AWS()
	wantError(t, err, errors.Invalid, "AWS_ROLE_ARN")
	_, err = secret.Pairs{"AWS_ROLE_ARN": "a"}.AWS()
	wantError(t, err, errors.Invalid, "AWS_ACCESS_KEY_ID")
}

// TestCanary checks that the value (the canary) appears neither on disk nor in a record or a log.
// mission: F4, F6
func TestCanary(t *testing.T) {
	t.Parallel()
	const canary = "CANARY-9d2c41f07e"
	dir := t.TempDir()
	db, err := store.Open(t.Context(), filepath.Join(dir, "harvest.db"))
	if err != nil {
		t.Fatal(err)
	}
	h := &home{store: db.Secrets(), keyFile: filepath.Join(dir, "secret.key")}
	v := h.open(t)
	set(t, v, "s", secret.Pairs{"TOKEN": canary}, secret.Create)
	set(t, v, "s", secret.Pairs{"OTHER": canary + "2"}, secret.Merge)
	reveal(t, v, "s")
	if _, err := v.Rekey(t.Context()); err != nil {
		t.Fatal(err)
	}
	search := func() {
		t.Helper()
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil || len(files) < 2 {
			t.Fatalf("files %v, %v", files, err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(data, []byte(canary)) {
				t.Errorf("the value is in %s", file)
			}
		}
	}
	search() // with the write-ahead log
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	search()
}

func TestStoreFails(t *testing.T) {
	t.Parallel()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "db"))
	if err != nil {
		t.Fatal(err)
	}
	h := newHome(t)
	h.store = db.Secrets()
	v := h.open(t)
	set(t, v, "s", secret.Pairs{"TOKEN": "x"}, secret.Create)
	h.store = failing{h.store}
	_, err = h.open(t).Set(t.Context(), account, "s", secret.Pairs{"TOKEN": "failing-put-value"}, secret.Replace)
	wantError(t, err, errors.Exhausted)
	if logf.Redacted("failing-put-value") == logf.Hidden {
		t.Error("what was not stored is hidden for ever")
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	_, setting := v.Set(t.Context(), account, "s", secret.Pairs{"A": "x"}, secret.Replace)
	_, listing := v.List(t.Context(), account)
	_, getting := v.Get(t.Context(), account, "s")
	_, _, revealing := v.Reveal(t.Context(), account, "s")
	_, _, logging := v.Registry(t.Context(), account, "", "x")
	_, _, lending := v.Lend(t.Context(), account, "sbx_a", secret.Bound, "s")
	_, rekeying := v.Rekey(t.Context())
	v.ReturnAllBut(t.Context(), nil)
	_, opening := secret.Open(t.Context(), secret.Options{Store: db.Secrets(), KeyFile: h.keyFile})
	for what, err := range map[string]error{"Set": setting, "List": listing, "Get": getting, "Reveal": revealing,
		"Registry": logging,
		"Open":     opening, "Delete": v.Delete(t.Context(), account, "s"), "Rekey": rekeying, "Lend": lending} {
		if err == nil {
			t.Errorf("%s succeeded without a store", what)
		}
	}
}

func TestFind(t *testing.T) {
	t.Parallel()
	v := newHome(t).open(t)
	for name, p := range map[string]secret.Pairs{"b": {"KEY": "of-b-123"}, "a": {"KEY": "of-a-123", "OTHER": "x"},
		"c": {"SECOND": "of-c-123"}, "empty": {"KEY": "", "Z": "z"}} {
		if _, err := v.Set(t.Context(), account, name, p, secret.Create); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		named, keys []string
		want        string
	}{
		{nil, []string{"KEY"}, "of-a-123"},
		{[]string{"none", "c", "b"}, []string{"KEY"}, "of-b-123"},
		{[]string{"c"}, []string{"KEY", "SECOND"}, "of-c-123"},
		{[]string{"empty"}, []string{"KEY"}, "of-a-123"},
		{nil, []string{"ODD"}, ""},
	} {
		_, p, err := v.Find(t.Context(), account, c.named, c.keys)
		if got := p["KEY"] + p["SECOND"]; err != nil || got != c.want {
			t.Errorf("%v %v: %q, %v", c.named, c.keys, got, err)
		}
	}
}
