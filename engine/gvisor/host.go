package gvisor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/oklog/ulid/v2"

	"github.com/RelevanceAI/harvest/engine/gvisor/keeper"
	"github.com/RelevanceAI/harvest/errors"
)

const cgroupRoot = "/sys/fs/cgroup"

// cgroupDirs returns where a cgroup of that name is or could be: in every hierarchy of version 1, and in that of version 2.
func cgroupDirs(name string) []string {
	var dirs []string
	entries, _ := os.ReadDir(cgroupRoot)
	for _, e := range entries {
		if _, err := os.Stat(filepath.Join(cgroupRoot, e.Name(), "cgroup.procs")); err == nil && e.IsDir() {
			dirs = append(dirs, filepath.Join(cgroupRoot, e.Name(), name))
		}
	}
	if _, err := os.Stat(filepath.Join(cgroupRoot, "cgroup.procs")); err == nil {
		return []string{filepath.Join(cgroupRoot, name)} // version 2 alone: the entries are other cgroups
	}
	return dirs
}

// cgroupsWork reports whether cgroups can be made here.
func cgroupsWork() bool {
	dirs := cgroupDirs("harvest-probe-" + strings.ToLower(ulid.Make().String()))
	for _, dir := range dirs {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return false
		}
		if err := os.Remove(dir); err != nil {
			return false
		}
	}
	return len(dirs) > 0
}

// How long removing waits for processes to be gone.
const (
	goneRounds = 1000
	gonePause  = 5 * time.Millisecond
)

// removeCgroup kills what runs in a cgroup and removes it.
func removeCgroup(name string) error {
	var errs []error
	for _, dir := range cgroupDirs(name) {
		err := os.Remove(dir)
		for range goneRounds {
			if err == nil || errors.IsNotExist(err) {
				break
			}
			b, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			for _, field := range strings.Fields(string(b)) {
				if pid, convErr := strconv.Atoi(field); convErr == nil && pid > 1 {
					_ = syscall.Kill(pid, syscall.SIGKILL)
				}
			}
			time.Sleep(gonePause)
			err = os.Remove(dir)
		}
		if err != nil && !errors.IsNotExist(err) {
			errs = append(errs, errors.Wrapf(err, "remove cgroup"))
		}
	}
	return errors.Join(errs...)
}

// keepersOf finds the keepers of the sandbox in dir by their arguments.
func keepersOf(dir string) []int {
	want := keeper.Name + "\x00" + dir + "\x00"
	var pids []int
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline")); err == nil && string(b) == want {
			pids = append(pids, pid)
		}
	}
	return pids
}

// trash removes directories in the background. They are renamed first: on ext4, making files is slow right after a similar
// tree was deleted in the same place.
type trash struct {
	dir     string
	pending sync.WaitGroup
}

// openTrash begins to remove what an earlier process left.
func openTrash(dir string) *trash {
	t := &trash{dir: dir}
	t.pending.Go(func() {
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			_ = os.RemoveAll(filepath.Join(dir, e.Name()))
		}
	})
	return t
}

// put takes path away at once and removes it later.
func (t *trash) put(path string) error {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return errors.Wrapf(err, "create trash")
	}
	to := filepath.Join(t.dir, ulid.Make().String())
	if err := os.Rename(path, to); err != nil {
		if errors.IsNotExist(err) {
			return nil
		}
		return errors.Wrapf(err, "throw away")
	}
	t.pending.Go(func() { _ = os.RemoveAll(to) })
	return nil
}

func (t *trash) wait() { t.pending.Wait() }
