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
}

// killMarked ends every process with the mark in its environment, and what descends from those or shares their sessions,
// until none is left.
func killMarked(ctx context.Context, mark string) error {
	const enough = 20 // looks that find nothing, on a machine that is never quiet
	for empty := 0; empty < enough; empty++ {
		before := forks()
		leaders, pids, err := marked(mark)
		if err != nil {
			return err
		}
		if len(leaders)+len(pids) > 0 {
			empty = -1
		} else if before != "" && before == forks() {
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

// marked returns the leaders of sessions, as each command is one, and the others.
func marked(mark string) (leaders, pids []int, err error) {
	procs, err := list()
	if err != nil {
		return nil, nil, err
	}
	found, sessions := map[int]bool{}, map[int]bool{}
	for _, p := range procs {
		env, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "environ")) // gone, or somebody else's
		if slices.ContainsFunc(bytes.Split(env, []byte{0}), func(v []byte) bool { return string(v) == mark }) {
			found[p.pid] = true
			sessions[p.session] = sessions[p.session] || p.session == p.pid
		}
	}
	for before := -1; before != len(found); {
		before = len(found)
		for _, p := range procs {
			if found[p.parent] || sessions[p.session] {
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
	return leaders, pids, nil
}

// list returns the processes that are not dead.
func list() ([]proc, error) {
	names, err := os.ReadDir("/proc")
	if err != nil {
		return nil, errors.Wrapf(err, "list the processes")
	}
	var procs []proc
	for _, entry := range names {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "stat"))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(stat[bytes.LastIndexByte(stat, ')')+1:]), " ")
		fields := strings.Fields(rest) // state, parent, group, session
		if len(fields) < 4 || fields[0] == "Z" || fields[0] == "X" {
			continue
		}
		parent, _ := strconv.Atoi(fields[1])
		group, _ := strconv.Atoi(fields[2])
		session, _ := strconv.Atoi(fields[3])
		procs = append(procs, proc{pid: pid, parent: parent, group: group, session: session})
	}
	return procs, nil
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
