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

	"github.com/RelevanceAI/harvest/engine/gvisor/layer"
	"github.com/RelevanceAI/harvest/engine/gvisor/wire"
	"github.com/RelevanceAI/harvest/errors"
)

// How often memory is looked at. Without a cgroup, what a sandbox can take above its limit is what it can allocate in this time.
// With one, the kernel stops what allocates quickly, and this ends the sandbox when gVisor counts more than the limit: the
// kernel's limit has room for gVisor itself (sentryMemory), and near it file pages are evicted and read back for seconds.
const (
	memoryInterval      = 500 * time.Millisecond
	memoryWatchInterval = 100 * time.Millisecond
	// memoryLooks is how often in a row more than the limit must be seen, with a cgroup: gVisor gives freed memory back with a delay.
	memoryLooks = 2
)

// watchMemory ends the sandbox when its memory ran out, until stop is closed. The kernel may have killed only a part of
// gVisor, after which the sandbox is of no use.
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
		if keep && !watched { // the kernel's limit has been raised by reserve
			watched = true
			tick.Reset(memoryWatchInterval)
		}
		gone := k.guest.outOfMemory()
		above := (watched || k.guest.sharedAbove(k.args.Limits.Memory)) && k.guest.memoryAbove(k.args.Limits.Memory)
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
			k.guest.sb.Kill()
			return
		}
	}
}

// outOfMemory reports whether the kernel has killed in the sandbox's cgroup for want of memory.
func (g *guest) outOfMemory() bool { return g.group != nil && g.group.OutOfMemory() }

// sharedAbove reports whether the cgroup says that programs have more than limit bytes. It looks first at a figure that costs the
// kernel next to nothing.
func (g *guest) sharedAbove(limit int64) bool {
	if charged, err := g.group.Charged(); err != nil || charged <= limit {
		return false
	}
	shared, err := g.group.Shared()
	return err == nil && shared > limit
}

// memoryAbove reports whether the sandbox's own accounting says that it uses more than limit bytes.
func (g *guest) memoryAbove(limit int64) bool {
	used, err := g.sb.Memory()
	return err == nil && used > uint64(limit)
}

// The pace of looking at volumes: a second, and for large ones, of which a look takes long, a tenth of the time at most.
const (
	volumeInterval = time.Second
	volumeShare    = 10
)

// nearFull is how much room a volume has at least for files before gVisor counts them: more than what is created while the keeper counts.
const nearFull = 100_000

// watchVolumes holds the limits of writable volumes: it kills what runs in the sandbox while a volume grows beyond the disk limit, and has gVisor
// refuse to create files beyond their limit. Volumes are plain directories of the host, whose file systems have no limit per
// directory that every machine offers. While a volume shrinks, commands live: somebody cleans up.
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
				if before, seen := counted[m.Source]; files > int64(limits.VolumeFiles)*5/4 && (!seen || files > before) { // it gets around gVisor's count
					k.killForSpace()
				}
				counted[m.Source] = files
				room.set(m.Path, int64(limits.VolumeFiles)-files, func(r layer.Room) error { return layer.SetRoom(k.guest.sb, []layer.Room{r}) })
			}
		}
		pause = max(volumeInterval, volumeShare*time.Since(begin))
	}
}

// rooms remembers what gVisor knows of the room in volumes.
type rooms struct{ sent map[string]int64 }

// set lets send report the room in a volume if gVisor has to know it. After an error it is sent again.
func (r rooms) set(path string, left int64, send func(layer.Room) error) {
	left = max(0, left)
	if left > nearFull {
		left = layer.Plenty
	}
	before, sent := r.sent[path]
	if sent && before == left || !sent && left == layer.Plenty {
		return
	}
	if delete(r.sent, path); send(layer.Room{Path: path, Left: left}) == nil {
		r.sent[path] = left
	}
}

// diskUsage returns how many bytes the files below dir take on the disk, and how many files and directories there are. It opens no file
// and follows no link.
func diskUsage(dir string) (bytes, files int64) {
	_ = filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // gone meanwhile
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

// killForSpace kills all that runs in the sandbox but its first process, and what is started meanwhile.
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

// startedBefore reports whether a command's id is at most the one with the number newest. What belongs to no command counts
// as old.
func startedBefore(id string, newest int) bool {
	n, err := strconv.Atoi(strings.TrimPrefix(id, "p"))
	return err != nil || n <= newest
}

// limitCPUs binds this process, and so the sandbox that it starts, to as many processors as cpu rounded up: the limit where there is no cgroup.
func limitCPUs(cpu float64) {
	n := int(math.Ceil(cpu))
	var all, some unix.CPUSet
	if n <= 0 || unix.SchedGetaffinity(0, &all) != nil || n >= all.Count() {
		return
	}
	// Different sandboxes begin at different processors.
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
	threads, _ := os.ReadDir("/proc/self/task") // whichever of them starts the sandbox hands it on
	for _, thread := range threads {
		if id, err := strconv.Atoi(thread.Name()); err == nil {
			_ = unix.SchedSetaffinity(id, &some)
		}
	}
}

// mebibytes prints a size for people.
func mebibytes(n int64) string { return strconv.FormatInt(n>>20, 10) + " MiB" }

// describe says how a process ended.
func describe(ws unix.WaitStatus) string {
	if ws.Signaled() {
		return "signal " + unix.SignalName(ws.Signal())
	}
	return fmt.Sprintf("exit code %d", ws.ExitStatus())
}

// ignoreSignals lets the keeper live on when its server's terminal hangs up.
func ignoreSignals() {
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM, syscall.SIGPIPE)
}

// errEnded is what a sandbox that has ended answers.
func (k *Keeper) errEnded() error {
	select {
	case <-k.ended:
		return errors.Newf(errors.Conflict, "the sandbox has ended: %s", k.end.Detail)
	default:
		return nil
	}
}
