package trust_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/image/trust"
)

// TestAddToKeystore checks, with Java's own program, that keystores of each format keep their entries, and have the
// authority.
func TestAddToKeystore(t *testing.T) {
	t.Parallel()
	keytool := testenv.RequireTool(t, "keytool", "openjdk-17-jre-headless")
	dir := t.TempDir()
	run := func(args ...string) (string, error) {
		out, err := exec.CommandContext(t.Context(), keytool, args...).CombinedOutput()
		return string(out), err
	}
	old, own := filepath.Join(dir, "old.crt"), authority(t)
	testenv.WriteFile(t, old, authority(t))
	for name, options := range map[string][]string{
		"JKS":                 {"-storetype", "JKS"},
		"PKCS #12":            {"-storetype", "PKCS12"},
		"PKCS #12 in the old": {"-storetype", "PKCS12", "-J-Dkeystore.pkcs12.legacy"},
		"PKCS #12, open": {"-storetype", "PKCS12", "-J-Dkeystore.pkcs12.certProtectionAlgorithm=NONE",
			"-J-Dkeystore.pkcs12.macAlgorithm=NONE"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(dir, strings.ReplaceAll(name, " ", ""))
			password := []string{"-keystore", path, "-storepass", "changeit"}
			if out, err := run(slices.Concat([]string{"-importcert", "-noprompt", "-alias", "old", "-file", old},
				password,
				options)...); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			for range 2 { // again, it stays the same
				store, err := os.ReadFile(path)
				if err != nil {
					t.Fatal(err)
				}
				added, err := trust.AddToKeystore(store, string(own))
				if err != nil {
					t.Fatal(err)
				}
				testenv.WriteFile(t, path, added)
				if out, err := run(append([]string{"-list"}, password...)...); err != nil ||
					!strings.Contains(out, "2 entries") || strings.Count(out, "trustedCertEntry") != 2 {
					t.Errorf("%v: %s", err, out)
				}
			}
		})
	}
}

func TestUnknownKeystores(t *testing.T) {
	t.Parallel()
	own := string(authority(t))
	// An empty keystore, whose checksum is that of another password.
	other := append([]byte{0xfe, 0xed, 0xfe, 0xed, 0, 0, 0, 2, 0, 0, 0, 0}, bytes.Repeat([]byte{1}, 20)...)
	for _, store := range [][]byte{nil, []byte("text"), other[:10], other} {
		if _, err := trust.AddToKeystore(store, own); !errors.Is(err, errors.Unsupported) {
			t.Errorf("%q: got %v, want Unsupported", store, err)
		}
	}
	if _, err := trust.AddToKeystore(other, "text"); err == nil {
		t.Error("text was added as an authority")
	}
	got := trust.Keystores([]string{trust.Bundle, "/etc/ssl/cert.pem"}, "/jdk/")
	if diff := cmp.Diff([]string{"/etc/ssl/certs/java/cacerts", "/jdk/lib/security/cacerts",
		"/jdk/jre/lib/security/cacerts"}, got); diff != "" {
		t.Error(diff)
	}
	if got := trust.Keystores([]string{"/etc/ssl/cert.pem"}, "jdk"); got != nil {
		t.Errorf("got %q", got)
	}
}
