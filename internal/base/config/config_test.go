package config

import (
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// environ is an environment that is independent of the machine that runs the test.
func environ(t *testing.T, pairs ...string) func(string) string {
	t.Helper()
	vars := map[string]string{"HOME": t.TempDir(), "HARVEST_DATA": t.TempDir()}
	for i := 0; i < len(pairs); i += 2 {
		vars[pairs[i]] = pairs[i+1]
	}
	return func(name string) string { return vars[name] }
}

func write(t *testing.T, dir, text string) string {
	t.Helper()
	path := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDefaultsAreValid(t *testing.T) {
	t.Parallel()
	c, err := Load("", environ(t))
	if err != nil {
		t.Fatal(err)
	}
	want := Limits{CPU: min(2, float64(runtime.NumCPU())), Memory: 2 << 30, Disk: 10 << 30,
		Processes: 1024, Files: 65536}
	if c.Limits != want || c.Timeout != 24*time.Hour || c.ExecTimeout != 1800*time.Second || c.Engine != "gvisor" {
		t.Errorf("defaults: %+v", c)
	}
	if c.Source("timeout") != "default" || c.Source("data") != "HARVEST_DATA" {
		t.Errorf("sources: timeout from %s, data from %s", c.Source("timeout"), c.Source("data"))
	}
}

func TestDefaultData(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name      string
		uid       int
		xdg, want string
	}{
		{"root", 0, "/x", "/var/lib/harvest"},
		{"user", 1000, "", "/home/u/.local/share/harvest"},
		{"user with XDG", 1000, "/x", "/x/harvest"},
		{"a relative XDG directory does not count", 1000, "x", "/home/u/.local/share/harvest"},
	} {
		env := func(name string) string { return map[string]string{"HOME": "/home/u", "XDG_DATA_HOME": test.xdg}[name] }
		if got := defaultData(env, test.uid); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	path := write(t, t.TempDir(),
		"# ours\ntimeout: 1h\npool: 3\nlimits:\n  memory: 1GiB\n  cpu: 0.5\nlog: {level: debug}\n")
	env := environ(t, "HARVEST_POOL", "4", "HARVEST_LIMITS_MEMORY", "512MiB")
	c, err := Load(path, env, Setting{"limits.memory", "256MiB", "--memory"},
		Setting{"limits.memory", "128MiB", "--memory"})
	if err != nil {
		t.Fatal(err)
	}
	if c.Timeout != time.Hour || c.Pool != 4 || c.Limits.Memory != 128<<20 || c.Limits.CPU != 0.5 ||
		c.Log.Level != slog.LevelDebug {
		t.Errorf("values: %+v", c)
	}
	for key, want := range map[string]string{
		"timeout": path + ":2", "limits.cpu": path + ":6", "pool": "HARVEST_POOL", "limits.memory": "--memory",
		"engine": "default",
	} {
		if got := c.Source(key); got != want {
			t.Errorf("%s comes from %s, want %s", key, got, want)
		}
	}
}

func TestFileIsFound(t *testing.T) {
	t.Parallel()
	t.Run("in the data directory of the environment", func(t *testing.T) {
		t.Parallel()
		env := environ(t)
		write(t, env("HARVEST_DATA"), "pool: 7\n")
		if c, err := Load("", env); err != nil || c.Pool != 7 {
			t.Errorf("pool %d, %v", c.Pool, err)
		}
	})
	t.Run("in the data directory of a flag", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		write(t, dir, "pool: 8\n")
		if c, err := Load("", environ(t), Setting{"data", dir, "--data"}); err != nil || c.Pool != 8 {
			t.Errorf("pool %d, %v", c.Pool, err)
		}
	})
	t.Run("by HARVEST_CONFIG", func(t *testing.T) {
		t.Parallel()
		path := write(t, t.TempDir(), "pool: 9\n")
		if c, err := Load("", environ(t, "HARVEST_CONFIG", path)); err != nil || c.Pool != 9 {
			t.Errorf("pool %d, %v", c.Pool, err)
		}
	})
	t.Run("a missing one that was asked for", func(t *testing.T) {
		t.Parallel()
		_, err := Load(filepath.Join(t.TempDir(), "none.yaml"), environ(t))
		if errors.KindOf(err) != errors.Invalid ||
			!strings.Contains(errors.Message(err), "none.yaml: no such file or directory") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a directory", func(t *testing.T) {
		t.Parallel()
		if _, err := Load(t.TempDir(), environ(t)); !strings.Contains(errors.Message(err), ": is a directory") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("a data directory that is a file", func(t *testing.T) {
		t.Parallel()
		path := write(t, t.TempDir(), "")
		if _, err := Load("", environ(t, "HARVEST_DATA", path)); !strings.Contains(errors.Message(err),
			"config.yaml: not a directory") {
			t.Errorf("error %v", err)
		}
	})
}

// mission: F5
// mission: 9.5
func TestAllProblemsAtOnce(t *testing.T) {
	t.Parallel()
	path := write(t, t.TempDir(), `timeout: 0s
memory: 3GiB
limits:
  memory: 1KiB
  cpu: lots
exec-timeout: 5m
pool:
prices: [1, 2]
log: {format: xml}
`)
	_, err := Load(path, environ(t, "HARVEST_ENGINE", "docker", "HARVEST_OUTPUT_BYTES", "many"),
		Setting{"data", "here", "--data"})
	if errors.KindOf(err) != errors.Invalid {
		t.Fatalf("kind %s of %v", errors.KindOf(err), err)
	}
	got := strings.Split(errors.Message(err), "\n  ")
	want := []string{
		"invalid configuration: 11 problems:",
		path + ":7: pool has no value; write one, or remove the line",
		path + ":8: prices must be a plain value",
		path + ":2: unknown option memory; did you mean limits.memory?",
		path + ":5: limits.cpu: invalid value lots; write a number, such as 0.5",
		path + ":6: unknown option exec-timeout; did you mean exec_timeout?",
		"HARVEST_OUTPUT_BYTES: output_bytes: invalid value many; write a size, such as 512MiB or 2GiB",
		"--data: data: invalid value here; write an absolute path, such as /srv/harvest",
		"HARVEST_ENGINE: engine: invalid value docker; write gvisor or kubernetes or modal or fake",
		path + ":4: limits.memory: invalid value 1KiB; write a size of at least 32MiB, such as 2GiB",
		path + ":1: timeout: invalid value 0s; write a duration from 1s to 168h, which is a week",
		path + ":9: log.format: invalid value xml; write text or json",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestEveryOptionRefusesNonsense(t *testing.T) {
	t.Parallel()
	for _, o := range options {
		t.Run(o.key, func(t *testing.T) {
			t.Parallel()
			refused := false
			for _, nonsense := range []string{"-1", "\x00", "99999999999999999999", "NaN", "169h"} {
				_, err := Load("", environ(t), Setting{o.key, nonsense, "--test"})
				if err != nil {
					refused = true
					if m := errors.Message(err); !strings.Contains(m, o.key) || !strings.Contains(m, "write ") {
						t.Errorf("%q: %s", nonsense, m)
					}
				}
			}
			if !refused {
				t.Errorf("%s takes anything", o.key)
			}
		})
	}
}

func TestNamesAreNeeded(t *testing.T) {
	t.Parallel()
	_, err := Load("", environ(t), Setting{"modal.app", "", "--test"})
	if m := errors.Message(err); !strings.Contains(m, "write the name of an app, such as harvest") {
		t.Errorf("an app without a name: %v", err)
	}
}

func TestShapes(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ text, want string }{
		"not YAML":        {"pool: [1\n", "f:1: invalid YAML"},
		"a list":          {"- pool\n", "f:1: write options as"},
		"a word":          {"pool\n", "f:1: write options as"},
		"twice":           {"pool: 1\npool: 2\n", "f:2: invalid YAML"},
		"two documents":   {"pool: 1\n---\npool: 2\n", "f:3: more than one document"},
		"an anchor":       {"timeout: &x 1h\nexec_timeout: *x\n", "f:1: timeout must be a plain value"},
		"a literal block": {"engine: |\n  gvisor\n", "f:1: engine must be a plain value"},
		// The decoder drops such a tab: findings/goccy-yaml-tab-in-text.sh.
		"a tab without quotes": {"notify:\n  command: send\t--now\n", "f:2: notify.command has a tab; put"},
	} {
		if _, problems := parse("f", []byte(test.text)); len(problems) == 0 ||
			!strings.HasPrefix(problems[0], test.want) {
			t.Errorf("%s: %q, want %q", name, problems, test.want)
		}
	}
	for name, text := range map[string]string{"empty": "", "comments": "# nothing\n",
		"documents' marks": "---\npool: 1\n", "tabs around": "engine: \tgvisor\t# this\tone\n",
		"a tab in quotes": "notify:\n  command: \"send\t--now\"\n"} {
		if _, problems := parse("f", []byte(text)); len(problems) > 0 {
			t.Errorf("%s: %q", name, problems)
		}
	}
}

func TestRelations(t *testing.T) {
	t.Parallel()
	c := Default(environ(t))
	c.Limits.CPU, c.Quotas.CPU = 4, 2
	c.Quotas.Memory = 1 << 30
	c.Pool, c.Quotas.Sandboxes = 3, 2
	err := report(c.problems())
	for _, want := range []string{"configuration: 3 problems", "quotas.cpu", "quotas.memory", "quotas.sandboxes"} {
		if !strings.Contains(errors.Message(err), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	if err := report(Default(environ(t)).problems()); err != nil {
		t.Errorf("the defaults: %v", err)
	}
}

func TestHostsAndNames(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key, value string
		good       bool
	}{
		{"connect.allow", "10.0.0.0/8,fd00::/8", true}, {"connect.allow", "x", false},
		{"registries.insecure", "10.0.0.1:5000,registry.example.org", true}, {"registries.insecure", "http://x", false},
		{"registries.mirrors", "docker.io=mirror.example.org:5000/hub", true},
		{"server.public_names", "harvest.example.org,h", true}, {"server.public_names", "harvest.example.org:443",
			false}, {"server.public_names", "Harvest", false},
		{"server.public_url", "https://harvest.example.org", true},
		{"server.public_url", "https://harvest.example.org:8443/", true},
		{"server.public_url", "https://harvest.example.org/x", false}, {"server.public_url", "harvest.example.org",
			false}, {"server.public_url", "https://u:p@h", false},
		{"ports.domain", "*.localhost", true}, {"ports.domain", "", true}, {"ports.domain", "*.s.example.org", true},
		{"ports.domain", "s.example.org", false}, {"ports.domain", "*.", false}, {"ports.domain", "*.*.org", false},
		{"ports.domain", "*.s.org:80", false},
		{"oidc.scopes", "email", false}, {"oidc.scopes", "openid,a b", false}, {"oidc.groups_claim", "", false},
		{"oidc.client_secret", "[redacted]", false},
	} {
		_, err := Load("", environ(t), Setting{c.key, c.value, "--test"})
		if (err == nil) != c.good {
			t.Errorf("%s=%s: %v", c.key, c.value, err)
		}
	}
}

func TestWhoMaySignIn(t *testing.T) {
	t.Parallel()
	base := []string{"HARVEST_OIDC_CLIENT_ID", "harvest", "HARVEST_OIDC_CLIENT_SECRET", "CANARY"}
	for allow, good := range map[string]bool{
		"ann@example.org=acme": true, "@example.org=acme:member,group:ops=personal:admin": true, "group:a/b=x": true,
		"": false, "ann=acme": false, "@example.org": false, "@example.org=Acme": false,
		"@example.org=acme:root": false, "@=acme": false, "group:=acme": false, "a=b@c=d": false,
	} {
		c, err := Load("", environ(t, append(base, "HARVEST_OIDC_ISSUER", "https://id.example.org",
			"HARVEST_OIDC_ALLOW", allow)...))
		if (err == nil) != good {
			t.Errorf("%q: %v", allow, err)
		}
		if text := c.Effective(); strings.Contains(text, "CANARY") {
			t.Errorf("the secret is shown:\n%s", text)
		}
	}
	for issuer, good := range map[string]bool{
		"https://id.example.org/realms/x": true, "http://127.0.0.1:5556/dex": true, "http://localhost:1": true,
		"http://id.example.org": false, "id.example.org": false,
	} {
		if _, err := Load("", environ(t, append(base, "HARVEST_OIDC_ISSUER", issuer, "HARVEST_OIDC_ALLOW",
			"@a=b")...)); (err == nil) != good {
			t.Errorf("%s: %v", issuer, err)
		}
	}
	if _, err := Load("", environ(t, "HARVEST_OIDC_ISSUER",
		"https://id.example.org")); !strings.Contains(errors.Message(err), "configuration: 2 problems") {
		t.Errorf("an issuer alone: %v", err)
	}
	acme := []string{"HARVEST_SERVER_ACME_DOMAIN", "h.example.org"}
	if _, err := Load("", environ(t, acme...)); err != nil {
		t.Error(err)
	}
	if _, err := Load("", environ(t, append(acme, "HARVEST_PORTS_DOMAIN",
		"*.example.org")...)); !strings.Contains(errors.Message(err), "ports.domain") {
		t.Errorf("one certificate for all: %v", err)
	}
}

func TestQuoteLoadsAgain(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"plain", "a: b # c", "a\tb", "\ta", "1e3", ".inf", "tab\t\"and quotes\"\\", ""} {
		settings, problems := parse("f", []byte("engine: "+quote(text)+"\n"))
		if len(settings) != 1 || settings[0].Value != text {
			t.Errorf("%q, written as %s, is %v, %q", text, quote(text), settings, problems)
		}
	}
}

func TestEffectiveLoadsAgain(t *testing.T) {
	t.Parallel()
	env := environ(t, "HARVEST_TIMEOUT", "90m", "HARVEST_LIMITS_MEMORY", "1537MiB", "HARVEST_DATA",
		"/srv/a directory: with # signs")
	c, err := Load("", env, Setting{"certificate_dir", "", "--no-certificates"})
	if err != nil {
		t.Fatal(err)
	}
	text := c.Effective()
	for _, want := range []string{"timeout: 1h30m ", "# HARVEST_TIMEOUT · maximum lifetime", "  memory: 1537MiB ",
		"  processes: 1024 ", "# --no-certificates"} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	again, err := Load(write(t, t.TempDir(), text), func(string) string { return "" })
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	if diff := cmp.Diff(c, again, cmpopts.IgnoreUnexported(Config{})); diff != "" {
		t.Error(diff)
	}
}

func TestGuideListsEveryOption(t *testing.T) {
	t.Parallel()
	guide, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range options {
		if !strings.Contains(string(guide), "| `"+o.key+"` | `"+o.env()+"` |") {
			t.Errorf("docs/configuration.md has no row for %s (%s)", o.key, o.env())
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{"pool: 1\n", "limits: {cpu: 1}\n", "a: &x\n  b: *x\n", "<<: 1\n", "? a\n: b\n",
		"- 1\n", "a: !!binary x\n", "\x00", "a: |\n b\n", "{a: {b: {c: 1}}}", "a:\n\tb: 1"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		settings, problems := parse("f", []byte(text))
		for _, s := range settings {
			if !strings.HasPrefix(s.Source, "f:") {
				t.Errorf("setting without a source: %+v", s)
			}
		}
		for _, p := range problems {
			if !strings.HasPrefix(p, "f:") {
				t.Errorf("problem without a source: %q", p)
			}
		}
	})
}

// The embedded S3 is chosen by a word, and its buckets have no dots.
func TestEmbeddedS3(t *testing.T) {
	t.Parallel()
	c, err := Load("", environ(t, "HARVEST_S3_ENDPOINT", Embedded, "HARVEST_S3_BUCKET", "files"))
	if err != nil || c.S3.Endpoint != Embedded || !strings.Contains(c.Effective(), "endpoint: embedded") {
		t.Errorf("it is %+v, %v", c.S3, err)
	}
	for bucket, endpoint := range map[string]string{"a.b": Embedded, "files": "embeded"} {
		if _, err := Load("", environ(t, "HARVEST_S3_ENDPOINT", endpoint, "HARVEST_S3_BUCKET",
			bucket)); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%s at %s: %v", bucket, endpoint, err)
		}
	}
}

func TestS3IsConfigured(t *testing.T) {
	t.Parallel()
	has := func(secret string) bool { return secret == "aws" }
	for name, c := range map[string]struct {
		s3   S3
		want bool
	}{
		"nothing":     {S3{}, false},
		"as it comes": {Default(environ(t)).S3, false},
		"a secret and no bucket": {S3{Secret: "aws", Endpoint: "https://s3.example.org",
			Prefix: "p"}, false},
		"a bucket, the secret as it comes":  {S3{Bucket: "b", Secret: "aws"}, true},
		"a bucket, a secret there is not":   {S3{Bucket: "b", Secret: "other"}, false},
		"a bucket, no word of a secret":     {S3{Bucket: "b"}, true},
		"a bucket of another server":        {S3{Bucket: "b", Secret: "aws", Endpoint: "https://s3.example.org"}, true},
		"the embedded S3":                   {S3{Endpoint: Embedded}, true},
		"the embedded S3 with a bucket":     {S3{Endpoint: Embedded, Bucket: "b"}, true},
		"the embedded S3, whatever is kept": {S3{Endpoint: Embedded, Secret: "other"}, true},
	} {
		if got := c.s3.Configured(has); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
