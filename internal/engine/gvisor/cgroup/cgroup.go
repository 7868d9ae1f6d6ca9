// Package cgroup enforces the limits of a sandbox with the host's cgroups, of version 1, version 2 or both.
//
// gVisor's own code moves the starting process through every hierarchy of version 1 twice, and each first move
// waits for all processors (10–15 ms). A Group has three controllers. Its processes are moved once, while the
// sandbox boots.
package cgroup

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// Root is the mount point of cgroups.
const Root = "/sys/fs/cgroup"

// controllers are the controllers that a sandbox needs.
var controllers = []string{"cpu", "memory", "pids"}

// hierarchy is the location of one controller's groups.
type hierarchy struct {
	controller string
	dir        string
	v2         bool
}

// hierarchies finds the controllers, or returns an error that names the missing one.
func hierarchies(root string) ([]hierarchy, error) {
	var found []hierarchy
	for _, c := range controllers {
		h, ok := find(root, c)
		if !ok {
			return nil, errors.Newf(errors.Unsupported, "there is no cgroup controller %q on this machine", c)
		}
		found = append(found, h)
	}
	return found, nil
}

func find(root, controller string) (hierarchy, bool) {
	v1 := filepath.Join(root, controller)
	if _, err := os.Stat(filepath.Join(v1, "tasks")); err == nil { // exists in version 1 only
		return hierarchy{controller: controller, dir: v1}, true
	}
	for _, dir := range []string{root, filepath.Join(root, "unified")} {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err == nil && strings.Contains(" "+strings.TrimSpace(string(b))+" ", " "+controller+" ") {
			return hierarchy{controller: controller, dir: dir, v2: true}, true
		}
	}
	return hierarchy{}, false
}

// findFreezer finds the hierarchy that can freeze processes. Version 2 needs no controller for that.
func findFreezer(root string) (hierarchy, bool) {
	for _, dir := range []string{root, filepath.Join(root, "unified")} {
		if _, err := os.Stat(filepath.Join(dir, "cgroup.controllers")); err == nil { // exists in version 2 only
			return hierarchy{controller: freezer, dir: dir, v2: true}, true
		}
	}
	return find(root, freezer)
}

// Available returns an error if groups cannot be created here. It creates one to find out.
func Available(probe string) error {
	g, err := Create(probe, Options{Limits: engine.Limits{Memory: 1 << 30, CPU: 1, Processes: 100}})
	if err != nil {
		return err
	}
	return g.Remove()
}

// Group is one cgroup per controller, all with the same name.
type Group struct {
	name string
	in   []hierarchy
}

// Options are the options of Create.
type Options struct {
	Limits engine.Limits // 0 means no limit
	Memory int64         // in bytes, more than the limit, for what runs the sandbox
	Tasks  int           // more than the limit of processes, for what runs the sandbox
	// Freezer makes Freeze work.
	Freezer bool
}

// Create creates the group and sets its limits.
func Create(name string, o Options) (*Group, error) {
	in, err := hierarchies(Root)
	if err != nil {
		return nil, err
	}
	if o.Freezer {
		h, ok := findFreezer(Root)
		if !ok {
			return nil, errors.Newf(errors.Unsupported, "there is no cgroup on this machine that can freeze processes")
		}
		in = append(in, h)
	}
	g := &Group{name: name, in: in}
	for _, h := range in {
		// Children only have the controllers that their parent enables.
		if h.v2 {
			_ = os.WriteFile(filepath.Join(h.dir, "cgroup.subtree_control"), []byte("+"+h.controller), 0)
		}
		err = os.Mkdir(filepath.Join(h.dir, name), 0o755)
		if err == nil || h.v2 && os.IsExist(err) {
			err = g.limit(h, o)
		}
		if err != nil {
			return nil, errors.Join(errors.Wrapf(err, "make cgroup for %s", h.controller), g.Remove())
		}
	}
	return g, nil
}

// Open returns an existing group, or the remains of one.
func Open(name string) *Group {
	in, _ := hierarchies(Root)
	if h, ok := findFreezer(Root); ok {
		in = append(in, h)
	}
	return &Group{name: name, in: in}
}

// freezer is the controller that freezes processes.
const freezer = "freezer"

// Freeze stops all processes of the group, or lets them continue. It returns when they stand still.
func (g *Group) Freeze(frozen bool) error {
	for _, h := range g.in {
		if h.controller != freezer {
			continue
		}
		file, value, state := "freezer.state", "THAWED", "freezer.state"
		if frozen {
			value = "FROZEN"
		}
		want := value
		if h.v2 {
			file, state, value, want = "cgroup.freeze", "cgroup.events", "0", "frozen 0"
			if frozen {
				value, want = "1", "frozen 1"
			}
		}
		for begin := time.Now(); ; {
			// Version 1 needs the order again while processes fork.
			if err := os.WriteFile(filepath.Join(h.dir, g.name, file), []byte(value), 0); err != nil {
				return errors.Wrapf(err, "freeze the processes of a cgroup")
			}
			b, err := os.ReadFile(filepath.Join(h.dir, g.name, state))
			if err != nil {
				return errors.Wrapf(err, "freeze the processes of a cgroup")
			}
			if strings.Contains(string(b), want) {
				return nil
			}
			if time.Since(begin) > freezeTime {
				return errors.Errorf("the processes of the cgroup do not become %q: %q", want, b)
			}
			time.Sleep(gonePause)
		}
	}
	return errors.Errorf("the group %s has no freezer", g.name)
}

// freezeTime limits the time of Freeze.
const freezeTime = 10 * time.Second

// CPUPeriod is the period of CPU quotas in microseconds.
const CPUPeriod = 100_000

// limit sets one controller's limit.
func (g *Group) limit(h hierarchy, o Options) error {
	l := o.Limits
	write := func(file string, value int64) error {
		return os.WriteFile(filepath.Join(h.dir, g.name, file), strconv.AppendInt(nil, value, 10), 0)
	}
	quota := int64(math.Ceil(l.CPU * CPUPeriod))
	switch {
	case h.controller == "cpu" && quota > 0 && h.v2:
		return os.WriteFile(filepath.Join(h.dir, g.name, "cpu.max"),
			[]byte(strconv.FormatInt(quota, 10)+" "+strconv.Itoa(CPUPeriod)), 0)
	case h.controller == "cpu" && quota > 0:
		return errors.Join(write("cpu.cfs_period_us", CPUPeriod), write("cpu.cfs_quota_us", quota))
	case h.controller == "memory" && l.Memory > 0 && h.v2:
		// The processes of a sandbox are useless without each other, and swap would only delay the end.
		_ = write("memory.oom.group", 1)
		_ = write("memory.swap.max", 0)
		return write("memory.max", l.Memory+o.Memory)
	case h.controller == "memory" && l.Memory > 0:
		err := write("memory.limit_in_bytes", l.Memory+o.Memory)
		// This file exists only if swap is accounted.
		_ = write("memory.memsw.limit_in_bytes", l.Memory+o.Memory)
		return err
	case h.controller == "pids" && l.Processes > 0:
		return write("pids.max", int64(l.Processes+o.Tasks))
	}
	return nil
}

// RaiseMemory sets the memory limit to bytes, which must not be below the current limit.
func (g *Group) RaiseMemory(bytes int64) error {
	for _, h := range g.in {
		if h.controller != "memory" {
			continue
		}
		write := func(file string) error {
			return os.WriteFile(filepath.Join(h.dir, g.name, file), strconv.AppendInt(nil, bytes, 10), 0)
		}
		if h.v2 {
			return errors.Wrapf(write("memory.max"), "raise the memory limit")
		}
		_ = write("memory.memsw.limit_in_bytes") // first, because it must never be below the other
		return errors.Wrapf(write("memory.limit_in_bytes"), "raise the memory limit")
	}
	return nil
}

// Add moves a process into the group.
func (g *Group) Add(pid int) error {
	for _, h := range g.in {
		if err := os.WriteFile(filepath.Join(h.dir, g.name, "cgroup.procs"), strconv.AppendInt(nil, int64(pid), 10),
			0); err != nil {
			return errors.Wrapf(err, "move process to its cgroup")
		}
	}
	return nil
}

// Within calls f, whose child processes start in the group: those of this thread, to which the calling goroutine must
// be locked, if they are cloned into the directory that f gets (SysProcAttr.CgroupFD), unless that is nil. A process
// that started elsewhere would have to be moved, and a move waits for all processors. A thread that moves itself does
// not.
func (g *Group) Within(f func(dir *os.File) error) (err error) {
	b, err := os.ReadFile("/proc/thread-self/cgroup")
	if err != nil {
		return errors.Wrapf(err, "read the cgroups of this thread")
	}
	var into *os.File
	for _, h := range g.in {
		switch {
		case !h.v2:
			home := place(string(b), h)
			if err := enter(filepath.Join(h.dir, g.name)); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, enter(filepath.Join(h.dir, home))) }()
		case into == nil: // there is one tree of version 2
			if into, err = os.Open(filepath.Join(h.dir, g.name)); err != nil {
				return errors.Wrapf(err, "open the cgroup")
			}
			defer into.Close()
		}
	}
	return f(into)
}

// enter moves this thread into a group of version 1.
func enter(dir string) error {
	return errors.Wrapf(os.WriteFile(filepath.Join(dir, "tasks"), []byte("0"), 0), "move this thread to a cgroup")
}

// place returns the path of the group of a controller of version 1 in a file of /proc: "4:memory:/harvest-x".
func place(text string, h hierarchy) string {
	for line := range strings.Lines(text) {
		_, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		names, path, _ := strings.Cut(rest, ":")
		if strings.Contains(","+names+",", ","+h.controller+",") {
			return path
		}
	}
	return "/"
}

// Processes returns the processes of the group.
func (g *Group) Processes() ([]int, error) { return members(filepath.Join(g.in[0].dir, g.name)) }

// Has reports whether a process is in the group of every controller.
func (g *Group) Has(pid int) bool {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cgroup"))
	if err != nil {
		return false
	}
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	for _, h := range g.in {
		ok := false
		for _, line := range lines { // "4:memory:/harvest-x", "0::/harvest-x"
			_, rest, _ := strings.Cut(line, ":")
			names, path, _ := strings.Cut(rest, ":")
			mine := names == "" && h.v2 || strings.Contains(","+names+",", ","+h.controller+",")
			ok = ok || mine && strings.HasSuffix(path, g.name)
		}
		if !ok {
			return false
		}
	}
	return true
}

// OutOfMemory reports whether the kernel's OOM killer has killed a process in the group.
func (g *Group) OutOfMemory() bool {
	for _, h := range g.in {
		if h.controller != "memory" {
			continue
		}
		file := "memory.oom_control"
		if h.v2 {
			file = "memory.events"
		}
		b, _ := os.ReadFile(filepath.Join(h.dir, g.name, file))
		for line := range strings.Lines(string(b)) {
			if field, value, _ := strings.Cut(strings.TrimSpace(line), " "); field == "oom_kill" && value != "0" {
				return true
			}
		}
	}
	return false
}

// Memory returns the bytes that the group's processes hold and that the kernel cannot reclaim: anonymous and
// shared memory, without the page cache.
func (g *Group) Memory() (int64, error) {
	return g.memoryStat([]string{"total_rss", "total_shmem"}, []string{"anon", "shmem"})
}

// Shared returns the bytes of shared memory that the group's processes hold. gVisor keeps the memory of
// programs in it.
func (g *Group) Shared() (int64, error) {
	return g.memoryStat([]string{"total_shmem"}, []string{"shmem"})
}

// memoryStat sums fields of memory.stat, with their names in either version.
func (g *Group) memoryStat(v1, v2 []string) (int64, error) {
	for _, h := range g.in {
		if h.controller != "memory" {
			continue
		}
		if h.v2 {
			return g.fields(h, "memory.stat", v2...)
		}
		return g.fields(h, "memory.stat", v1...)
	}
	return 0, errors.Errorf("the group %s has no memory controller", g.name)
}

// Charged returns the bytes charged to the group, including the page cache. Unlike Memory, it is very cheap.
func (g *Group) Charged() (int64, error) {
	for _, h := range g.in {
		if h.controller != "memory" {
			continue
		}
		file := "memory.usage_in_bytes"
		if h.v2 {
			file = "memory.current"
		}
		b, err := os.ReadFile(filepath.Join(h.dir, g.name, file))
		if err != nil {
			return 0, errors.Wrapf(err, "read %s", file)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
		return n, errors.Wrapf(err, "read %s", file)
	}
	return 0, errors.Errorf("the group %s has no memory controller", g.name)
}

// CPU returns the processor time of the group's processes, including ended ones. If version 1 counts the time in a
// hierarchy without the limits, CPU returns the time of the living processes and of the children that they have waited
// for.
func (g *Group) CPU() (time.Duration, error) {
	for _, h := range g.in {
		switch {
		case h.controller == "cpu" && h.v2:
			n, err := g.fields(h, "cpu.stat", "usage_usec")
			return time.Duration(n) * time.Microsecond, err
		case h.controller == "cpu":
			if b, err := os.ReadFile(filepath.Join(h.dir, g.name, "cpuacct.usage")); err == nil {
				n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
				return time.Duration(n), errors.Wrapf(err, "read cpuacct.usage")
			}
			pids, err := members(filepath.Join(h.dir, g.name))
			return ProcessTime(pids), err
		}
	}
	return 0, errors.Errorf("the group %s has no cpu controller", g.name)
}

// fields sums fields of a file with "name value" lines.
func (g *Group) fields(h hierarchy, file string, names ...string) (sum int64, err error) {
	b, err := os.ReadFile(filepath.Join(h.dir, g.name, file))
	if err != nil {
		return 0, errors.Wrapf(err, "read %s", file)
	}
	for line := range strings.Lines(string(b)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if !slices.Contains(names, name) {
			continue
		}
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil {
			return 0, errors.Wrapf(err, "read %s", file)
		}
		sum += n
	}
	return sum, nil
}

// tick is the unit of processor time in /proc. It is the same on every Linux system that Go supports.
const tick = time.Second / 100

// ProcessTime returns the processor time of processes and of the ended children that they have waited for. A
// process that is gone counts as zero.
func ProcessTime(pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
		if err != nil {
			continue
		}
		_, rest, _ := strings.Cut(string(b[bytes.LastIndexByte(b, ')')+1:]), " ")
		const first, last = 11, 14 // utime, stime, cutime and cstime, counted from the state
		fields := strings.Fields(rest)
		if len(fields) <= last {
			continue
		}
		for _, field := range fields[first : last+1] {
			n, _ := strconv.ParseInt(field, 10, 64)
			sum += time.Duration(n) * tick
		}
	}
	return sum
}

// Limits of the time for which Remove waits until processes are gone.
const (
	goneRounds = 2000
	gonePause  = 2 * time.Millisecond
)

// Remove kills the processes in the group and removes it. It is idempotent: a missing group is not an error.
func (g *Group) Remove() error {
	var errs []error
	for _, h := range g.in {
		errs = append(errs, errors.Wrapf(remove(filepath.Join(h.dir, g.name)), "remove cgroup"))
	}
	return errors.Join(errs...)
}

// remove removes one directory. It retries only while processes keep the directory busy, because other errors
// persist.
func remove(dir string) error {
	if _, err := os.Lstat(dir); errors.IsNotExist(err) {
		return nil // rmdir would first report a read-only file system
	}
	err := os.Remove(dir)
	for range goneRounds {
		if !errors.Is(err, syscall.EBUSY) {
			break
		}
		kill(dir)
		time.Sleep(gonePause)
		err = os.Remove(dir)
	}
	if errors.IsNotExist(err) {
		return nil
	}
	return err
}

// kill kills the processes in one directory.
func kill(dir string) {
	pids, _ := members(dir)
	for _, pid := range pids {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// members lists the processes in one directory.
func members(dir string) ([]int, error) {
	b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if err != nil {
		return nil, errors.Wrapf(err, "list the processes of a cgroup")
	}
	var pids []int
	for _, field := range strings.Fields(string(b)) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// Version returns the cgroup version that Available found.
func Version() string {
	in, err := hierarchies(Root)
	if err != nil {
		return "none"
	}
	v1, v2 := false, false
	for _, h := range in {
		v1, v2 = v1 || !h.v2, v2 || h.v2
	}
	switch {
	case v1 && v2:
		return "cgroup v1 and v2"
	case v1:
		return "cgroup v1"
	}
	return "cgroup v2"
}
