package userns

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/oklog/ulid/v2"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

const (
	base = 0x7000_0000
	all  = "0 0 4294967295\n"
	self = "/proc/self/exe"
)

// small returns a pool of its own with the files in texts, by name.
func small(t *testing.T, ranges int, texts map[string]string) pool {
	t.Helper()
	p := pool{first: base, ranges: ranges, name: "@harvest-test-" + ulid.Make().String() + "-"}
	dir := t.TempDir()
	for name, text := range texts {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(name, "_map") {
			p.maps = append(p.maps, path)
		} else {
			p.taken = append(p.taken, path)
		}
	}
	p.taken = append(p.taken, filepath.Join(dir, "missing"))
	return p
}

func TestLeasesAreExclusive(t *testing.T) {
	t.Parallel()
	p := small(t, 3, map[string]string{"uid_map": all})
	var first []int
	var leases []*Lease
	for range 3 {
		l, err := p.take()
		if err != nil {
			t.Fatal(err)
		}
		first, leases = append(first, l.First), append(leases, l)
	}
	slices.Sort(first)
	if want := []int{base, base + Size, base + 2*Size}; !slices.Equal(first, want) {
		t.Errorf("leased %x, want %x", first, want)
	}
	if _, err := p.take(); !errors.Is(err, errors.Exhausted) || errors.RemedyOf(err) == "" {
		t.Errorf("a fourth lease of three ranges: %v", err)
	}
	freed := leases[1].First
	if err := leases[1].Hold.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := p.take()
	if err != nil || l.First != freed {
		t.Fatalf("after one was freed: %+v, %v", l, err)
	}
	leases[1] = l
	for _, l := range leases {
		_ = l.Hold.Close()
	}
}

// A lease belongs to the processes that have its descriptor, and ends with the last one.
func TestLeasesOutliveTheServer(t *testing.T) {
	t.Parallel()
	p := small(t, 1, map[string]string{"uid_map": all})
	l, err := p.take()
	if err != nil {
		t.Fatal(err)
	}
	keeper := exec.CommandContext(t.Context(), "cat")
	in, err := keeper.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	keeper.ExtraFiles = []*os.File{l.Hold}
	if err := errors.Join(keeper.Start(), l.Hold.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.take(); !errors.Is(err, errors.Exhausted) {
		t.Errorf("a range that another process holds: %v", err)
	}
	if err := errors.Join(in.Close(), keeper.Wait()); err != nil {
		t.Fatal(err)
	}
	l, err = p.take()
	if err != nil {
		t.Fatalf("after its end: %v", err)
	}
	_ = l.Hold.Close()
}

func TestRangesOfOthersAreAvoided(t *testing.T) {
	t.Parallel()
	third := base + 2*Size
	for name, test := range map[string]struct {
		texts map[string]string
		want  []int
	}{
		"nobody": {nil, []int{base, base + Size, third}},
		"a user": {map[string]string{"passwd": fmt.Sprintf("# comment\nroot:x:0:0::/:/bin/sh\nx:x:%d:5::/:\n",
			base+7)}, []int{base + Size, third}},
		"a group": {map[string]string{"group": fmt.Sprintf("g:x:%d:\n", base+2*Size-1)}, []int{base, third}},
		"subordinate ids": {map[string]string{"subuid": fmt.Sprintf("a:100000:65536\nb:%d:%d\n", base+Size-1, 2),
			"subgid": "a:100000:65536\n"}, []int{third}},
		"a user namespace": {map[string]string{"gid_map": fmt.Sprintf("0 100000 65536\n%d 500000 %d\n", base, 2*Size)},
			[]int{base, base + Size}},
	} {
		texts := map[string]string{"uid_map": all}
		for file, text := range test.texts {
			texts[file] = text
		}
		p := small(t, 3, texts)
		var got []int
		for range test.want {
			l, err := p.take()
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			defer l.Hold.Close()
			got = append(got, l.First)
		}
		slices.Sort(got)
		first, err := p.free()
		if err != nil || first != test.want[0] || !slices.Equal(got, test.want) {
			t.Errorf("%s: leased %x, first of all %x, %v, want %x", name, got, first, err, test.want)
		}
		if _, err := p.take(); !errors.Is(err, errors.Exhausted) {
			t.Errorf("%s: one more: %v", name, err)
		}
	}
	for name, texts := range map[string]map[string]string{
		"few ids":      {"uid_map": "0 100000 65536\n"},
		"all assigned": {"uid_map": all, "subgid": fmt.Sprintf("a:%d:%d\n", base, 3*Size)},
	} {
		if _, err := small(t, 3, texts).take(); !errors.Is(err, errors.Unsupported) || errors.RemedyOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestRangesOfTheMachineAreUnprivileged checks the ranges from which sandboxes get their users: no range has ids of
// root, of other users of a distribution, or of containers of systemd and of podman, and no id is negative as a number
// of 32 bits.
//
// mission: A11
func TestRangesOfTheMachineAreUnprivileged(t *testing.T) {
	t.Parallel()
	const (
		containers = 0x6fff_ffff // last id of systemd's containers; those of adduser, shadow and systemd are below
		last       = 0x7fff_ffff
	)
	first, end := machine.first, machine.first+machine.ranges*Size-1
	if first <= containers || end > last || machine.ranges < 1000 || Size != 65536 {
		t.Errorf("%d ranges of %d ids from %d to %d", machine.ranges, Size, first, end)
	}
	for _, path := range []string{"/etc/passwd", "/etc/group", "/etc/subuid", "/etc/subgid"} {
		if !slices.Contains(machine.taken, path) {
			t.Errorf("the ids of %s are not avoided", path)
		}
	}
	for _, path := range []string{"/proc/self/uid_map", "/proc/self/gid_map"} {
		if !slices.Contains(machine.maps, path) {
			t.Errorf("the ids of %s are not heeded", path)
		}
	}
	testenv.Root(t) // others may lack the ids in their user namespace
	lease, err := Take()
	if err != nil {
		t.Fatal(err)
	}
	defer lease.Hold.Close()
	free, err := machine.free()
	if err != nil || lease.First < first || lease.First+Size-1 > end || free < first {
		t.Errorf("leased %d, first of all %d, %v, want ids from %d to %d", lease.First, free, err, first, end)
	}
	// The first range of a machine belongs to its users, root among them.
	p := machine
	p.first, p.ranges, p.name = 0, 1, "@harvest-test-"+ulid.Make().String()+"-"
	if l, err := p.take(); !errors.Is(err, errors.Unsupported) {
		t.Errorf("ids from 0: %+v, %v", l, err)
	}
}

// TestMountsMapOwners checks that a process in the namespace sees the host's owners in a mount, and gives its own.
func TestMountsMapOwners(t *testing.T) {
	testenv.Root(t)
	dir := testenv.DataDir(t)
	for name, owner := range map[string]int{"root": 0, "user": 1000} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chown(path, owner, owner)); err != nil {
			t.Fatal(err)
		}
	}
	if err := Check(dir, self); err != nil {
		t.Fatal(err)
	}
	namespace, err := Namespace(base, self)
	if err != nil {
		t.Fatal(err)
	}
	defer namespace.Close()
	mount, err := Mount(dir, namespace)
	if err != nil {
		t.Fatal(err)
	}
	defer mount.Close()
	cmd := exec.CommandContext(t.Context(), "sh", "-ec", `stat -c %u:%g root user; touch new; chown 7:8 user; id -G`)
	cmd.Dir = fmt.Sprintf("/proc/self/fd/%d", mount.Fd())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: Map(base),
		GidMappings: Map(base), GidMappingsEnableSetgroups: true, Credential: &syscall.Credential{}}
	if out, err := cmd.Output(); err != nil || string(out) != "0:0\n1000:1000\n0\n" {
		t.Errorf("inside: %q, %v", out, err)
	}
	for name, want := range map[string]uint32{"new": 0, "user": 7} {
		var st unix.Stat_t
		if err := unix.Stat(filepath.Join(dir, name), &st); err != nil || st.Uid != want {
			t.Errorf("%s belongs to %d on the host, %v, want %d", name, st.Uid, err, want)
		}
	}
}

func TestFileSystemsWithoutMappedOwnersAreNamed(t *testing.T) {
	testenv.Root(t)
	if err := Check("/proc", self); !errors.Is(err, errors.Unsupported) || errors.RemedyOf(err) == "" ||
		!strings.Contains(errors.Message(err), "the file system of /proc") {
		t.Errorf("procfs: %v", err)
	}
}
