package proc

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// Variables in the environment of commands. They identify all descendants of a command, whatever their parent
// or session.
const (
	markSandbox = "HARVEST_SANDBOX="
	markProcess = "HARVEST_PROCESS="
)

// proc is a process of the host.
type proc struct {
	pid, parent, group, session int
	kernel                      bool // a kernel thread
}

// hunt is a search for the processes with a mark, in several scans.
type hunt struct {
	mark string
	// sessions are those of processes with the mark, including ended ones, because a child that was missed
	// belongs to one.
	sessions map[int]bool
	bare     map[int]bool // processes without an environment in an earlier scan
	// again is set after the first scan. Processes are then killed immediately, before they can start others.
	again bool
}

// killMarked kills every process with the mark in its environment, their descendants, and the processes in
// their sessions, until none is left.
func killMarked(ctx context.Context, mark string) error {
	const enough = 20 // scans without a match, on a machine that is never idle
	h := hunt{mark: mark, sessions: map[int]bool{}, bare: map[int]bool{}}
	for empty := 0; empty < enough; empty++ {
		before := forks()
		leaders, pids, sure, err := h.look()
		if err != nil {
			return err
		}
		if len(leaders)+len(pids) > 0 {
			empty = -1
		} else if sure && before != "" && before == forks() {
			return nil // otherwise a process may have forked and ended unnoticed, and its child exists
		}
		// The leaders come first: once members of a group are stopped, another member's death may send SIGHUP
		// to all of them.
		for _, pid := range leaders {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for _, pid := range pids { // stop them first, so that they cannot start others meanwhile
			_ = unix.Kill(pid, unix.SIGSTOP)
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		h.again = true
		select {
		case <-ctx.Done():
			return errors.Wrapf(ctx.Err(), "end the processes with %s", mark)
		case <-time.After(time.Millisecond):
		}
	}
	return nil
}

// forks returns a text that changes whenever a process or thread starts on this machine.
func forks() string {
	data, _ := os.ReadFile("/proc/stat") // "" counts as a change
	_, rest, _ := strings.Cut(string(data), "\nprocesses ")
	count, _, _ := strings.Cut(rest, "\n")
	return count
}

// look returns the session leaders, one of which is each command, and the other processes. sure is false if the
// environment of one was not visible yet.
func (h *hunt) look() (leaders, pids []int, sure bool, err error) {
	for leader := range h.sessions {
		if env, _ := environ(leader); len(env) > 0 && !h.has(env) {
			delete(h.sessions, leader) // the PID has been reused
		}
	}
	all, err := numbers()
	if err != nil {
		return nil, nil, false, err
	}
	sure = true
	var procs []proc
	found, sessions, others := map[int]bool{}, map[int]bool{}, map[int]bool{}
	for _, pid := range all {
		p, alive := read(pid)
		if !alive {
			continue
		}
		procs = append(procs, p)
		env, err := environ(pid)
		switch {
		case h.has(env):
			found[pid], sessions[p.session] = true, true
		case len(env) > 0 && pid == p.session:
			others[pid] = true
		case err == nil && len(env) == 0 && !p.kernel && !h.bare[pid]:
			h.bare[pid], sure = true, false
		}
		if h.again && (found[pid] || h.sessions[p.session]) {
			found[pid] = true
			_ = unix.Kill(pid, unix.SIGKILL)
		}
	}
	for session := range sessions {
		if session > 0 && !others[session] {
			h.sessions[session] = true
		}
	}
	leaders, pids = h.closure(procs, found)
	return leaders, pids, sure, nil
}

// closure adds the descendants of found processes, and the members of their sessions.
func (h *hunt) closure(procs []proc, found map[int]bool) (leaders, pids []int) {
	for before := -1; before != len(found); {
		before = len(found)
		for _, p := range procs {
			if found[p.parent] || h.sessions[p.session] {
				found[p.pid] = true
			}
		}
	}
	for _, p := range procs {
		switch {
		case found[p.pid] && p.session == p.pid:
			leaders = append(leaders, p.pid)
		case found[p.pid]:
			pids = append(pids, p.pid)
		}
	}
	return leaders, pids
}

func (h *hunt) has(env []byte) bool {
	return slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return string(v) == h.mark })
}

// environ returns a process's environment. It fails if the process is gone or belongs to another user. The
// environment is empty while the process is in execve.
func environ(pid int) ([]byte, error) {
	return os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
}

// numbers returns the PIDs of all processes, newest first, because those may end soonest.
func numbers() ([]int, error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, errors.Wrapf(err, "list the processes")
	}
	var pids []int
	for _, entry := range names {
		if pid, err := strconv.Atoi(entry.Name()); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.SortFunc(pids, func(a, b int) int { return b - a })
	return pids, nil
}

// read returns a process. alive is false for a dead one.
func read(pid int) (p proc, alive bool) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return p, false
	}
	_, rest, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
	fields := strings.Fields(rest) // state, parent, group, session, terminal, its group, flags
	if len(fields) < 7 || fields[0] == "Z" || fields[0] == "X" {
		return p, false
	}
	p.pid = pid
	p.parent, _ = strconv.Atoi(fields[1])
	p.group, _ = strconv.Atoi(fields[2])
	p.session, _ = strconv.Atoi(fields[3])
	flags, _ := strconv.ParseUint(fields[6], 10, 64)
	p.kernel = flags&0x00200000 != 0 // PF_KTHREAD
	return p, true
}

// list returns the living processes.
func list() ([]proc, error) {
	pids, err := numbers()
	var procs []proc
	for _, pid := range pids {
		if p, alive := read(pid); alive {
			procs = append(procs, p)
		}
	}
	return procs, err
}

// Keepers returns the PIDs of keeper processes with files below dir.
func Keepers(dir string) ([]int, error) {
	procs, err := list()
	var pids []int
	for _, p := range procs {
		line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "cmdline"))
		if rest, found := strings.CutPrefix(string(line), keeperName+"\x00"); found &&
			strings.HasPrefix(rest, dir+"/") {
			pids = append(pids, p.pid)
		}
	}
	return pids, err
}
