package inside

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// reapEach is how often orphans are looked for, and how long a zombie is left to whoever may have started it.
const reapEach = 5 * time.Second

// reap is for the first process of a PID namespace, whose children all orphans become: those that nobody waits for would stay as zombies.
func (s *server) reap(ctx context.Context) {
	before := map[int]bool{}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(reapEach):
		}
		now := map[int]bool{}
		for _, pid := range zombies("/proc", os.Getpid()) {
			if before[pid] { // what Go has started, it has waited for by now
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			} else {
				now[pid] = true
			}
		}
		before = now
	}
}

// zombies are the children of parent that have ended and that nobody has waited for.
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
