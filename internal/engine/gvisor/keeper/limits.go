package keeper

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/wire"
)

// Intervals of memory checks. Without a cgroup, a sandbox can exceed its limit by what it allocates within one
// interval. With a cgroup, the kernel stops fast allocations, and the check ends the sandbox when gVisor counts
// more than the limit. The kernel's limit leaves room for gVisor itself (sentryMemory). Near that limit, file
// pages are evicted and read back for seconds.
const (
	memoryInterval      = 500 * time.Millisecond
	memoryWatchInterval = 100 * time.Millisecond
	// memoryLooks is the number of consecutive checks that must exceed the limit, with a cgroup, because gVisor
	// releases freed memory with a delay.
	memoryLooks = 2
)

// watchMemory ends the sandbox when it runs out of memory, until stop is closed. The kernel may have killed
// only some of gVisor's processes, after which the sandbox is unusable.
func (k *Keeper) watchMemory(stop <-chan struct{}) {
	interval := memoryInterval
	watched := k.args.Cgroup == ""
	if watched {
		interval = memoryWatchInterval
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for looks := 0; ; {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		k.mu.Lock()
		keep := k.args.Claim != nil && k.args.Claim.Keep
		k.mu.Unlock()
		if keep && !watched { // reserve has raised the kernel's limit
			watched = true
			tick.Reset(memoryWatchInterval)
		}
		gone := k.sandbox.OutOfMemory()
		above := k.sandbox.MemoryAbove(k.args.Limits.Memory, watched)
		looks++
		if !above {
			looks = 0
		}
		if gone || above && (watched || looks >= memoryLooks) {
			k.mu.Lock()
			k.oom = true
			k.mu.Unlock()
			if keep && !gone {
				k.keepLayer()
			}
			k.sandbox.Kill()
			return
		}
	}
}

// The pause between two scans of the volumes: volumeInterval, or volumeShare times the duration of a scan if that is
// longer.
const (
	volumeInterval = time.Second
	volumeShare    = 10
)

// nearFull is the remaining number of files of a volume below which gVisor counts new files. It is larger than the
// number of files that can be created during a scan by the keeper.
const nearFull = 100_000

// watchVolumes enforces the limits of writable volumes. It kills the commands in the sandbox while a volume
// grows beyond the disk limit, and makes gVisor refuse to create files beyond the file limit. Volumes are plain
// directories of the host, and no limit per directory is available on every machine. While a volume shrinks,
// commands are not killed, because they may be cleaning up.
func (k *Keeper) watchVolumes(mounts []wire.Mount) {
	limits := k.args.Limits
	mounts = slices.DeleteFunc(slices.Clone(mounts), func(m wire.Mount) bool { return m.ReadOnly || m.Foreign })
	if limits.Disk <= 0 && limits.VolumeFiles <= 0 || len(mounts) == 0 {
		return
	}
	last, counted := map[string]int64{}, map[string]int64{}
	room := rooms{sent: map[string]int64{}}
	for pause := time.Duration(0); ; {
		select {
		case <-k.ended:
			return
		case <-time.After(pause):
		}
		begin := time.Now()
		for _, m := range mounts {
			size, files := diskUsage(m.Source)
			if before, seen := last[m.Source]; limits.Disk > 0 && size > limits.Disk && (!seen || size > before) {
				k.killForSpace()
			}
			last[m.Source] = size
			if limits.VolumeFiles > 0 {
				// The volume still grows although gVisor should refuse new files.
				if before, seen := counted[m.Source]; files > int64(limits.VolumeFiles)*5/4 &&
					(!seen || files > before) {
					k.killForSpace()
				}
				counted[m.Source] = files
				room.set(m.Path, int64(limits.VolumeFiles)-files, k.sandbox.SetRoom)
			}
		}
		pause = max(volumeInterval, volumeShare*time.Since(begin))
	}
}

// rooms remembers the file counts that were sent to gVisor.
type rooms struct{ sent map[string]int64 }

// set calls send with the number of further files for a volume if gVisor needs it. After an error, it sends it
// again.
func (r rooms) set(path string, left int64, send func(path string, left int64) error) {
	left = max(0, left)
	if left > nearFull {
		left = layer.Plenty
	}
	before, sent := r.sent[path]
	if sent && before == left || !sent && left == layer.Plenty {
		return
	}
	if delete(r.sent, path); send(path, left) == nil {
		r.sent[path] = left
	}
}

// diskUsage returns the bytes on disk below dir, and the number of files and directories. It opens no file and
// follows no link.
func diskUsage(dir string) (bytes, files int64) {
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // deleted meanwhile
		}
		if name != dir {
			files++
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				bytes += st.Blocks * 512
			}
		}
		return nil
	})
	return bytes, files
}

// killForSpace kills all processes in the sandbox except the first one and those of commands that start during
// the kill.
func (k *Keeper) killForSpace() {
	k.mu.Lock()
	newest := k.started
	for _, c := range k.commands {
		if !ended(c) {
			c.outOfSpace.Store(true)
		}
	}
	k.mu.Unlock()
	_ = k.killAll(func(owner string) bool { return startedBefore(owner, newest) })
}

// startedBefore reports whether the number in a command's ID is at most newest. Processes without a command
// count as old.
func startedBefore(id string, newest int) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(id, "p"))
	return err != nil || n <= newest
}

// limitCPUs pins this process, and so its sandbox, to cpu processors, rounded up. It is the limit without a
// cgroup.
func limitCPUs(cpu float64) {
	n := int(math.Ceil(cpu))
	var all, some unix.CPUSet
	if n <= 0 || unix.SchedGetaffinity(0, &all) != nil || n >= all.Count() {
		return
	}
	// Start at a different processor for each sandbox.
	skip := os.Getpid() % all.Count()
	var ids []int
	for id := range len(all) * 64 {
		if all.IsSet(id) {
			ids = append(ids, id)
		}
	}
	for i := range n {
		some.Set(ids[(skip+i)%len(ids)])
	}
	threads, _ := os.ReadDir("/proc/self/task") // any of the threads may start the sandbox, which inherits its affinity
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.SchedSetaffinity(id, &some)
		}
	}
}

// mebibytes formats a size for users.
func mebibytes(n int64) string { return strconv.FormatInt(n>>20, 10) + " MiB" }

// describe describes how a process ended.
func describe(ws unix.WaitStatus) string {
	if ws.Signaled() {
		return "signal " + unix.SignalName(ws.Signal())
	}
	return fmt.Sprintf("exit code %d", ws.ExitStatus())
}

// ignoreSignals makes the keeper survive a hang-up of its server's terminal.
func ignoreSignals() {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE)
}

// errEnded returns a Conflict if the sandbox has ended.
func (k *Keeper) errEnded() error {
	select {
	case <-k.ended:
		return errors.Newf(errors.Conflict, "the sandbox has ended: %s", k.end.Detail)
	default:
		return nil
	}
}
