package processes

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// reapEach is the interval between scans for zombies, and the time that the parent of a zombie has to wait for
// it.
const reapEach = 5 * time.Second

// Reap collects orphans until ctx ends. They become children of the first process of a PID namespace, which must call
// Reap: they would stay zombies.
func Reap(ctx context.Context) {
	before := map[int]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(reapEach):
		}
		now := map[int]bool{}
		for _, pid := range zombies("/proc", os.Getpid()) {
			if before[pid] { // by now, Go has waited for its own children
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			} else {
				now[pid] = true
			}
		}
		before = now
	}
}

// zombies returns the PIDs of parent's zombie children.
func zombies(proc string, parent int) (pids []int) {
	names, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "stat"))
	for _, name := range names {
		stat, err := os.ReadFile(name)
		if err != nil {
			continue
		}
		text := string(stat)
		fields := strings.Fields(text[strings.LastIndexByte(text, ')')+1:]) // state, parent
		if len(fields) < 2 || fields[0] != "Z" || fields[1] != strconv.Itoa(parent) {
			continue
		}
		if pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name))); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
