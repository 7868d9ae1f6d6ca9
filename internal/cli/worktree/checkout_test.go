package worktree

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// pair is a person's repository and an agent's clone of it.
type pair struct {
	*testing.T
	person, agent string
	taking
}

func newPair(t *testing.T) *pair {
	t.Helper()
	t.Parallel()
	testenv.RequireTool(t, "git", "git")
	dir := t.TempDir()
	p := &pair{T: t, person: filepath.Join(dir, "person"), agent: filepath.Join(dir, "agent")}
	p.taking = taking{top: p.person, session: "ses_x", work: "harvest/x", branch: "harvest/x"}
	p.git("/", "init", "-q", "-b", "main", p.person)
	p.commit(p.person, "readme", "Begin")
	p.git("/", "clone", "-q", p.person, p.agent)
	p.git(p.agent, "switch", "-q", "-c", "harvest/x")
	return p
}

func (p *pair) git(dir string, args ...string) string {
	p.Helper()
	cmd := exec.CommandContext(p.Context(), "git",
		append([]string{"-C", dir, "-c", "user.name=A", "-c", "user.email=a@example.org"}, args...)...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		p.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (p *pair) commit(dir, file, message string) string {
	p.Helper()
	if err := os.WriteFile(filepath.Join(dir, file), []byte(message+"\n"), 0o644); err != nil {
		p.Fatal(err)
	}
	p.git(dir, "add", "-A")
	p.git(dir, "commit", "-q", "-m", message)
	return p.git(dir, "rev-parse", "HEAD")
}

// take is harvest checkout of the agent's HEAD, and of more of its refs.
func (p *pair) take(more ...string) ([]string, error) {
	p.Helper()
	bundle := filepath.Join(p.TempDir(), "bundle")
	p.git(p.agent, append([]string{"bundle", "create", "-q", bundle, "harvest/x"}, more...)...)
	made, err := p.run(p.Context(), bundle)
	if left := p.git(p.person, "for-each-ref", "refs/harvest"); left != "" {
		p.Errorf("refs are left: %s", left)
	}
	return made, err
}

func (p *pair) at(branch, want string) {
	p.Helper()
	if got := p.git(p.person, "rev-parse", "refs/heads/"+branch); got != want {
		p.Errorf("%s is at %s, want %s", branch, got, want)
	}
}

func (p *pair) refused(err error, says string) {
	p.Helper()
	if errors.KindOf(err) != errors.Conflict || !strings.Contains(errors.RemedyOf(err), says) {
		p.Errorf("%v, remedy %q, want %q in it", err, errors.RemedyOf(err), says)
	}
}

// TestCheckoutFollowsAgent checks that the agent's branch follows the agent, also when its commits were rewritten, as
// long as the branch has no other commits.
// mission: E3
func TestCheckoutFollowsAgent(t *testing.T) {
	p := newPair(t)
	first := p.commit(p.agent, "a", "wip: one")
	if made, err := p.take(); err != nil || len(made) != 1 {
		t.Fatalf("%v, %v", made, err)
	}
	p.at("harvest/x", first)
	p.git(p.agent, "commit", "-q", "--amend", "-m", "One")
	second := p.commit(p.agent, "b", "Two")
	if _, err := p.take(); err != nil {
		t.Fatal(err)
	}
	p.at("harvest/x", second)
	if _, err := p.take(); err != nil {
		t.Errorf("once more: %v", err)
	}

	p.git(p.person, "switch", "-q", "harvest/x")
	third := p.commit(p.agent, "c", "Three")
	_, err := p.take()
	p.refused(err, "--branch NAME")
	p.at("harvest/x", second)
	p.git(p.person, "switch", "-q", "main")
	if _, err = p.take(); err != nil {
		t.Fatal(err)
	}
	p.at("harvest/x", third)
	p.git(p.person, "branch", "-q", "-D", "harvest/x")
	if _, err := p.take(); err != nil {
		t.Error(err)
	}
}

// TestCheckoutKeepsOwnCommits checks that a person's commits on the agent's branch stay, and that the remedy leads to a
// second branch with the agent's work.
// mission: E3
func TestCheckoutKeepsOwnCommits(t *testing.T) {
	p := newPair(t)
	p.commit(p.agent, "a", "One")
	if _, err := p.take(); err != nil {
		t.Fatal(err)
	}
	p.git(p.person, "switch", "-q", "harvest/x")
	own := p.commit(p.person, "mine", "Mine")
	if _, err := p.take(); err != nil {
		t.Errorf("the agent has nothing new: %v", err)
	}
	p.at("harvest/x", own)
	second := p.commit(p.agent, "b", "Two")
	for _, here := range []string{"harvest/x", "main"} {
		p.git(p.person, "switch", "-q", here)
		_, err := p.take()
		p.refused(err, "--branch harvest/x-2")
		p.at("harvest/x", own)
	}
	p.branch, p.named = "harvest/x-2", true
	if made, err := p.take(); err != nil || made[0] != "harvest/x-2" {
		t.Fatalf("%v, %v", made, err)
	}
	p.at("harvest/x-2", second)
	third := p.commit(p.agent, "c", "Three")
	if _, err := p.take(); err != nil {
		t.Fatal(err)
	}
	p.at("harvest/x-2", third)

	begin := p.git(p.person, "rev-parse", "main")
	p.branch = "main"
	_, err := p.take()
	p.refused(err, "another name")
	p.at("main", begin)
	p.commit(p.agent, "d", "Four")
	p.session, p.branch = "ses_y", "harvest/x-2" // another session's work has that name
	_, err = p.take()
	p.refused(err, "another name")
	p.at("harvest/x-2", third)
}

// A branch that an earlier version made has no record: it moves forward only.
func TestCheckoutWithoutRecord(t *testing.T) {
	p := newPair(t)
	first := p.commit(p.agent, "a", "One")
	if _, err := p.take(); err != nil {
		t.Fatal(err)
	}
	p.git(p.person, "config", "--unset", takenKey("harvest/x"))
	second := p.commit(p.agent, "b", "Two")
	if _, err := p.take(); err != nil {
		t.Fatal(err)
	}
	p.at("harvest/x", second)
	p.git(p.person, "config", takenKey("harvest/x"), "ses_x "+strings.Repeat("1", 40)) // a commit that is gone
	p.git(p.agent, "reset", "-q", "--hard", first)
	p.commit(p.agent, "c", "Three")
	_, err := p.take()
	p.refused(err, "--branch harvest/x-2")
	p.at("harvest/x", second)
}

// TestCheckoutBringsStash checks that entries of the agent's stash arrive as branches that git stash apply accepts.
// mission: E8
func TestCheckoutBringsStash(t *testing.T) {
	p := newPair(t)
	p.commit(p.agent, "a", "One")
	if err := os.WriteFile(filepath.Join(p.agent, "a"), []byte("stashed\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	p.git(p.agent, "stash", "push", "-q")
	p.git(p.agent, "update-ref", "refs/heads/harvest/x-stash-1", "stash@{0}")
	p.git(p.agent, "update-ref", "refs/heads/harvest/xy", "HEAD")
	made, err := p.take("harvest/x-stash-1", "harvest/xy")
	if err != nil || len(made) != 2 || made[1] != "harvest/x-stash-1" {
		t.Fatalf("%v, %v", made, err)
	}
	p.git(p.person, "switch", "-q", "harvest/x")
	p.git(p.person, "stash", "apply", "-q", made[1])
	if text, err := os.ReadFile(filepath.Join(p.person, "a")); err != nil || string(text) != "stashed\n" {
		t.Errorf("%q, %v", text, err)
	}
}
