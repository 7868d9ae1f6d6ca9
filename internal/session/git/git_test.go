package git_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/session/git"
)

func TestParseAddress(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]git.Address{
		"https://GitHub.com/owner/name.git":   {Scheme: "https", Host: "github.com", Path: "owner/name"},
		"https://git.example.org:8443/a/b/c/": {Scheme: "https", Host: "git.example.org:8443", Path: "a/b/c"},
		"git@github.com:owner/name.git":       {Scheme: "ssh", Host: "github.com", Path: "owner/name"},
		"ssh://git@example.org:22/owner/name": {Scheme: "ssh", Host: "example.org:22", Path: "owner/name"},
		"file:///srv/name.git":                {Scheme: "file", Path: "srv/name"},
		"http://127.0.0.1:3000/owner/odd%20name.go": {Scheme: "http", Host: "127.0.0.1:3000",
			Path: "owner/odd name.go"},
	} {
		got, err := git.ParseAddress(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
	}
	for _, text := range []string{"", "ext::sh -c touch% /tmp/x", "ext::x", "--upload-pack=x", "-x", "/srv/name",
		"https://u:p@example.org/x", "https://u@example.org/x", "https:///x",
		"https://a b/c", "https://a/\x01", "ftp://a/b", "https://-oProxyCommand=x/y",
		"https://" + strings.Repeat("a", 2000), "::"} {
		if got, err := git.ParseAddress(text); errors.KindOf(err) != errors.Invalid || errors.RemedyOf(err) == "" {
			t.Errorf("%.50q: %+v, %v", text, got, err)
		}
	}
}

func TestAddressNames(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"https://github.com/Owner/name.git": "Owner name https://github.com",
		"https://example.org/a/b/c":         "a-b c https://example.org",
		"https://example.org/x":             " x https://example.org",
		"https://example.org":               "  https://example.org",
		"git@github.com:o/..":               "o  ",
		"file:///srv/odd name.git":          "",
	} {
		a, err := git.ParseAddress(text)
		if want == "" {
			continue
		}
		if got := a.Owner() + " " + a.Name() + " " + a.Origin(); got != want || err != nil {
			t.Errorf("%s: %q, %v", text, got, err)
		}
	}
}

func TestCheckBranch(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "main", "feature/a.b", "harvest/01", "ünïcode"} {
		if err := git.CheckBranch(name); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, name := range []string{"--upload-pack=x", "-", "a b", "a..b", "a~1", "a:b", "a//b", "/a", "a/", "a.",
		"a.lock", "a.lock/b", ".a", "a/.b", "@", "a@{1}", "a\x00", "a\\b", "a[", strings.Repeat("a", 251)} {
		if err := git.CheckBranch(name); errors.KindOf(err) != errors.Invalid {
			t.Errorf("%q: %v", name, err)
		}
	}
}

func TestExplain(t *testing.T) {
	t.Parallel()
	for said, want := range map[string]errors.Kind{
		"fatal: could not read Username for 'https://example.org': terminal prompts disabled": errors.Denied,
		"fatal: Authentication failed for 'https://example.org/'":                             errors.Denied,
		"fatal: unable to access 'https://x/': The requested URL returned error: 403":         errors.Denied,
		"fatal: repository 'https://example.org/x/' not found":                                errors.NotFound,
		"fatal: Remote branch x not found in upstream origin":                                 errors.NotFound,
		"fatal: write error: No space left on device":                                         errors.Exhausted,
		"fatal: unable to access 'https://x/': Could not resolve host: x":                     errors.Unavailable,
		"fatal: transport 'ext' not allowed":                                                  errors.Denied,
		"git: 'lfs' is not a git command. See 'git --help'.":                                  errors.Unsupported,
		"odd\x1b[31m": errors.Unavailable,
		"":            errors.Unavailable,
	} {
		err := git.Explain("the repository could not be cloned", said)
		if errors.KindOf(err) != want || errors.RemedyOf(err) == "" || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %v, %q", said, err, errors.RemedyOf(err))
		}
	}
}

// FuzzParseEvent checks that lines of other programs are not events, whatever they contain.
func FuzzParseEvent(f *testing.F) {
	for _, seed := range []string{"git.synced failed=dHJ1ZQ== branch=bWFpbg==", "git.committed commits=MTI=",
		"git.panic failed=eA== tried=", "git.pushed odd=eA==", "git.pushed branch=!", "x", "",
		"git.synced commits=LTE="} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, line string) {
		kind, e, ok := git.ParseEvent(line)
		if !ok {
			if kind != "" || e != (git.Event{}) {
				t.Errorf("%q: %q %+v", line, kind, e)
			}
			return
		}
		if e.Commits < 0 || strings.ContainsRune(e.Report(), 0x1b) {
			t.Errorf("%q: %+v", line, e)
		}
	})
}

func TestParseEvent(t *testing.T) {
	t.Parallel()
	kind, e, ok := git.ParseEvent("git.synced failed=dHJ1ZQ== commits=MTI= reason=eBsbeQ==\n")
	if !ok || kind != git.Synced || !e.Failed || e.Commits != 12 || e.Reason != "xy" {
		t.Errorf("%s %+v %t", kind, e, ok)
	}
	for _, line := range []string{"git.pushed odd=eA==", "git.pushed branch=!", "git.pushed branch", "x", ""} {
		if _, _, ok := git.ParseEvent(line); ok && line != "git.pushed branch" {
			t.Errorf("%q is an event", line)
		}
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	if !git.Unreachable("fatal: unable to access 'x': Could not resolve host: x") ||
		git.Unreachable("remote: Repository not found.") {
		t.Error("wrong")
	}
	err := git.Unreached("not cloned", "git.example.org", "no rule allows the name")
	if errors.KindOf(err) != errors.Denied || !strings.Contains(err.Error(), "git.example.org: no rule allows") ||
		!strings.Contains(errors.RemedyOf(err), "allow=git.example.org") {
		t.Errorf("%v, %q", err, errors.RemedyOf(err))
	}
	for _, host := range []string{"127.0.0.1", "127.1.2.3", "::1", "localhost", "git.localhost"} {
		err := git.Unreached("not cloned", host, "")
		if errors.KindOf(err) != errors.Invalid || !strings.Contains(err.Error(), host+" is the sandbox itself") ||
			!strings.Contains(errors.RemedyOf(err), "allow=127.0.0.1:PORT") {
			t.Errorf("%s: %v, %q", host, err, errors.RemedyOf(err))
		}
	}
	for _, host := range []string{"git.example.org", "10.1.2.3", "localhost.example.org", ""} {
		if err := git.Unreached("not cloned", host, ""); err != nil {
			t.Errorf("%s: %v", host, err)
		}
	}
	for text, want := range map[string]string{"https://git.example.org:8443/a/b": "git.example.org",
		"git@github.com:a/b": "github.com"} {
		if a, err := git.ParseAddress(text); err != nil || a.Hostname() != want {
			t.Errorf("%s: %q, %v", text, a.Hostname(), err)
		}
	}
}
