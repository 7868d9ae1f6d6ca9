package modal

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestConfigured checks that credentials are reported if and only if the SDK makes a call with them, and that missing
// ones are named.
//
// mission: 9.1, 9.2, 9.6, F3
func TestConfigured(t *testing.T) {
	p := newPlane(t)
	const whole, none = "", "there are no credentials for Modal"
	pair := "token_id = \"ak-file\"\ntoken_secret = \"as-file\"\n"
	for name, c := range map[string]struct {
		file string // "" for none
		env  map[string]string
		opts Options
		kind errors.Kind
		want []string // parts of the text and the remedy
	}{
		"nothing": {"", nil, Options{}, errors.Unauthenticated,
			[]string{none, "there is no /", "MODAL_TOKEN_ID", "modal token new"}},
		"options": {"", nil, Options{TokenID: "ak-x", TokenSecret: "as-x"}, whole, nil},
		"environment": {"", map[string]string{"MODAL_TOKEN_ID": "ak-x", "MODAL_TOKEN_SECRET": "as-x"},
			Options{}, whole, nil},
		"an active profile": {"[one]\n" + pair + "active = true\n[two]\n", nil, Options{}, whole, nil},
		"a named profile": {"[one]\nactive = true\n[two]\n" + pair,
			map[string]string{"MODAL_PROFILE": "two"}, Options{}, whole, nil},
		"no secret in the options": {"", nil, Options{TokenID: "ak-x"}, errors.Invalid,
			[]string{"modal.token_id is set, but not the token's secret", "modal.token_secret"}},
		"no ID in the options": {"", nil, Options{TokenSecret: "as-x"}, errors.Invalid,
			[]string{"modal.token_secret is set, but not the token's ID", "modal.token_id"}},
		"no secret in the environment": {"", map[string]string{"MODAL_TOKEN_ID": "ak-x"}, Options{}, errors.Invalid,
			[]string{"MODAL_TOKEN_ID is set, but not the token's secret", "MODAL_TOKEN_SECRET"}},
		"no ID in the environment": {"", map[string]string{"MODAL_TOKEN_SECRET": "as-x"}, Options{}, errors.Invalid,
			[]string{"MODAL_TOKEN_SECRET is set, but not the token's ID", "MODAL_TOKEN_ID"}},
		"no secret in the file": {"[one]\nactive = true\ntoken_id = \"ak-x\"\n", nil, Options{}, errors.Invalid,
			[]string{"credentials for Modal: token_id of the profile \"one\" in /", "not the token's secret"}},
		"halves that make one": {"[one]\nactive = true\ntoken_id = \"ak-x\"\n",
			map[string]string{"MODAL_TOKEN_SECRET": "as-x"}, Options{}, whole, nil},
		"another half of the options": {"[one]\nactive = true\n" + pair, nil, Options{TokenID: "ak-x"}, whole, nil},
		"an empty file": {"\n", nil, Options{}, errors.Unauthenticated,
			[]string{none, "no profile is active", "MODAL_PROFILE"}},
		"no active profile": {"[one]\n" + pair, nil, Options{}, errors.Unauthenticated,
			[]string{none, "no profile is active"}},
		"an empty profile": {"[one]\nactive = true\n", nil, Options{}, errors.Unauthenticated,
			[]string{none, `the profile "one" in /`}},
		"a profile that there is not": {"[one]\nactive = true\n" + pair, map[string]string{"MODAL_PROFILE": "three"},
			Options{}, errors.Unauthenticated, []string{none, `the profile "three"`}},
		"a broken file": {"[one\n", map[string]string{"MODAL_TOKEN_ID": "ak-x",
			"MODAL_TOKEN_SECRET": "as-x"}, Options{}, errors.Invalid, []string{"cannot read its file /"}},
		"no profiles but values": {"token_id = \"ak-x\"\n", nil, Options{}, errors.Invalid,
			[]string{"cannot read its file /"}},
		"OAuth": {"[one]\nactive = true\noauth_client_id = \"oc-x\"\noauth_client_secret = \"ov-x\"\n",
			map[string]string{"MODAL_OAUTH_REFRESH_TOKEN": "x"}, Options{}, whole, nil},
		"half of OAuth": {"", map[string]string{"MODAL_OAUTH_REFRESH_TOKEN": "x"}, Options{},
			errors.Invalid, []string{"incomplete OAuth credentials for Modal", "MODAL_OAUTH_CLIENT_ID"}},
		"two kinds": {"[one]\nactive = true\n" + pair, map[string]string{"MODAL_OAUTH_REFRESH_TOKEN": "x",
			"MODAL_OAUTH_CLIENT_ID": "oc-x", "MODAL_OAUTH_CLIENT_SECRET": "ov-x"}, Options{},
			errors.Invalid, []string{"two kinds of credentials for Modal", "remove one of them"}},
		"two kinds, and options": {"", map[string]string{"MODAL_OAUTH_REFRESH_TOKEN": "x"},
			Options{TokenID: "ak-x", TokenSecret: "as-x"}, whole, nil},
		"no home": {"", map[string]string{"HOME": "", "MODAL_TOKEN_ID": "ak-x",
			"MODAL_TOKEN_SECRET": "as-x"}, Options{}, errors.Invalid, []string{"HOME is not set", "MODAL_CONFIG_PATH"}},
	} {
		for _, elsewhere := range []bool{false, true} { // the file is at MODAL_CONFIG_PATH
			if elsewhere && c.file == "" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				home := t.TempDir()
				file := filepath.Join(home, ".modal.toml")
				t.Setenv("HOME", home)
				t.Setenv("MODAL_CONFIG_PATH", "")
				if elsewhere {
					file = filepath.Join(t.TempDir(), "other.toml")
					t.Setenv("MODAL_CONFIG_PATH", file)
				}
				if c.file != "" {
					if err := os.WriteFile(file, []byte(c.file), 0o600); err != nil {
						t.Fatal(err)
					}
				}
				for name, value := range c.env {
					t.Setenv(name, value)
				}
				err := Configured(c.opts, os.Getenv)
				if errors.KindOf(err) != c.kind {
					t.Errorf("it is %v (%s), want %q", err, errors.KindOf(err), c.kind)
				}
				text := errors.Message(err) + "; " + errors.RemedyOf(err)
				for _, want := range c.want {
					if !strings.Contains(text, want) {
						t.Errorf("%q is not in %q", want, text)
					}
				}
				if strings.Contains(text, "as-") || strings.Contains(text, "ak-") || strings.Contains(text, "ov-") {
					t.Errorf("a value is in %q", text)
				}
				if called := calls(t, c.opts); called != (err == nil) {
					t.Errorf("the SDK makes a call: %v; but: %v", called, err)
				}
				if _, opened := p.open(t, c.opts); errors.KindOf(opened) != c.kind {
					t.Errorf("Open: %v", opened)
				}
			})
		}
	}
}

// calls reports whether the SDK makes a call with the credentials that it finds.
func calls(t *testing.T, opts Options) bool {
	t.Helper()
	client, err := sdk.NewClientWithOptions(&sdk.ClientParams{TokenID: opts.TokenID, TokenSecret: opts.TokenSecret})
	if err != nil {
		return false
	}
	defer client.Close()
	_, err = client.Apps.FromName(t.Context(), "harvest", &sdk.AppFromNameParams{CreateIfMissing: true})
	return err == nil
}

// TestProfilesThatAreActive checks that more than one active profile is reported, since the SDK picks any of them,
// which may be another account the next time.
//
// mission: 9.1
func TestProfilesThatAreActive(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "modal.toml")
	if err := os.WriteFile(file,
		[]byte("[b]\nactive = true\n[a]\nactive = true\ntoken_id = \"i\"\ntoken_secret = \"s\"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"MODAL_CONFIG_PATH": file}
	look := func(name string) string { return env[name] }
	if err := Configured(Options{}, look); errors.KindOf(err) != errors.Invalid ||
		!strings.Contains(err.Error(), `["a" "b"]`) || !strings.Contains(errors.RemedyOf(err), "MODAL_PROFILE") {
		t.Errorf("two active profiles: %v", err)
	}
	env["MODAL_PROFILE"] = "a"
	if err := Configured(Options{}, look); err != nil {
		t.Errorf("one of them is named: %v", err)
	}
}
