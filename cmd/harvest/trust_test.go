package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestProgramsKeepTheirRoots checks that the files for programs have the authority and the roots that the programs
// trusted before.
func TestProgramsKeepTheirRoots(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	system, own := write("system.pem", "system"), write("own.pem", "own\n")
	at := func(name string) string { return filepath.Join(dir, "trust", name) }
	for _, c := range []struct {
		name  string
		env   map[string]string
		roots []string
		want  map[string]string // content of the file, by variable
	}{
		{"a system with roots", nil, []string{filepath.Join(dir, "none"), system}, map[string]string{
			"SSL_CERT_FILE": "system\nauthority", "REQUESTS_CA_BUNDLE": "system\nauthority",
			"NODE_EXTRA_CA_CERTS": "authority"}},
		{"variables of the user", map[string]string{"SSL_CERT_FILE": own, "NODE_EXTRA_CA_CERTS": own},
			[]string{system}, map[string]string{"SSL_CERT_FILE": "own\nauthority",
				"REQUESTS_CA_BUNDLE": "system\nauthority", "NODE_EXTRA_CA_CERTS": "own\nauthority"}},
		{"variables of an earlier call", map[string]string{"SSL_CERT_FILE": at("roots.pem"),
			"NODE_EXTRA_CA_CERTS": at("node.pem")}, []string{system}, map[string]string{
			"SSL_CERT_FILE": "system\nauthority", "REQUESTS_CA_BUNDLE": "system\nauthority",
			"NODE_EXTRA_CA_CERTS": "authority"}},
		{"no roots", nil, nil, map[string]string{"NODE_EXTRA_CA_CERTS": "authority"}},
	} {
		vars, err := trust{dir: filepath.Join(dir, "trust"), env: func(name string) string { return c.env[name] },
			roots: c.roots}.variables("authority")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, v := range vars {
			text, err := os.ReadFile(v.value)
			if err != nil {
				t.Fatal(err)
			}
			got[v.name] = string(text)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
	_, err := trust{dir: dir, env: func(string) string { return filepath.Join(dir, "none") }}.variables("authority")
	if !errors.Is(err, errors.Invalid) || errors.RemedyOf(err) == "" {
		t.Errorf("a variable that names no file: %v", err)
	}
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{"http://127.0.0.1:7783": "http://127.0.0.1:7783",
		"/home/a b/it's": `'/home/a b/it'\''s'`, "$(x)": "'$(x)'"} {
		if got := quoted(value); got != want {
			t.Errorf("%s: %s, want %s", value, got, want)
		}
	}
}
