package repo

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

func TestMain(m *testing.M) {
	if os.Getenv("HARVEST_TEST_LOG") == "" {
		logf.Setup(io.Discard, 0, false)
	}
	os.Exit(m.Run())
}

func TestNames(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"https://github.com/owner/name.git": "owner/name", "https://github.com/owner/name/": "owner/name",
		"git@github.com:owner/name.git":      "owner/name",
		"ssh://git@example.org:22/a/b/c.git": "b/c", "http://10.0.2.2:1234/one.git": "one",
		"https://example.org/a b/.c": "a-b/c", "https://example.org": "",
	} {
		if got := nameOf(url); got != want {
			t.Errorf("%s is called %q", url, got)
		}
		if err := checkName(nameOf(url)); (err == nil) != (want != "") {
			t.Errorf("%s: %v", url, err)
		}
	}
	for _, bad := range []string{"", "/", "a//b", "a/", "../a", "a b", "repo_x", strings.Repeat("a", 200), "a~b"} {
		if err := checkName(bad); !errors.Is(err, errors.Invalid) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	same := []string{"https://GitHub.com/owner/name.git", "https://github.com/owner/name",
		"git@github.com:owner/name.git", "ssh://git@github.com/owner/name/", "http://x@github.com/owner/name"}
	for _, url := range same {
		if key(url) != "github.com/owner/name" {
			t.Errorf("%s has the key %s", url, key(url))
		}
	}
	for _, url := range []string{"https://github.com/owner/Name", "https://github.com:8443/owner/name",
		"file:///owner/name"} {
		if key(url) == key(same[0]) {
			t.Errorf("%s has the key %s", url, key(url))
		}
	}
	if host := gitEnv("https://GIT.example.org:8443/a/b")["HARVEST_GIT_HOST"]; host != "git.example.org:8443" {
		t.Errorf("the host is %s", host)
	}
}

func TestRecipes(t *testing.T) {
	t.Parallel()
	long, nul := strings.Repeat("x", maxCommand+1), "a\x00"
	for _, bad := range []Recipe{
		{Install: &long}, {Test: &nul}, {LimitSeconds: -1}, {LimitSeconds: 1e9},
		{Sandbox: spec.Request{Env: map[string]string{"A": "b"}}}, {Sandbox: spec.Request{Name: "a"}},
		{Sandbox: spec.Request{User: "root"}}, {Sandbox: spec.Request{Workdir: "/"}},
		{Sandbox: spec.Request{SnapshotOnEnd: true}},
	} {
		if err := bad.check(); !errors.Is(err, errors.Invalid) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	plain := Recipe{}
	if plain.check() != nil || plain.limit() != DefaultLimit || plain.image() != DefaultImage {
		t.Errorf("the plain recipe: %v, %s, %s", plain.check(), plain.limit(), plain.image())
	}
	other := Recipe{LimitSeconds: 90, Sandbox: spec.Request{Image: "base"}}
	if other.check() != nil || other.limit() != 90*time.Second || other.image() != "base" {
		t.Errorf("another recipe: %v, %s, %s", other.check(), other.limit(), other.image())
	}
	digests := map[string]bool{}
	for _, r := range []Recipe{plain, other} {
		for _, branch := range []string{"", "main"} {
			for _, img := range []string{"img_1", "img_2"} {
				digest, err := r.digest("u", branch, img)
				if err != nil || digests[digest] {
					t.Errorf("%+v %s %s: %s, %v", r, branch, img, digest, err)
				}
				digests[digest] = true
			}
		}
	}
}

const (
	hashA = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	hashB = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

func TestParseRemote(t *testing.T) {
	t.Parallel()
	const heads = "ref: refs/heads/trunk\tHEAD\n" + hashA + "\tHEAD\n" + hashB + "\trefs/heads/dev\n"
	for _, c := range []struct {
		out, branch string
		want        remote
		kind        errors.Kind
	}{
		{heads, "", remote{"trunk", hashA}, ""},
		{heads, "dev", remote{"dev", hashB}, ""},
		{heads, "trunk", remote{"trunk", hashA}, ""},
		{heads, "none", remote{}, errors.NotFound},
		{"", "", remote{}, errors.Invalid},
		{"", "dev", remote{}, errors.NotFound},
		{"noise\n" + hashA + "\trefs/heads/dev\n", "", remote{"dev", hashA}, ""}, // HEAD names a missing branch
		{hashA + "\trefs/heads/dev\n" + hashB + "\trefs/heads/trunk\n", "", remote{}, errors.NotFound},
		{"--evil\trefs/heads/dev\n", "dev", remote{}, errors.NotFound},
	} {
		got, err := parseRemote(c.out, c.branch)
		if got != c.want || err == nil != (c.kind == "") || err != nil && errors.KindOf(err) != c.kind {
			t.Errorf("%q, %q: %+v, %v", c.out, c.branch, got, err)
		}
	}
}

// TestMissingHead checks the remote branches that a repository with a HEAD without a branch has, with git itself.
func TestMissingHead(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	run := func(name string, args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_NOSYSTEM=1")
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%s %q: %v", name, args, err)
		}
		return string(out)
	}
	commit := func(branch string) {
		run("git", "checkout", "--quiet", "-b", branch)
		run("git", "-c", "user.name=T", "-c", "user.email=t@example.org", "commit", "--quiet", "--allow-empty", "-m",
			"x")
	}
	run("git", "init", "--quiet", "--initial-branch=gone")
	commit("dev")
	run("git", "symbolic-ref", "HEAD", "refs/heads/gone")
	look := func() (remote, error) { return parseRemote(run("/bin/sh", "-euc", lookScript, "sh", dir, ""), "") }
	if got, err := look(); err != nil || got.branch != "dev" || !isHash(got.commit) {
		t.Errorf("one branch: %+v, %v", got, err)
	}
	commit("trunk")
	run("git", "symbolic-ref", "HEAD", "refs/heads/gone")
	if _, err := look(); !errors.Is(err, errors.NotFound) ||
		!strings.Contains(errors.Message(err), "HEAD names a branch that does not exist") ||
		!strings.Contains(errors.RemedyOf(err), "--branch, such as dev, trunk") {
		t.Errorf("two branches: %v, %s", err, errors.RemedyOf(err))
	}
}

func FuzzParseRemote(f *testing.F) {
	f.Add("ref: refs/heads/main\tHEAD\n"+hashA+"\tHEAD\n", "")
	f.Add(hashA+"\trefs/heads/x\n", "x")
	f.Fuzz(func(t *testing.T, out, branch string) {
		if got, err := parseRemote(out, branch); err == nil && !isHash(got.commit) {
			t.Errorf("the commit is %q", got.commit)
		}
	})
}

func TestParseListing(t *testing.T) {
	t.Parallel()
	got := parseListing([]byte("100644 " + hashA + " 0\tpackage.json\x00120000 " + hashA + " 0\tyarn.lock\x00100755 " +
		hashB + " 0\ta/go.mod\x00100644 " + hashA + " 0\tmain.c\x00" +
		"100644 xyz 0\tgo.mod\x00odd\x00100644 " + hashA + " 0\ta/../go.mod\x00"))
	if diff := cmp.Diff(map[string]string{"package.json": hashA, "a/go.mod": hashB}, got.Digests); diff != "" {
		t.Error(diff)
	}
}

func FuzzParseTexts(f *testing.F) {
	f.Add([]byte("3\nabc0\n2\n{}"))
	f.Add([]byte("-1\nx"))
	f.Add([]byte("99999999999999999999\n"))
	f.Fuzz(func(t *testing.T, out []byte) {
		names := []string{"a", "b", "c"}
		total := 0
		for _, text := range parseTexts(out, names) {
			total += len(text)
		}
		if total > len(out) {
			t.Errorf("%d bytes of %d", total, len(out))
		}
		parseListing(out)
	})
}

func TestParseTexts(t *testing.T) {
	t.Parallel()
	got := parseTexts([]byte("3\na\nc0\n2\n{}"), []string{"x", "y", "z"})
	if string(got["x"]) != "a\nc" || len(got["y"]) != 0 || string(got["z"]) != "{}" {
		t.Errorf("%q", got)
	}
	if got := parseTexts([]byte("3\nabc9\nx"), []string{"x", "y"}); len(got) != 1 {
		t.Errorf("what is cut: %q", got)
	}
}

func TestErrorsOfGit(t *testing.T) {
	t.Parallel()
	for text, kind := range map[string]errors.Kind{
		"fatal: could not read Username for 'https://x': terminal prompts disabled\n": errors.Unauthenticated,
		"remote: Repository not found.\nfatal: repository 'x' not found\n":            errors.NotFound,
		"fatal: write error: No space left on device\n":                               errors.Exhausted,
		"error: unable to create file a: Disk quota exceeded\n":                       errors.Exhausted,
		"fatal: unable to access 'x': Could not resolve host: x\n":                    errors.Unavailable,
		"git@x: Permission denied (publickey).\n":                                     errors.Unauthenticated,
		"ssh: connect to host x port 22: Connection refused\n":                        errors.Unavailable,
		"": errors.Unavailable,
	} {
		err := gitError(text, "", 128)
		if errors.KindOf(err) != kind || errors.Message(err) == "" {
			t.Errorf("%q: %s, %v", text, errors.KindOf(err), err)
		}
	}
	if err := gitError("fatal: Could not resolve host: x", "", 128); !strings.Contains(errors.RemedyOf(err),
		"--network") {
		t.Errorf("%q", errors.RemedyOf(err))
	}
	for address, want := range map[string]string{"https://Git.example.org:8443/a/b.git": "git.example.org",
		"git@github.com:a/b": "github.com"} {
		if got := hostname(address); got != want {
			t.Errorf("%s: %q", address, got)
		}
	}
	if err := gitError("", "it was killed", 137); errors.Message(err) != "it was killed" {
		t.Errorf("a reason: %v", err)
	}
}

func TestLimited(t *testing.T) {
	t.Parallel()
	var l limited
	part := make([]byte, 1<<20)
	for range 10 {
		if n, err := l.Write(part); n != len(part) || err != nil {
			t.Fatal(n, err)
		}
	}
	if !l.over || l.Len() != maxListing {
		t.Errorf("%d bytes, over: %t", l.Len(), l.over)
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain": "plain", "10%\r50%\r100%\r\n": "100%", "\x1b[32mgreen\x1b[0m\a": "green", "a\tb\x00": "a\tb",
		"\xff": "�", "\x1b[": "",
	} {
		if got := string(clean([]byte(text))); got != want {
			t.Errorf("%q became %q", text, got)
		}
	}
}

// nothing is a Store that keeps events in memory, in order.
type kept struct {
	event.Store
	all []*event.Event
}

func (k *kept) Append(_ context.Context, events []*event.Event) error {
	k.all = append(k.all, events...)
	return nil
}

func (k *kept) Last(context.Context, string) (int64, error) { return 0, nil }

func TestLog(t *testing.T) {
	t.Parallel()
	var store kept
	events := event.Open(t.Context(), event.Options{Store: &store})
	j := &journal{ctx: t.Context(), events: events, about: Event{RepoID: "repo_1", BuildID: "bld_1"}}
	j.begin("install", "npm ci")
	for range 3 {
		fmt.Fprint(j, "some\nli")
	}
	fmt.Fprint(j, strings.Repeat("x", 3*lineBytes))
	if last := j.last(); !strings.HasPrefix(last, "xxx") || len(last) > tailBytes {
		t.Errorf("the last lines: %d bytes, %.20q", len(last), last)
	}
	j.begin("build", "make")
	for i := range logBytes / 64 {
		fmt.Fprintf(j, "%063d\n", i)
	}
	fmt.Fprint(j, "the end")
	if last := j.last(); !strings.HasSuffix(last, "\nthe end") || strings.HasPrefix(last, "\n") {
		t.Errorf("the last lines: %.100q", last)
	}
	j.close()
	fmt.Fprint(j, "late\n")
	if err := events.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	stages, text := "", ""
	for _, e := range store.all {
		if e.Type == EventStage {
			stages += string(e.Data)
		}
		text += string(e.Data)
	}
	if !strings.Contains(stages, `"npm ci"`) || !strings.Contains(stages, `"make"`) ||
		strings.Count(text, "the rest is left out") != 1 || strings.Contains(text, "late") ||
		!strings.Contains(text, `some\nlisome\n`) || len(text) > logBytes+logBytes/8 {
		t.Errorf("%d bytes of events; stages %s", len(text), stages)
	}
}
