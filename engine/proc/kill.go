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

	"github.com/RelevanceAI/harvest/errors"
)

// Marks in the environment of commands, by which what they started is found however it has moved.
const (
	markSandbox = "HARVEST_SANDBOX="
	markProcess = "HARVEST_PROCESS="
)

// proc is a process of the host.
type proc struct {
	pid, parent, group, session int
	kernel                      bool // a thread of the kernel's own
}

// hunt is a search for the processes with a mark, over several looks.
type hunt struct {
	mark     string
	sessions map[int]bool // of processes with the mark, also of those that have ended: a child that is missed belongs to one
	bare     map[int]bool // processes that had no environment before
	again    bool         // not the first look: what is found is killed at once, before it can start another
}

// killMarked ends every process with the mark in its environment, and what descends from those or shares their sessions,
// until none is left.
func killMarked(ctx context.Context, mark string) error {
	const enough = 20 // looks that find nothing, on a machine that is never quiet
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
			return nil // otherwise one may have forked and ended unseen, and its child is there
		}
		for _, pid := range leaders { // before others of their group, whose deaths may send HUP to all of it once some are stopped
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		for _, pid := range pids { // stopped first, they cannot start others meanwhile
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

// forks returns a text that changes whenever a process or thread is started on this machine.
func forks() string {
	data, _ := os.ReadFile("/proc/stat") // "" is as good as a change
	_, rest, _ := strings.Cut(string(data), "\nprocesses ")
	count, _, _ := strings.Cut(rest, "\n")
	return count
}

// look returns the leaders of sessions, as each command is one, and the others. It is not sure if one has not shown its environment yet.
func (h *hunt) look() (leaders, pids []int, sure bool, err error) {
	for leader := range h.sessions {
		if env, _ := environ(leader); len(env) > 0 && !h.has(env) {
			delete(h.sessions, leader) // the number is somebody else's now
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

// closure adds those that descend from found ones or share a session with them.
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

// environ fails if the process is gone, or somebody else's. It is empty of one that is just becoming another program.
func environ(pid int) ([]byte, error) {
	return os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
}

// numbers returns the numbers of all processes, the newest first: those that have least time left.
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

// read is false for a process that is dead.
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

// list returns the processes that are not dead.
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

// Keepers returns the keepers that are processes and keep files below dir.
func Keepers(dir string) ([]int, error) {
	procs, err := list()
	var pids []int
	for _, p := range procs {
		line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "cmdline"))
		if rest, found := strings.CutPrefix(string(line), keeperName+"\x00"); found && strings.HasPrefix(rest, dir+"/") {
			pids = append(pids, p.pid)
		}
	}
	return pids, err
}
