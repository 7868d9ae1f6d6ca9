package preparation_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine/fake"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/session/agent"
	"github.com/RelevanceAI/harvest/internal/session/agent/scripted"
	"github.com/RelevanceAI/harvest/internal/session/credentials"
	agentmemory "github.com/RelevanceAI/harvest/internal/session/memory"
	"github.com/RelevanceAI/harvest/internal/session/model"
	"github.com/RelevanceAI/harvest/internal/session/preparation"
	"github.com/RelevanceAI/harvest/internal/session/records"
	"github.com/RelevanceAI/harvest/internal/session/workspace"
	"github.com/RelevanceAI/harvest/internal/store/testdb"
)

// TestRequest checks the request for a session's sandbox.
func TestRequest(t *testing.T) {
	t.Parallel()
	got := preparation.Request(spec.Request{Env: map[string]string{"A": "b"}}, "agent", "harvest-o-n", true)
	if got.Image != "agent" || !got.SnapshotOnEnd || got.Env != nil || len(got.Volumes) != 2 {
		t.Errorf("%+v", got)
	}
	got = preparation.Request(spec.Request{Image: "own", Volumes: []spec.Mount{{Name: "v", Path: "/mnt/state"}}},
		"agent", "", true)
	if got.Image != "own" || len(got.Volumes) != 1 || got.Volumes[0].Name != "v" {
		t.Errorf("the user's image and mount: %+v", got)
	}
	got = preparation.Request(spec.Request{Volumes: []spec.Mount{{Name: "v", Path: "/v"}}}, "agent", "harvest-o-n",
		false)
	if len(got.Volumes) != 1 || got.Volumes[0].Name != "v" { // the user's own is refused, with a reason
		t.Errorf("without volumes: %+v", got)
	}
}

// TestPrepare checks the steps of a preparation and their results in the sandbox.
//
// mission: C3, E6
func TestPrepare(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	first, head := project(t, "one", "two")
	second, other := project(t, "three")
	s := session(first, second)
	s.Request.Tags = map[string]string{"mine": "yes"}
	got, stages := h.prepare(s)
	if want := []string{"sandbox", "directories", "repository", "repository b"}; !slices.Equal(stages, want) {
		t.Errorf("stages: %q, want %q", stages, want)
	}
	if !got.Fresh || got.Image != nil || got.Synced != nil || got.Logins != nil {
		t.Errorf("%+v", got)
	}
	for i, commit := range []string{head, other} {
		if r := got.Repos[i]; r.Base != commit || r.Start != commit {
			t.Errorf("repository %d begins at %q, %q, want %s", i, r.Base, r.Start, commit)
		}
		if s.Repos[i].Base != "" {
			t.Errorf("the caller's repository %d was changed: %+v", i, s.Repos[i])
		}
	}
	sb := h.sandbox(got.Sandbox)
	if sb.Account != personal || sb.Tags[preparation.Tag] != s.ID || sb.Tags["mine"] != "yes" || sb.SnapshotOnEnd {
		t.Errorf("%+v", sb)
	}
	if len(s.Request.Tags) != 1 {
		t.Errorf("the caller's tags were changed: %v", s.Request.Tags)
	}
	dir := h.path(got.Sandbox, "/workspace/a")
	if branch := git(t, dir, "symbolic-ref", "--short", "HEAD"); branch != workspace.Branch(s.ID) {
		t.Errorf("the branch is %s", branch)
	}
	config, err := os.ReadFile(filepath.Join(dir, ".git/config"))
	if err != nil || !strings.Contains(string(config), "title = \"Title\"") {
		t.Errorf("git's configuration: %s, %v", config, err)
	}
	config, err = os.ReadFile(h.path(got.Sandbox, "/home/.gitconfig"))
	if err != nil || !strings.Contains(string(config), "Ada (Harvest)") {
		t.Errorf("git's configuration: %s, %v", config, err)
	}
	for _, name := range []string{"/mnt/state/sessions/" + s.ID, "/usr/local/bin/harvest-git", "/var/lib/harvest-git",
		"/home/agent/.mcp-memory"} {
		if _, err := os.Stat(h.path(got.Sandbox, name)); err != nil {
			t.Error(err)
		}
	}
}

// TestMemory checks that the memory of a repository starts with the seed of the sandbox's image, and that a session
// starts without the seed if it cannot be read as one.
//
// mission: C3, E6
func TestMemory(t *testing.T) {
	t.Parallel()
	const seed = `{"entities":[{"name":"rule","entityType":"rule","observations":["x"]}],"relations":[]}`
	for text, want := range map[string]int{seed: 1, "no seed": 0, "": 0} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.booted = func(root string) {
				if text != "" {
					err := os.Mkdir(filepath.Join(root, "app"), 0o755)
					testenv.WriteFile(t, filepath.Join(root, "app/memory-seed.json"), []byte(text))
					if err != nil {
						t.Error(err)
					}
				}
			}
			s := session("")
			s.Repos[0].Dir = "/workspace/project"
			s.Request = preparation.Request(spec.Request{}, "base", "local-project", true)
			got, _ := h.prepare(s)
			store := agentmemory.Store{Volumes: volume.Of(h.Engine.Volumes(), account.Owner(personal))}
			if seeded, err := store.Seeded(t.Context(), "local-project"); err != nil || seeded != (want > 0) {
				t.Errorf("seeded: %t, %v", seeded, err)
			}
			if _, err := os.Stat(h.path(got.Sandbox, "/home/agent/.mcp-memory")); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestFailedSteps checks the stage of each error, and that the sandbox of a failed preparation is known.
func TestFailedSteps(t *testing.T) {
	t.Parallel()
	boom := errors.Newf(errors.Unavailable, "boom")
	url, _ := project(t, "one")
	for stage, c := range map[string]struct {
		change func(h *house, s *preparation.Session)
		kind   errors.Kind
		before []string
	}{
		"create": {func(h *house, _ *preparation.Session) { h.FailNext(fake.OpCreate, boom) }, errors.Unavailable, nil},
		"exec": {func(h *house, _ *preparation.Session) { h.FailNext(fake.OpStart, boom) }, errors.Unavailable,
			[]string{"sandbox"}},
		"credentials": {func(h *house, s *preparation.Session) {
			h.Credentials.Secrets = vault(t)
			s.Logins = credentials.Request{Account: personal, Secret: "missing",
				URLs: []string{"https://example.org/o/n"}}
		}, errors.NotFound, []string{"sandbox", "directories"}},
		"repository": {func(_ *house, s *preparation.Session) { s.Repos[0].URL += "/missing" }, errors.NotFound,
			[]string{"sandbox", "directories"}},
		"repository b": {func(_ *house, s *preparation.Session) { s.Repos[1].URL += "/missing" }, errors.NotFound,
			[]string{"sandbox", "directories", "repository"}},
	} {
		t.Run(stage, func(t *testing.T) {
			t.Parallel()
			h, s := newHouse(t), session(url, url)
			c.change(h, &s)
			got, before := h.try(t.Context(), s)
			if errors.KindOf(got.Err) != c.kind || errors.StageOf(got.Err) != stage {
				t.Errorf("%v: %s in %q, want %s in %q", got.Err, errors.KindOf(got.Err), errors.StageOf(got.Err),
					c.kind,
					stage)
			}
			if !slices.Equal(before, c.before) {
				t.Errorf("reported %q, want %q", before, c.before)
			}
			if (got.Sandbox != "") != (c.before != nil) {
				t.Errorf("the sandbox is %q", got.Sandbox)
			}
			if stage == "repository" {
				if _, err := os.Stat(h.path(got.Sandbox, "/workspace/a")); !errors.IsNotExist(err) {
					t.Errorf("the directory of a failed clone: %v", err)
				}
			}
		})
	}
}

func vault(t *testing.T) *secret.Vault {
	t.Helper()
	v, err := secret.Open(t.Context(), secret.Options{Store: testdb.Open(t).Secrets(),
		KeyFile: filepath.Join(t.TempDir(),
			"key")})
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// TestCredentials checks that git in the sandbox gets the credentials before the first clone.
func TestCredentials(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	h.Credentials.Secrets = vault(t)
	if _, err := h.Credentials.Secrets.Set(t.Context(), personal, "git", secret.Pairs{"GIT_HOST": "example.org",
		"GIT_USERNAME": "ada", "GIT_PASSWORD": "the-password"}, secret.Create); err != nil {
		t.Fatal(err)
	}
	s := session("")
	s.Logins = credentials.Request{Account: personal, URLs: []string{"https://example.org/o/n.git"}}
	got, stages := h.prepare(s)
	t.Cleanup(got.Logins.Release)
	if want := []string{"sandbox", "directories", "credentials", "repository"}; !slices.Equal(stages, want) {
		t.Errorf("stages: %q, want %q", stages, want)
	}
	text, err := os.ReadFile(h.path(got.Sandbox, credentials.Dir+"/credentials"))
	if err != nil || !strings.Contains(string(text), "the-password") || len(got.Logins) != 1 {
		t.Errorf("%q, %v, %v", text, err, got.Logins)
	}
}

// TestSSHAddress checks that a repository with an SSH address is cloned over HTTPS, for which there is a credential,
// and that only the first repository is cloned from the bundle.
func TestSSHAddress(t *testing.T) {
	t.Parallel()
	const address = "git@127.0.0.1:o/n.git"
	h := newHouse(t)
	h.Credentials.Secrets = vault(t)
	if _, err := h.Credentials.Secrets.Set(t.Context(), personal, "git", secret.Pairs{"GIT_HOST": "127.0.0.1",
		"GIT_USERNAME": "ada", "GIT_PASSWORD": "the-password"}, secret.Create); err != nil {
		t.Fatal(err)
	}
	url, head := project(t, "one")
	second, other := project(t, "two")
	bundle := filepath.Join(t.TempDir(), "bundle")
	git(t, strings.TrimPrefix(url, "file://"), "bundle", "create", "--quiet", bundle, "HEAD")
	s := session(address, second)
	s.Given.Bundle = bundle
	s.Logins = credentials.Request{Account: personal, URLs: []string{address}}
	got, _ := h.prepare(s)
	t.Cleanup(got.Logins.Release)
	origin := git(t, h.path(got.Sandbox, "/workspace/a"), "remote", "get-url", "origin")
	if origin != "https://127.0.0.1/o/n" || got.Repos[0].Base != head || got.Repos[1].Base != other {
		t.Errorf("the origin is %s, the repositories %+v, want %s and %s", origin, got.Repos, head, other)
	}
}

// TestSubmodules checks that the parts of a repository which a clone leaves out are fetched if the session wants them.
func TestSubmodules(t *testing.T) {
	t.Parallel()
	url, _ := project(t, "one")
	dir := strings.TrimPrefix(url, "file://")
	testenv.WriteFile(t, filepath.Join(dir, ".gitmodules"),
		[]byte("[submodule \"part\"]\n\tpath = part\n\turl = "+url+"/missing\n"))
	git(t, dir, "add", "-A")
	git(t, dir, "update-index", "--add", "--cacheinfo", "160000,"+git(t, dir, "rev-parse", "HEAD")+",part")
	git(t, dir, "commit", "--quiet", "-m", "a part")
	for _, wanted := range []bool{false, true} {
		h := newHouse(t)
		s := session(url)
		s.Repos[0].Submodules = wanted
		got, _ := h.try(t.Context(), s)
		if (got.Err != nil) != wanted || wanted && errors.StageOf(got.Err) != "repository" {
			t.Errorf("submodules %t: %v", wanted, got.Err)
		}
	}
}

// TestPreparedAgain checks that a repository in which work has begun keeps its beginning.
func TestPreparedAgain(t *testing.T) {
	t.Parallel()
	url, head := project(t, "one")
	h := newHouse(t)
	s := session(url)
	s.Repos[0].Base, s.Repos[0].Start = "recorded", "recorded"
	h.booted = func(root string) {
		dir := root + "/workspace/a"
		git(t, "/", "clone", "--quiet", url, dir)
		git(t, dir, "config", "harvest.work", workspace.Branch(s.ID))
		config, err := os.ReadFile(dir + "/.git/config")
		text := strings.ReplaceAll(string(config), "work = "+workspace.Branch(s.ID), `work = "`+workspace.Branch(s.ID)+
			`"`)
		testenv.WriteFile(t, dir+"/.git/config", []byte(text))
		if err != nil {
			t.Error(err)
		}
	}
	if got, _ := h.prepare(s); got.Repos[0].Base != "recorded" || got.Repos[0].Start != "recorded" {
		t.Errorf("it begins at %s, not as recorded (the clone is at %s)", got.Repos[0].Base, head)
	}
}

// TestLeftSandboxes checks that a preparation destroys sandboxes of its session that an earlier server left, and no
// others.
func TestLeftSandboxes(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	s := session("")
	var left []string
	for _, id := range []string{s.ID, "ses_other"} {
		sb, err := h.Fleet.Create(t.Context(), personal, spec.Request{Tags: map[string]string{preparation.Tag: id}})
		if err != nil {
			t.Fatal(err)
		}
		left = append(left, sb.ID)
	}
	h.prepare(s)
	if ended, kept := h.sandbox(left[0]), h.sandbox(left[1]); ended.Status != record.Terminated ||
		kept.Status != record.Running {
		t.Errorf("of this session: %s, of another: %s", ended.Status, kept.Status)
	}
}

// TestReplacement checks that a sandbox that replaces an earlier one starts from the last files of that one.
//
// mission: E4
func TestReplacement(t *testing.T) {
	t.Parallel()
	const snapshot = "img_00000000000000ff"
	for name, c := range map[string]struct {
		snapshot string // of the previous sandbox
		began    string // image of the previous sandbox
		earlier  string // snapshot of the one before
		image    string
		fresh    bool
	}{
		"with files":                  {snapshot, "base", "", snapshot, false},
		"without files":               {"", "base", "", "base", true},
		"killed with earlier files":   {"", snapshot, snapshot, snapshot, false},
		"killed, of the user's image": {"", snapshot, "", "base", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			h.others = []string{snapshot}
			s := session("")
			tags := map[string]string{preparation.Tag: s.ID}
			old := record.Sandbox{ID: "sbx_00000000000000000000000002", Account: personal, Status: record.Failed,
				Image: c.began, SnapshotID: c.snapshot, Tags: tags, Created: time.Now(), Ended: time.Now()}
			earlier := old
			earlier.ID, earlier.Image, earlier.SnapshotID = "sbx_00000000000000000000000001", "base", c.earlier
			for _, sb := range []record.Sandbox{earlier, old} {
				if err := h.store.Put(t.Context(), sb); err != nil {
					t.Fatal(err)
				}
			}
			s.Old, s.Request.Name = old.ID, "mine"
			got, _ := h.prepare(s)
			if images := h.images(); len(images) != 1 || (images[0] == snapshot) != (c.image == snapshot) {
				t.Errorf("images: %q, want %s", images, c.image)
			}
			if sb := h.sandbox(got.Sandbox); got.Fresh != c.fresh || sb.Name == "mine" {
				t.Errorf("fresh: %t, name: %q", got.Fresh, sb.Name)
			}
		})
	}
}

// TestSnapshotOnEnd checks that the files of a session are kept where the engine can.
func TestSnapshotOnEnd(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(o *fleet.Options) { o.Engine.(*provider).Can.Snapshot = true })
	got, _ := h.prepare(session(""))
	if !h.sandbox(got.Sandbox).SnapshotOnEnd {
		t.Error("no snapshot at the end of the sandbox")
	}
}

// TestContinuedSession checks which commits are the beginning of a session that continues another: those with which
// it was made, unless the sandbox was replaced.
func TestContinuedSession(t *testing.T) {
	t.Parallel()
	url, head := project(t, "one")
	for name, c := range map[string]struct {
		base, old, want string
	}{
		"as made":        {"recorded", "", "recorded"},
		"without a base": {"", "", head},
		"replaced":       {"recorded", "sb_old", head},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHouse(t)
			s := session(url)
			s.Continues, s.Old, s.Repos[0].Base = true, c.old, c.base
			if got, _ := h.prepare(s); got.Repos[0].Base != c.want {
				t.Errorf("base: %s, want %s", got.Repos[0].Base, c.want)
			}
		})
	}
}

// TestSpare checks that a spare belongs to nobody yet, and has its owner.
func TestSpare(t *testing.T) {
	t.Parallel()
	h := newHouse(t)
	s := session("")
	s.Spare = true
	got := h.Prepare(t.Context(), s, func(records.Stage) {})
	if sb := h.sandbox(got.Sandbox); sb.Account != record.SpareAccount || sb.Owner != personal {
		t.Errorf("account: %s, owner: %s", sb.Account, sb.Owner)
	}
}

// TestModelKeysAreWithheld checks that the key of a model is not in the environment of the sandbox.
//
// mission: 9.4
func TestModelKeysAreWithheld(t *testing.T) {
	t.Parallel()
	v := vault(t)
	if _, err := v.Set(t.Context(), personal, "s", secret.Pairs{"ANTHROPIC_API_KEY": "sk-ant-1", "MINE": "yes"},
		secret.Create); err != nil {
		t.Fatal(err)
	}
	h := newHouse(t, func(o *fleet.Options) { o.Secrets = v })
	h.Models.Fleet, h.Models.Gateway = h.Fleet, &model.Gateway{}
	s := session("")
	s.Request.Secrets = []string{"s"}
	h.prepare(s)
	env := h.Specs()[0].Env
	if env["MINE"] != "yes" || env["ANTHROPIC_API_KEY"] != "" {
		t.Errorf("the environment is %v", env)
	}
}

// codex speaks OpenAI's API.
type codex struct{ scripted.Agent }

func (codex) Speaks() []agent.Provider { return []agent.Provider{agent.OpenAI, agent.OpenRouter} }

// TestModelKeysOfSpeakersAreWithheld checks that the keys of an agent's own providers are not in its sandbox. The key
// of another provider is for the program that the agent works on.
//
// mission: 9.4
func TestModelKeysOfSpeakersAreWithheld(t *testing.T) {
	t.Parallel()
	v := vault(t)
	pairs := secret.Pairs{"OPENAI_API_KEY": "sk-1", "OPENAI_BASE_URL": "https://example.org/v1",
		"OPENROUTER_API_KEY": "r", "ANTHROPIC_API_KEY": "sk-ant-1", "GEMINI_API_KEY": "g"}
	if _, err := v.Set(t.Context(), personal, "s", pairs, secret.Create); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		agent agent.Agent
		want  map[string]string
	}{
		{codex{}, map[string]string{"GEMINI_API_KEY": "g"}},
		{scripted.Agent{}, map[string]string{"GEMINI_API_KEY": "g", "OPENAI_API_KEY": "sk-1",
			"OPENROUTER_API_KEY": "r"}},
	} {
		h := newHouse(t, func(o *fleet.Options) { o.Secrets = v })
		h.Models.Fleet, h.Models.Gateway = h.Fleet, &model.Gateway{}
		s := session("")
		s.Request.Secrets, s.Agent = []string{"s"}, c.agent
		h.prepare(s)
		env := h.Specs()[0].Env
		for key := range pairs {
			if key != "OPENAI_BASE_URL" && env[key] != c.want[key] {
				t.Errorf("%T: %s is %q, want %q", c.agent, key, env[key], c.want[key])
			}
		}
	}
}

// TestWaitForBoot checks that a session which waits for its turn reports it, once, and no duration.
func TestWaitForBoot(t *testing.T) {
	t.Parallel()
	h := newHouse(t, func(o *fleet.Options) { o.Boots = 1 })
	booting, boot := make(chan struct{}, 2), make(chan struct{})
	release := sync.OnceFunc(func() { close(boot) })
	h.creating = func() { booting <- struct{}{}; <-boot }
	first := make(chan error, 1)
	go func() {
		_, err := h.Fleet.Create(t.Context(), personal, spec.Request{})
		first <- err
	}()
	<-booting
	var stages []records.Stage
	got := h.Prepare(t.Context(), session(""), func(s records.Stage) {
		if stages = append(stages, s); s.Queued {
			release()
		}
	})
	release()
	if err := errors.Join(got.Err, <-first); err != nil {
		t.Fatal(err)
	}
	if s := stages[0]; !s.Queued || s.Name != fleet.StepQueue || s.MS != 0 || stages[1].Queued ||
		stages[1].Name != "sandbox" {
		t.Errorf("%+v", stages)
	}
}

// TestCanceled checks that a preparation ends with its context, while the sandbox boots and while git clones, and that
// it leaves no unrecorded sandbox.
func TestCanceled(t *testing.T) {
	t.Parallel()
	t.Run("boot", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			h := newHouse(t)
			h.Delay(fake.OpCreate, time.Hour)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			begin := time.Now()
			got, stages := h.try(ctx, session(""))
			if got.Err == nil || errors.StageOf(got.Err) == "" || got.Sandbox != "" || len(stages) != 0 ||
				time.Since(begin) != time.Minute {
				t.Errorf("%+v, %q after %s", got, stages, time.Since(begin))
			}
			if all, err := h.Engine.List(t.Context()); err != nil || len(all) != 0 {
				t.Errorf("left: %v, %v", all, err)
			}
		})
	})
	t.Run("clone", func(t *testing.T) {
		t.Parallel()
		h := newHouse(t)
		ctx, cancel := context.WithCancel(t.Context())
		s := session("")
		var stages []string
		got := h.Prepare(ctx, s, func(s records.Stage) {
			if stages = append(stages, s.Name); s.Name == "directories" {
				cancel()
			}
		})
		if errors.KindOf(got.Err) != errors.Canceled || errors.StageOf(got.Err) == "" ||
			!slices.Equal(stages, []string{"sandbox", "directories"}) {
			t.Errorf("%v in %q after %q", got.Err, errors.StageOf(got.Err), stages)
		}
		if sb := h.sandbox(got.Sandbox); sb.Status != record.Running {
			t.Errorf("the sandbox is %s", sb.Status)
		}
	})
}
