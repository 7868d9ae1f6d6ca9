package main

import (
	"context"
	"fmt"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/repo"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
)

// The peers of P11: installing the newest commit in a sandbox that already has a clone.
const (
	fetchInside   = "git fetch inside"
	installInside = "git fetch, install and build inside"
)

// The measures of P11.
const (
	refreshSame   = "nothing has changed"
	refreshCommit = "one commit"
	refreshLock   = "lock file changed"
)

// The repository of P11: installing copies a tree of 2,000 files, and building reads all of them.
const (
	benchInstall = `rm -rf deps && mkdir deps && cat packages.lock >deps/lock && i=0 && while [ $i -lt 2000 ]; do echo $i >deps/$i; i=$((i+1)); done`
	benchCompile = `cat deps/* >built`
)

// refresher refreshes the image of one repository repeatedly.
type refresher struct {
	dir    string // of the repository and its server
	manage *repo.Manager
	box    string // sandbox of the peer
	url    string
	change int
}

// P11
func benchRepo(ctx context.Context, l *lab, r *recorder) (err error) {
	if err := l.use(ctx, 0); err != nil {
		return err
	}
	b := &refresher{dir: filepath.Join(l.dir, "repo")}
	server, err := b.serve(ctx)
	if err != nil {
		return err
	}
	defer server.Close()
	journal := event.Open(ctx, event.Options{Store: l.db.Events()})
	defer func() { err = errors.Join(err, journal.Close(context.WithoutCancel(ctx))) }()
	if b.manage, err = repo.Open(ctx, repo.Options{Fleet: l.fleet, Images: l.engine.Images(), Journal: journal,
		Store: l.db.Repos(), Check: workspace.CheckRepo}); err != nil {
		return err
	}
	defer b.manage.Close()
	none, install, compile := "", benchInstall, benchCompile
	network := spec.Network{Mode: "allow", Allow: []string{strings.TrimPrefix(server.URL, "http://")}}
	if _, err := b.manage.Add(ctx, account, "p11", b.url, "", repo.Recipe{
		Setup: &none, Install: &install, Build: &compile, Test: &none, Sandbox: spec.Request{Image: l.image.ID,
			Network: network},
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.manage.Remove(context.WithoutCancel(ctx), account, "p11")) }()
	if _, err := b.manage.Refresh(ctx, account, "p11"); err != nil {
		return err
	}
	sb, destroy, err := l.create(ctx, spec.Request{Network: network})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, destroy()) }()
	b.box = sb.ID
	if err := l.exec(ctx, b.box, fleet.ExecRequest{Args: []string{"sh", "-ec",
		"git clone --quiet " + b.url + " /work; cd /work; " + benchInstall}}); err != nil {
		return err
	}
	for _, row := range []struct{ name, file, peer, then string }{
		{refreshSame, "", fetchInside, ":"},
		{refreshCommit, "README.md", installInside, benchCompile},
		{refreshLock, "requirements.txt", installInside, benchInstall + " && " + benchCompile},
	} {
		m := r.measure(row.name, "s")
		ours := side{harvest, func(ctx context.Context) (sample, error) {
			if err := b.commit(ctx, row.file); err != nil {
				return nil, err
			}
			return timedSeconds(m.Name, func() error {
				_, err := b.manage.Refresh(ctx, account, "p11")
				return err
			})
		}}
		peer := side{row.peer, func(ctx context.Context) (sample, error) {
			if err := b.commit(ctx, row.file); err != nil {
				return nil, err
			}
			return timedSeconds(m.Name, func() error {
				return l.exec(ctx, b.box, fleet.ExecRequest{Args: []string{"sh", "-ec",
					"cd /work; git fetch --quiet; git reset --quiet --hard origin/main; " + row.then}})
			})
		}}
		if err := r.turns(ctx, r.count(1, 10), []*Measure{m}, ours, peer); err != nil {
			return err
		}
		m.finish()
		if row.file == "" {
			over := m.side(harvest).P50 - m.side(row.peer).P50
			r.check("less than a second over the fetch", m.side(harvest).N > 0 && m.side(row.peer).N > 0 && over < 1,
				fmt.Sprintf("%.2f s", over))
		}
	}
	return nil
}

// timedSeconds measures how long run takes.
func timedSeconds(name string, run func() error) (sample, error) {
	begin := time.Now()
	err := run()
	return sample{name: time.Since(begin).Seconds()}, err
}

// serve creates the repository and serves it.
func (b *refresher) serve(ctx context.Context) (*httptest.Server, error) {
	git, err := exec.LookPath("git")
	if err != nil {
		return nil, errors.Wrapf(err, "find git")
	}
	bare, work := filepath.Join(b.dir, "p11.git"), filepath.Join(b.dir, "work")
	for _, args := range [][]string{{"init", "--quiet", "--bare", "--initial-branch=main", bare},
		{"init", "--quiet", "--initial-branch=main", work}, {"-C", work, "remote", "add", "origin", bare}} {
		if out, err := exec.CommandContext(ctx, git, args...).CombinedOutput(); err != nil {
			return nil, errors.Errorf("git %s: %v: %s", args[0], err, out)
		}
	}
	for _, name := range []string{"README.md", "requirements.txt", "packages.lock"} {
		if err := b.commit(ctx, name); err != nil {
			return nil, err
		}
	}
	server := httptest.NewServer(&cgi.Handler{
		Path: git, Args: []string{"http-backend"},
		Env: []string{"GIT_PROJECT_ROOT=" + b.dir, "GIT_HTTP_EXPORT_ALL=1", "GIT_CONFIG_NOSYSTEM=1",
			"GIT_CONFIG_GLOBAL=" + os.DevNull},
	})
	_, port, _ := strings.Cut(strings.TrimPrefix(server.URL, "http://"), ":")
	b.url = "http://10.0.2.2:" + port + "/p11.git" // the machine's loopback, seen from sandboxes
	return server, nil
}

// commit changes a file and pushes the change, unless name is "".
func (b *refresher) commit(ctx context.Context, name string) error {
	if name == "" {
		return nil
	}
	b.change++
	work := filepath.Join(b.dir, "work")
	if err := os.WriteFile(filepath.Join(work, name), fmt.Appendf(nil, "# %d\n", b.change), 0o644); err != nil {
		return errors.Wrapf(err, "change %s", name)
	}
	for _, args := range [][]string{{"add", "--all"}, {"-c", "user.name=bench", "-c", "user.email=bench@example.org",
		"commit", "--quiet", "-m", "change"}, {"push", "--quiet", "origin", "main"}} {
		if out, err := exec.CommandContext(ctx, "git",
			append([]string{"-C", work}, args...)...).CombinedOutput(); err != nil {
			return errors.Errorf("git %s: %v: %s", args[0], err, out)
		}
	}
	return nil
}
