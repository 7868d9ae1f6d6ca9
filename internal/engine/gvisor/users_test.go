package gvisor_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/processes"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// TestSandboxesHaveUsersOfTheirOwn checks that the processes of a sandbox have unprivileged users of this machine that
// no other sandbox has, also of another server and after a restart, and that files of volumes keep their owners.
//
// mission: A11
func TestSandboxesHaveUsersOfTheirOwn(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	e := open(t, dir)
	vol, err := e.Volumes().Create(t.Context(), "data")
	if err != nil {
		t.Fatal(err)
	}
	mounts := []engine.Mount{{Volume: vol.Name(), Path: "/data"}}
	one := create(t, e, engine.Spec{ID: "one", Mounts: mounts})
	first := usersOf(t, dir, one)
	runAs(t, one, "root", "chmod 777 /data; echo root >/data/root")
	runAs(t, one, "1000:1000", "echo user >/data/user; mkdir /data/dir")
	for name, want := range map[string]uint32{"root": 0, "user": 1000, "dir": 1000} {
		var st unix.Stat_t
		path := filepath.Join(e.Volumes().(interface{ Path(string) string }).Path(vol.Name()), name)
		if err := unix.Stat(path, &st); err != nil || st.Uid != want || st.Gid != want {
			t.Errorf("%s belongs to %d:%d on the host, %v, want %d", name, st.Uid, st.Gid, err, want)
		}
	}

	warm, err := e.Warm(t.Context(), engine.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	two, err := warm.Claim(t.Context(), engine.Spec{ID: "two", Image: "base", Mounts: mounts})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = two.Destroy(context.WithoutCancel(t.Context())) })
	got := runAs(t, two, "root", `cd /data; stat -c %u:%g root user dir
echo more >>user; chown 7:8 root; stat -c %u:%g root; touch dir/new; stat -c %u dir/new`)
	if want := "0:0\n1000:1000\n1000:1000\n7:8\n0\n"; got != want {
		t.Errorf("another sandbox sees the owners\n%s, want\n%s", got, want)
	}
	got = runAs(t, two, "1000:1000", "cat /data/user; echo x >>/data/root")
	if !strings.Contains(got, "user\nmore\n") || !strings.Contains(got, "Permission denied") {
		t.Errorf("another sandbox's user: %q", got)
	}
	// The range of a sandbox stays its own while a new server takes it over, and beside another server.
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	e = open(t, dir)
	adopted, err := e.Open(t.Context(), one.Handle())
	if err != nil {
		t.Fatal(err)
	}
	if got := usersOf(t, dir, adopted); got != first {
		t.Errorf("after a restart, the users begin at %d, and before at %d", got, first)
	}
	elsewhere := testenv.DataDir(t)
	three := create(t, open(t, elsewhere), engine.Spec{ID: "three"})
	four := create(t, e, engine.Spec{ID: "four"})
	all := []int{first, usersOf(t, dir, two), usersOf(t, elsewhere, three), usersOf(t, dir, four)}
	slices.Sort(all)
	if len(slices.Compact(slices.Clone(all))) != len(all) {
		t.Errorf("sandboxes share users: %d", all)
	}
	if err := errors.Join(adopted.Destroy(t.Context()), two.Destroy(t.Context())); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the users are free", func() bool { return !leased(t, first) })
	if !leased(t, usersOf(t, elsewhere, three)) {
		t.Error("the users of a running sandbox are free")
	}
}

// leased reports whether a range is in use on this machine.
func leased(t *testing.T, first int) bool {
	t.Helper()
	b, err := os.ReadFile("/proc/net/unix")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Contains(string(b), fmt.Sprintf(" @harvest-users-%d\n", first))
}

// stateOf returns the state of a sandbox's keeper.
func stateOf(t *testing.T, dir string, sb engine.Sandbox) (state wire.State) {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "sandboxes", sb.Handle().Ref, "state.json"))
	if err == nil {
		err = json.Unmarshal(b, &state)
	}
	if err != nil {
		t.Fatal(err)
	}
	return state
}

// usersOf returns the first user of a sandbox on the host. It checks all processes of the sandbox.
func usersOf(t *testing.T, dir string, sb engine.Sandbox) int {
	t.Helper()
	state := stateOf(t, dir, sb)
	const size = 1 << 16
	first := state.FirstUser
	if first < size {
		t.Fatalf("the users of sandbox %s begin at %d", state.ID, first)
	}
	pids := processes.Below(state.Keeper)
	if !slices.Contains(pids, state.Sentry) {
		t.Fatalf("the keeper's processes %d do not include gVisor's, %d", pids, state.Sentry)
	}
	for _, pid := range pids {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		for line := range strings.Lines(string(status)) {
			name, value, _ := strings.Cut(line, ":")
			if name != "Uid" && name != "Gid" && name != "Groups" {
				continue
			}
			for _, field := range strings.Fields(value) {
				if id, err := strconv.Atoi(field); err != nil || id < first || id >= first+size {
					t.Errorf("process %d of sandbox %s has the %s %s, outside of the range from %d", pid, state.ID,
						name, value, first)
				}
			}
		}
	}
	return first
}

// TestVolumesWithoutMappedOwnersAreRefused checks that a volume whose file system cannot map owners is refused, and
// not given to the sandbox with other owners.
func TestVolumesWithoutMappedOwnersAreRefused(t *testing.T) {
	testenv.Root(t)
	e := open(t, testenv.DataDir(t))
	_, err := e.Create(t.Context(), engine.Spec{ID: "one", Image: "base",
		Mounts: []engine.Mount{{Dir: "/proc/self", Path: "/data"}}})
	if err == nil || !strings.Contains(err.Error(), "cannot map the owners") {
		t.Errorf("a directory of procfs: %v", err)
	}
	if list, err := e.List(t.Context()); err != nil || len(list) != 0 {
		t.Errorf("left behind: %v, %v", list, err)
	}
}
