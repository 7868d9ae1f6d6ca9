package cgroup

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// mounts makes a directory that looks like control groups of the given kinds.
func mounts(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestHierarchies(t *testing.T) {
	t.Parallel()
	v1 := map[string]string{"cpu/tasks": "", "memory/tasks": "", "pids/tasks": ""}
	v2 := map[string]string{"cgroup.controllers": "cpuset cpu io memory pids\n"}
	hybrid := map[string]string{"cpu/tasks": "", "memory/tasks": "", "unified/cgroup.controllers": "pids\n"}
	for name, test := range map[string]struct {
		files map[string]string
		want  string // controller:directory:version
	}{
		"version 1": {v1, "cpu:cpu:1 memory:memory:1 pids:pids:1"},
		"version 2": {v2, "cpu:.:2 memory:.:2 pids:.:2"},
		"hybrid":    {hybrid, "cpu:cpu:1 memory:memory:1 pids:unified:2"},
	} {
		root := mounts(t, test.files)
		found, err := hierarchies(root)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got []string
		for _, h := range found {
			dir, _ := filepath.Rel(root, h.dir)
			version := "1"
			if h.v2 {
				version = "2"
			}
			got = append(got, h.controller+":"+dir+":"+version)
		}
		if s := strings.Join(got, " "); s != test.want {
			t.Errorf("%s: found %s, want %s", name, s, test.want)
		}
	}
	if _, err := hierarchies(mounts(t, map[string]string{"cpu/tasks": ""})); !errors.Is(err, errors.Unsupported) {
		t.Errorf("without memory: %v", err)
	}
}

// The files of both versions, in a directory that only looks like them.
func TestLimitFiles(t *testing.T) {
	t.Parallel()
	limits := engine.Limits{CPU: 0.5, Memory: 1 << 20, Processes: 10}
	for _, test := range []struct {
		h    hierarchy
		want map[string]string
	}{
		{hierarchy{controller: "cpu"}, map[string]string{"cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}},
		{hierarchy{controller: "cpu", v2: true}, map[string]string{"cpu.max": "50000 100000"}},
		{hierarchy{controller: "memory"}, map[string]string{"memory.limit_in_bytes": "1048577"}},
		{hierarchy{controller: "memory", v2: true}, map[string]string{"memory.max": "1048577", "memory.oom.group": "1",
			"memory.swap.max": "0"}},
		{hierarchy{controller: "pids"}, map[string]string{"pids.max": "17"}},
		{hierarchy{controller: "pids", v2: true}, map[string]string{"pids.max": "17"}},
	} {
		test.h.dir = t.TempDir()
		g := &Group{name: "g", in: []hierarchy{test.h}}
		if err := os.Mkdir(filepath.Join(test.h.dir, "g"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := g.limit(test.h, Options{Limits: limits, Memory: 1, Tasks: 7}); err != nil {
			t.Error(err)
		}
		for file, want := range test.want {
			if b, err := os.ReadFile(filepath.Join(test.h.dir, "g", file)); err != nil || string(b) != want {
				t.Errorf("%s: %s is %q, %v", test.h.controller, file, b, err)
			}
		}
		if err := g.limit(test.h, Options{}); err != nil {
			t.Error(err)
		}
	}
}

func TestOutOfMemoryIsRead(t *testing.T) {
	t.Parallel()
	for name, v2 := range map[string]bool{"memory.oom_control": false, "memory.events": true} {
		dir := mounts(t, map[string]string{"g/" + name: "low 0\noom_kill_disable 0\noom_kill 0\n"})
		g := &Group{name: "g", in: []hierarchy{{controller: "cpu", dir: dir}, {controller: "memory", dir: dir, v2: v2}}}
		if g.OutOfMemory() {
			t.Errorf("%s: out of memory at once", name)
		}
		if err := os.WriteFile(filepath.Join(dir, "g", name), []byte("under_oom 0\noom_kill 2\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if !g.OutOfMemory() {
			t.Errorf("%s: not noticed", name)
		}
	}
	if (&Group{}).OutOfMemory() {
		t.Error("no group is out of memory")
	}
}

// mission: A6
func TestRealGroup(t *testing.T) {
	testenv.Root(t)
	name := "harvest-test-" + strconv.Itoa(os.Getpid())
	if err := Available(name); err != nil {
		t.Skipf("no cgroups on this machine: %v", err)
	}
	g, err := Create(name, Options{Limits: engine.Limits{CPU: 1, Memory: 64 << 20, Processes: 10}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = g.Remove() })
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	if g.Has(cmd.Process.Pid) {
		t.Error("the process is in the group before it was added")
	}
	if err := g.Add(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	if !g.Has(cmd.Process.Pid) {
		t.Error("the process is not in the group")
	}
	if g.OutOfMemory() {
		t.Error("a sleeper ran out of memory")
	}
	if err := Open(name).Remove(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("Remove left the process alive")
	}
	for _, h := range g.in {
		if _, err := os.Stat(filepath.Join(h.dir, name)); !os.IsNotExist(err) {
			t.Errorf("%s is still there: %v", h.dir, err)
		}
	}
	if err := g.Remove(); err != nil {
		t.Errorf("second Remove: %v", err)
	}
	if Version() == "none" {
		t.Error("Version says that there are none")
	}
	if err := g.Add(os.Getpid()); err == nil {
		t.Error("a process was added to a group that is gone")
	}
}

// In a container, control groups are usually mounted read-only.
func TestRemoveWithoutWriteAccess(t *testing.T) {
	testenv.Root(t)
	dir := mounts(t, map[string]string{"made/cgroup.procs": "", "tasks": ""})
	done := make(chan error, 1)
	go func() {
		// and never unlocked: the thread ends with the goroutine, and its mount namespace with it
		runtime.LockOSThread()
		done <- func() error {
			for _, err := range []error{unix.Unshare(unix.CLONE_NEWNS),
				unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
				unix.Mount(dir, dir, "", unix.MS_BIND, ""),
				unix.Mount("", dir, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, "")} {
				if err != nil {
					return errors.Wrapf(err, "mount a read-only directory")
				}
			}
			in := []hierarchy{{controller: "cpu", dir: dir}}
			if err := (&Group{name: "never-made", in: in}).Remove(); err != nil {
				return errors.Wrapf(err, "remove a group that could not be created")
			}
			if err := (&Group{name: "made", in: in}).Remove(); !errors.Is(err, unix.EROFS) {
				return errors.Errorf("remove a group in a read-only file system: %v", err)
			}
			return nil
		}()
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestUsageFiles checks that the usage is read from the files of either version.
func TestUsageFiles(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		v2    bool
		files map[string]string
	}{
		"version 1": {false, map[string]string{"g/cpuacct.usage": "1500000000\n", "g/memory.usage_in_bytes": "141\n",
			"g/memory.stat": "cache 99\nrss 1\ntotal_cache 99\ntotal_rss 40\ntotal_shmem 2\n"}},
		"version 2": {true, map[string]string{"g/cpu.stat": "usage_usec 1500000\nuser_usec 1\n",
			"g/memory.current": "141\n", "g/memory.stat": "anon 40\nfile 99\nshmem 2\nfile_mapped 9\n"}},
	} {
		dir := mounts(t, test.files)
		g := &Group{name: "g", in: []hierarchy{{controller: "pids", dir: dir, v2: test.v2},
			{controller: "cpu", dir: dir, v2: test.v2}, {controller: "memory", dir: dir, v2: test.v2}}}
		if cpu, err := g.CPU(); err != nil || cpu != 1500*time.Millisecond {
			t.Errorf("%s: %s of processor time, %v", name, cpu, err)
		}
		if memory, err := g.Memory(); err != nil || memory != 42 {
			t.Errorf("%s: %d bytes of memory, %v", name, memory, err)
		}
		if shared, err := g.Shared(); err != nil || shared != 2 {
			t.Errorf("%s: %d bytes of shared memory, %v", name, shared, err)
		}
		if charged, err := g.Charged(); err != nil || charged != 141 {
			t.Errorf("%s: %d bytes charged, %v", name, charged, err)
		}
		for file := range test.files {
			if err := os.WriteFile(filepath.Join(dir, file), []byte("total_rss x\nanon x\nusage_usec x\n"),
				0o644); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := g.CPU(); err == nil {
			t.Errorf("%s: processor time that is no number", name)
		}
		if _, err := g.Memory(); err == nil {
			t.Errorf("%s: memory that is no number", name)
		}
		if _, err := g.Charged(); err == nil {
			t.Errorf("%s: charged memory that is no number", name)
		}
	}
	for _, g := range []*Group{{}, {name: "g", in: []hierarchy{{controller: "cpu", dir: t.TempDir()},
		{controller: "memory", dir: t.TempDir()}}}} {
		if _, err := g.CPU(); err == nil {
			t.Error("a group that is not there has processor time")
		}
		if _, err := g.Memory(); err == nil {
			t.Error("a group that is not there has memory")
		}
		if _, err := g.Charged(); err == nil {
			t.Error("a group that is not there has charged memory")
		}
	}
}

// TestUsageOfProcesses checks that the usage comes from the processes if version 1 mounts CPU accounting and CPU limits
// separately.
func TestUsageOfProcesses(t *testing.T) {
	t.Parallel()
	cmd := exec.Command("sh", "-c", "while :; do :; done")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer cmd.Process.Kill()
	dir := mounts(t, map[string]string{"g/cgroup.procs": strconv.Itoa(cmd.Process.Pid) + "\n999999999\n"})
	g := &Group{name: "g", in: []hierarchy{{controller: "cpu", dir: dir}}}
	for end := time.Now().Add(time.Minute); ; {
		cpu, err := g.CPU()
		if err != nil {
			t.Fatal(err)
		}
		if cpu >= 50*time.Millisecond {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("a busy process took %s of processor time in a minute", cpu)
		}
	}
}
