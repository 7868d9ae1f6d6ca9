package keeper

import (
	"bytes"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/engine/gvisor/keeper/kept"
)

// Parameters of killAll. Processes may fork while they are being killed, and a scan may miss a child that is
// just being created, so killLooks scans in a row must find none. If there are many, or if some still fork
// after a few rounds, they are paused during the scan and the signals. A process that stays after killSignals
// signals is a zombie whose parent does not wait for it.
const (
	killLooks   = 2
	killPause   = 2 * time.Millisecond
	killFreely  = 3
	killFew     = 8
	killSignals = 50
	killRounds  = 1000
)

// endTime is the maximum time from a broken connection to gVisor until its end is known.
const endTime = 2 * time.Second

// killTree kills a command and all its descendants.
func (k *Keeper) killTree(c *command) error {
	if k.errEnded() != nil {
		return nil
	}
	if !ended(c) {
		_ = k.sandbox.Signal(c.pid, syscall.SIGKILL, false)
	}
	return k.killAll(func(owner string) bool { return owner == c.id })
}

// killAll kills the processes of the commands whose IDs mine accepts, until none is left.
func (k *Keeper) killAll(mine func(owner string) bool) error {
	known := newCensus(k.sandbox.Environ)
	n := 0
	for clear, round := 0, 0; round < killRounds; round++ {
		var err error
		n, err = k.killRound(known, mine, n > killFew || round >= killFreely)
		if err != nil {
			select {
			case <-k.ended: // shortly after the connection broke
				return nil
			case <-time.After(endTime):
				return err
			}
		}
		if clear++; n > 0 {
			clear = 0
		}
		if clear == killLooks {
			return nil
		}
		if n > 0 {
			time.Sleep(killPause)
		}
	}
	err := errors.Newf(errors.Unavailable, "new processes start faster than they can be killed")
	return errors.Remedy(err, "destroy the sandbox")
}

// killRound kills the current processes that mine accepts, and returns their number. If frozen, it pauses the
// sandbox for the scan and the signals.
func (k *Keeper) killRound(known *census, mine func(owner string) bool, frozen bool) (int, error) {
	if frozen {
		if err := k.sandbox.Pause(); err != nil {
			return 0, errors.Wrapf(err, "pause sandbox")
		}
		defer func() {
			if err := k.sandbox.Resume(); err != nil {
				log.Warningf("resume after killing: %v", err)
			}
		}()
	}
	all, err := k.sandbox.Processes()
	if err != nil {
		return 0, errors.Wrapf(err, "list processes")
	}
	victims := known.choose(all, mine)
	for _, pid := range victims {
		_ = k.sandbox.Signal(pid, syscall.SIGKILL, false)
	}
	return len(victims), nil
}

// census determines the command of each process. A child belongs to the command of its parent, and a member of
// a process group to that of the group leader. A process whose parents are gone belongs to the command that
// marker names in its environment.
//
// gVisor's ProcfsDump reports all of this at once, but it ends the sandbox if a process exits at the wrong
// moment.
type census struct {
	environ func(pid int32) []byte
	owners  map[int32]string // commands of all processes ever seen
	signals map[int32]int    // number of times that a process was chosen
}

func newCensus(environ func(pid int32) []byte) *census {
	return &census{environ: environ, owners: map[int32]string{}, signals: map[int32]int{}}
}

// choose returns the processes whose command mine accepts. all are a container's processes, ordered by PID. So
// the first process of the container, which belongs to no command, comes first.
func (c *census) choose(all []kept.Process, mine func(owner string) bool) []int32 {
	if len(all) == 0 {
		return nil
	}
	init := all[0].PID
	byPID := map[int32]kept.Process{}
	for _, p := range all {
		byPID[p.PID] = p
	}
	var chosen []int32
	for _, p := range all {
		pid := p.PID
		if p.PID == init || !mine(c.owner(p, byPID, init)) {
			continue
		}
		if c.signals[pid]++; c.signals[pid] <= killSignals {
			chosen = append(chosen, pid)
		}
	}
	return chosen
}

// owner returns the command of a process, and caches it.
func (c *census) owner(p kept.Process, byPID map[int32]kept.Process, init int32) string {
	pid, group := p.PID, p.Group
	if owner, ok := c.owners[pid]; ok && owner != "" {
		return owner
	}
	owner := c.owners[group]
	if parent, known := byPID[p.Parent]; owner == "" && known && parent.PID != init {
		owner = c.owner(parent, byPID, init)
	}
	if owner == "" {
		for pair := range bytes.SplitSeq(c.environ(pid), []byte{0}) {
			if id, ok := bytes.CutPrefix(pair, []byte(marker+"=")); ok {
				owner = string(id)
			}
		}
	}
	c.owners[pid] = owner
	return owner
}
