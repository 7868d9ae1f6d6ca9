package container

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
)

// seen is a process of the container as this machine sees it. The first process of the container is not asked: it may
// be frozen, or controlled by a user of the container.
type seen struct {
	kept.Process
	host       int // process ID on this machine
	hostParent int
}

// look returns the processes of the container, the first one first.
func (c *Container) look() ([]seen, error) {
	pids, err := c.group.Processes()
	if err != nil {
		return nil, err
	}
	init := c.box.Pid()
	var all []seen
	inside := map[int]int32{}
	for _, pid := range pids {
		s, err := readStatus(pid)
		if err != nil {
			continue // it has just ended
		}
		inside[pid] = s.PID
		all = append(all, s)
	}
	for i := range all {
		all[i].Parent = inside[all[i].hostParent]
	}
	slices.SortFunc(all, func(a, b seen) int { return int(a.PID - b.PID) })
	if len(all) == 0 || all[0].host != init {
		return nil, errors.Newf(errors.Conflict, "the container has ended")
	}
	return all, nil
}

// readStatus reads /proc/PID/status: proc_pid_status(5). The fields NSpid and NSpgid have the IDs in all namespaces
// from this machine's inwards; the container's is the second.
func readStatus(pid int) (s seen, err error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "status"))
	if err != nil {
		return s, err
	}
	field := func(name string, index int) int {
		_, line, _ := bytes.Cut(b, []byte("\n"+name+":"))
		line, _, _ = bytes.Cut(line, []byte("\n"))
		values := bytes.Fields(line)
		if index >= len(values) {
			return 0
		}
		n, _ := strconv.Atoi(string(values[index]))
		return n
	}
	s = seen{host: pid, hostParent: field("PPid", 0),
		Process: kept.Process{PID: int32(field("NSpid", 1)), Group: int32(field("NSpgid", 1))}}
	if s.PID == 0 {
		return s, errors.Errorf("process %d is not in a container", pid)
	}
	return s, nil
}

// find returns the process with an ID of the container.
func (c *Container) find(pid int32) (seen, error) {
	all, err := c.look()
	if err != nil {
		return seen{}, err
	}
	for _, s := range all[1:] {
		if s.PID == pid {
			return s, nil
		}
	}
	return seen{}, unix.ESRCH
}

// Processes implements kept.Sandbox.
func (c *Container) Processes() ([]kept.Process, error) {
	all, err := c.look()
	list := make([]kept.Process, len(all))
	for i, s := range all {
		list[i] = s.Process
	}
	return list, err
}

// Environ implements kept.Sandbox.
func (c *Container) Environ(pid int32) []byte {
	s, err := c.find(pid)
	if err != nil {
		return nil
	}
	b, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(s.host), "environ"))
	return b
}

// Signal implements kept.Sandbox.
func (c *Container) Signal(pid int32, sig syscall.Signal, foreground bool) error {
	all, err := c.look()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(all, func(s seen) bool { return s.PID == pid })
	if i < 1 {
		return errors.Wrapf(unix.ESRCH, "signal process %d", pid)
	}
	if !foreground {
		return all[i].signal(sig)
	}
	group, err := foregroundOf(all[i].host)
	if err != nil {
		return err
	}
	found := false
	for _, s := range all[1:] {
		if id, err := unix.Getpgid(s.host); err == nil && id == group {
			found = s.signal(sig) == nil || found
		}
	}
	if !found {
		return errors.Wrapf(unix.ESRCH, "signal the foreground of process %d", pid)
	}
	return nil
}

// signal sends a signal to the process, and to no other that has its ID on this machine by now.
func (s seen) signal(sig syscall.Signal) error {
	fd, err := unix.PidfdOpen(s.host, 0)
	if err != nil {
		return errors.Wrapf(err, "open process %d", s.PID)
	}
	defer unix.Close(fd)
	if now, err := readStatus(s.host); err != nil || now.PID != s.PID {
		return errors.Wrapf(unix.ESRCH, "signal process %d", s.PID)
	}
	return errors.Wrapf(unix.PidfdSendSignal(fd, sig, nil, 0), "signal process %d", s.PID)
}

// foregroundOf returns the foreground process group, as this machine numbers it, of the terminal that a process of this
// machine controls: proc_pid_stat(5). The name of the program may contain spaces and parentheses.
func foregroundOf(pid int) (int, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, errors.Wrapf(err, "look at a process")
	}
	const index = 5 // counted from the state
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) <= index {
		return 0, errors.Errorf("%q is no line of /proc/PID/stat", b)
	}
	group, err := strconv.Atoi(string(fields[index]))
	if err == nil && group <= 0 {
		err = unix.ESRCH
	}
	return group, errors.Wrapf(err, "find the foreground of a terminal")
}
