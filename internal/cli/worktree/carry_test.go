package worktree

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// carried returns the request that harvest agent makes for a directory, and its hints.
func (p *pair) carried(dir string) (api.SessionRequest, string) {
	p.Helper()
	return p.carriedAs(dir, api.SessionRequest{})
}

// carriedAs is carried for a request with flags.
func (p *pair) carriedAs(dir string, req api.SessionRequest) (api.SessionRequest, string) {
	p.Helper()
	var hints bytes.Buffer
	hint := func(format string, args ...any) { fmt.Fprintf(&hints, format+"\n", args...) }
	cargo, err := Carry(p.Context(), dir, false, &req, hint)
	if err != nil {
		p.Fatal(err)
	}
	defer cargo.Close()
	if err := cargo.Send(p.Context(), nil, &req, func(_, _ int64) {}); err != nil { // all of it is small
		p.Fatal(err)
	}
	return req, hints.String()
}

// cloned clones the bundle of a request, applies the uncommitted changes, and returns the files.
func (p *pair) cloned(req api.SessionRequest) []string {
	p.Helper()
	dir := p.TempDir()
	bundle, patch := filepath.Join(dir, "bundle"), filepath.Join(dir, "patch")
	if err := errors.Join(os.WriteFile(bundle, req.Bundle, 0o600)); err != nil {
		p.Fatal(err)
	}
	there := filepath.Join(dir, "there")
	p.git("/", "clone", "-q", bundle, there)
	if req.Uncommitted != nil {
		if err := os.WriteFile(patch, req.Uncommitted.Patch, 0o600); err != nil {
			p.Fatal(err)
		}
		p.git(there, "apply", "--index", patch)
	}
	return strings.Split(p.git(there, "ls-files"), "\n")
}

// TestCarryFromSubdirectory checks that the whole repository is carried from a subdirectory, and that the agent starts
// in that directory, also in a work tree.
// mission: E3
func TestCarryFromSubdirectory(t *testing.T) {
	p := newPair(t)
	for _, setting := range []string{"diff.noprefix", "diff.relative"} { // they change the format of patches
		p.git(p.person, "config", setting, "true")
	}
	p.git(p.person, "worktree", "add", "-q", "-b", "other", "../tree")
	for _, top := range []string{p.person, filepath.Join(filepath.Dir(p.person), "tree")} {
		sub := filepath.Join(top, "a", "b")
		if err := errors.Join(os.MkdirAll(sub, 0o755), os.WriteFile(filepath.Join(sub, "new"), []byte("x\n"), 0o644),
			os.WriteFile(filepath.Join(top, "above"), []byte("x\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
		req, hints := p.carried(sub)
		if req.Subdir != "a/b" || req.Name != filepath.Base(top) || !strings.Contains(hints, "(2 files) are sent") {
			t.Errorf("%q, %q, %s", req.Subdir, req.Name, hints)
		}
		if got := p.cloned(req); !slices.Equal(got, []string{"a/b/new", "above", "readme"}) {
			t.Errorf("%v", got)
		}
		if _, err := os.Stat(filepath.Join(sub, "-")); err == nil {
			t.Error("git wrote the bundle into a file")
		}
	}
	if req, _ := p.carried(p.person); req.Subdir != "" {
		t.Errorf("%q", req.Subdir)
	}
}

// TestCarryNestedRepositories checks that files of nested repositories are carried, that changes in submodules are not,
// and that the hints count and report them. The result is the same in a directory beside the repositories.
// mission: E3
func TestCarryNestedRepositories(t *testing.T) {
	p := newPair(t)
	p.git(p.person, "-c", "protocol.file.allow=always", "submodule", "add", "-q", p.agent, "module")
	p.git(p.person, "commit", "-q", "-m", "A submodule")
	for _, name := range []string{"nested", "unborn"} {
		if err := os.Mkdir(filepath.Join(p.person, name), 0o755); err != nil {
			t.Fatal(err)
		}
		p.git(filepath.Join(p.person, name), "init", "-q")
	}
	p.commit(filepath.Join(p.person, "nested"), "n1", "N")
	for _, name := range []string{"nested/n2", "unborn/u", "module/m", "plain"} {
		if err := os.WriteFile(filepath.Join(p.person, name), []byte("x\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	sub := filepath.Join(p.person, "sub", "deep")
	if err := os.MkdirAll(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	before := p.git(p.person, "status", "--porcelain")
	for _, dir := range []string{p.person, sub} {
		req, hints := p.carried(dir)
		if got := p.cloned(req); !slices.Equal(got, []string{".gitmodules", "module", "nested/n1", "nested/n2",
			"plain", "readme", "unborn/u"}) {
			t.Errorf("%s: %v", dir, got)
		}
		if !strings.Contains(hints, "(4 files) are sent") ||
			!strings.Contains(hints, "the submodule module stay here") {
			t.Errorf("%s: %s", dir, hints)
		}
	}
	if after := p.git(p.person, "status", "--porcelain"); after != before {
		t.Errorf("%q, it was %q", after, before)
	}
	if err := os.Remove(filepath.Join(p.person, "plain")); err != nil {
		t.Fatal(err)
	}
	p.git(p.person, "add", "nested")
	p.git(p.person, "commit", "-q", "-m", "As git does it")
	if err := os.RemoveAll(filepath.Join(p.person, "unborn")); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{p.person, sub} {
		if req, hints := p.carried(dir); req.Uncommitted != nil || !strings.Contains(hints, "submodule nested") {
			t.Errorf("%s: %+v, %s", dir, req.Uncommitted, hints)
		}
	}
}

// TestCarryShallow checks that a shallow repository is carried with the list of the commits that have no parents, also
// from a work tree, which shares that list.
// mission: E3
func TestCarryShallow(t *testing.T) {
	p := newPair(t)
	p.commit(p.person, "b", "Two")
	p.commit(p.person, "c", "Three")
	shallow := filepath.Join(t.TempDir(), "shallow")
	p.git("/", "clone", "-q", "--depth=2", "file://"+p.person, shallow)
	tree := filepath.Join(t.TempDir(), "tree")
	p.git(shallow, "worktree", "add", "-q", "-b", "other", tree)
	for _, dir := range []string{shallow, tree} {
		req, _ := p.carried(dir)
		if want := p.git(dir, "rev-parse", "HEAD~1") + "\n"; string(req.Shallow) != want || len(req.Bundle) == 0 {
			t.Errorf("%s: %q, want %q; %d bytes", dir, req.Shallow, want, len(req.Bundle))
		}
	}
	if req, _ := p.carried(p.person); len(req.Shallow) != 0 {
		t.Errorf("%q", req.Shallow)
	}
}

// TestEmptyBundleIsRefused checks that a git that succeeds without writing a bundle is an error.
// mission: E3
func TestEmptyBundleIsRefused(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "git"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	err := (&Cargo{top: dir}).Send(t.Context(), nil, &api.SessionRequest{}, func(_, _ int64) {})
	if errors.KindOf(err) != errors.Invalid || !strings.Contains(err.Error(), "empty bundle") ||
		!strings.Contains(errors.RemedyOf(err), "--repo") {
		t.Errorf("%v, %q", err, errors.RemedyOf(err))
	}
}

// TestCarryDepth checks that --depth limits the history of a directory, and that the branch of the request is kept.
// mission: E3
func TestCarryDepth(t *testing.T) {
	p := newPair(t)
	for _, name := range []string{"one", "two"} {
		p.commit(p.person, name, name)
	}
	p.git(p.person, "branch", "other", "HEAD~1")
	for _, branch := range []string{"", "other"} {
		req, _ := p.carriedAs(p.person, api.SessionRequest{Depth: 1, Branch: branch})
		ref := "HEAD"
		if branch != "" {
			ref = branch
		}
		want := p.git(p.person, "rev-parse", ref)
		if string(req.Shallow) != want+"\n" || req.Depth != 0 {
			t.Errorf("%q: %q, want %s; depth %d", branch, req.Shallow, want, req.Depth)
		}
		if file := filepath.Join(t.TempDir(), "bundle"); os.WriteFile(file, req.Bundle, 0o600) != nil ||
			!strings.Contains(p.git(p.person, "bundle", "list-heads", file), want+" HEAD") {
			t.Errorf("%q: the bundle is without %s", branch, want)
		}
	}
}

// TestCarryOrigin checks that the address of an origin is kept for push and pull request without the user's name and
// password, and that directories of this machine are left out.
// mission: E3
func TestCarryOrigin(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]string{
		"https://github.com/o/r.git":              "https://github.com/o/r.git",
		"https://user@example.com/o/r":            "https://example.com/o/r",
		"https://user:password@example.com/o/r":   "https://example.com/o/r",
		"https://example.com/@scope/r":            "https://example.com/@scope/r",
		"ssh://git@example.com/x/y.git":           "ssh://git@example.com/x/y.git",
		"ssh://git:secret@example.com:22/x/y.git": "ssh://git@example.com:22/x/y.git",
		"ssh://example.com/x/y":                   "ssh://example.com/x/y",
		"git@github.com:o/r.git":                  "git@github.com:o/r.git",
		"name@host.example:o/r":                   "name@host.example:o/r",
		"git://example.com/o/r":                   "git://example.com/o/r",
		"codecommit::eu-west-1://r":               "",
		"/home/me/r":                              "",
		"../r:2":                                  "",
		"":                                        "",
	} {
		if got := origin(address); got != want {
			t.Errorf("%q: %q, want %q", address, got, want)
		}
	}
}

// TestIdentity checks that repositories of one directory name have different memories, that all work trees of one have
// the same memory, which further commits do not change, and that a repository with an origin has that of its address.
// mission: C3
func TestIdentity(t *testing.T) {
	t.Parallel()
	ctx, root := t.Context(), t.TempDir()
	dirs := []string{filepath.Join(root, "a", "project"), filepath.Join(root, "b", "project")}
	run := func(dir string, args ...string) {
		t.Helper()
		args = append([]string{"-c", "user.name=a", "-c", "user.email=a@b"}, args...)
		if _, err := git(ctx, dir, args...); err != nil {
			t.Fatal(err)
		}
	}
	memory := func(dir string) string {
		t.Helper()
		name, err := Memory(ctx, dir)
		if err != nil {
			t.Fatal(err)
		}
		return name
	}
	for _, dir := range dirs {
		if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o755); err != nil {
			t.Fatal(err)
		}
		run(dir, "init", "-q")
		run(dir, "commit", "-q", "--allow-empty", "-m", "first", "--date", "2026-01-01T00:00:00Z")
	}
	one := memory(dirs[0])
	if !strings.HasPrefix(one, "local-project-") || memory(dirs[1]) == one {
		t.Errorf("%s and %s, want different memories", one, memory(dirs[1]))
	}
	run(dirs[0], "commit", "-q", "--allow-empty", "-m", "second")
	run(dirs[0], "worktree", "add", "-q", filepath.Join(root, "c", "project"))
	for _, dir := range []string{dirs[0], filepath.Join(dirs[0], "sub"), filepath.Join(root, "c", "project")} {
		if got := memory(dir); got != one {
			t.Errorf("%s: %s, want %s", dir, got, one)
		}
	}
	run(dirs[0], "remote", "add", "origin", "git@git.example.org:o/n.git")
	if got := memory(dirs[0]); got != "git.example.org-o-n" {
		t.Errorf("with an origin: %s", got)
	}
	if _, err := Memory(ctx, root); errors.KindOf(err) != errors.Invalid {
		t.Errorf("without a repository: %v", err)
	}
}

// TestCarryAuthor checks that uncommitted changes are by the author that git would use, from the environment first.
// mission: E3
func TestCarryAuthor(t *testing.T) {
	p := newPair(t)
	p.git(p.person, "config", "user.name", "Configured")
	env := func(name string) string { return map[string]string{"GIT_AUTHOR_EMAIL": "env@example.org"}[name] }
	want := api.Author{Name: "Configured", Email: "env@example.org"}
	if by := author(t.Context(), p.person, env); by != want {
		t.Errorf("%+v, want %+v", by, want)
	}
	if err := os.WriteFile(filepath.Join(p.person, "new"), []byte("x\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if req, hints := p.carried(p.person); req.Uncommitted == nil || req.Uncommitted.Author.Name != want.Name ||
		!strings.Contains(hints, "(1 file) are sent") {
		t.Errorf("%+v, %s", req.Uncommitted, hints)
	}
}

// TestDigest checks that the digest of a repository changes with each change that a session would get, and only then.
func TestDigest(t *testing.T) {
	p := newPair(t)
	digest := func() string {
		t.Helper()
		cargo, err := Carry(t.Context(), p.person, false, &api.SessionRequest{}, func(string, ...any) {})
		if err != nil {
			t.Fatal(err)
		}
		defer cargo.Close()
		if top, err := TopLevel(t.Context(), p.person); err != nil || cargo.Top() != top {
			t.Errorf("top %s, want %s, %v", cargo.Top(), top, err)
		}
		sum, err := cargo.Digest(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	seen := []string{digest()}
	if again := digest(); again != seen[0] {
		t.Error("the digest changes by itself")
	}
	file := filepath.Join(p.person, "new")
	for _, change := range []func() error{
		func() error { return os.WriteFile(file, []byte("x\n"), 0o644) },
		func() error { return os.WriteFile(file, []byte("y\n"), 0o644) },
		func() error { p.git(p.person, "add", "new"); p.git(p.person, "commit", "-q", "-m", "new"); return nil },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		sum := digest()
		if slices.Contains(seen, sum) {
			t.Errorf("change %d has the digest of another state", len(seen))
		}
		seen = append(seen, sum)
	}
	if sum, err := (*Cargo)(nil).Digest(t.Context()); err != nil || sum != "" || (*Cargo)(nil).Top() != "" {
		t.Errorf("nothing: %q, %v", sum, err)
	}
}
