package keeper

import (
	"bytes"
	"fmt"
	"syscall"
	"time"

	"gvisor.dev/gvisor/pkg/log"

	"github.com/RelevanceAI/harvest/engine/gvisor/runsc"
	"github.com/RelevanceAI/harvest/errors"
)

// How killAll chases processes that fork while they are killed: a look may miss one that was just being born, so two in a row
// must find none. Many, and what still forks after a few rounds, are stopped while they are listed and signalled. A process that
// stays after many signals is dead, and its parent does not ask for it.
const (
	killLooks   = 2
	killPause   = 2 * time.Millisecond
	killFreely  = 3
	killFew     = 8
	killSignals = 50
	killRounds  = 1000
)

// endTime is how long after a broken connection to gVisor its end may become known.
const endTime = 2 * time.Second

// killTree kills a command and all that it started.
func (k *Keeper) killTree(c *command) error {
	if k.errEnded() != nil {
		return nil
	}
	if !ended(c) {
		_ = k.guest.sb.Signal(k.guest.mainID(), c.pid, syscall.SIGKILL, false)
	}
	return k.killAll(func(owner string) bool { return owner == c.id })
}

// killAll kills the processes of the commands that mine picks by their id, until it finds none any more.
func (k *Keeper) killAll(mine func(owner string) bool) error {
	known := newCensus(k.guest.environ)
	n := 0
	for clear, round := 0, 0; round < killRounds; round++ {
		var err error
		n, err = k.killRound(known, mine, n > killFew || round >= killFreely)
		if err != nil {
			select {
			case <-k.ended: // a moment after the connection broke
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

// killRound kills the processes that mine picks now, and returns how many there were. If frozen, nothing in the sandbox runs
// meanwhile.
func (k *Keeper) killRound(known *census, mine func(owner string) bool, frozen bool) (int, error) {
	sb, id := k.guest.sb, k.guest.mainID()
	if frozen {
		if err := sb.Pause(); err != nil {
			return 0, errors.Wrapf(err, "pause sandbox")
		}
		defer func() {
			if err := sb.Resume(); err != nil {
				log.Warningf("resume after killing: %v", err)
			}
		}()
	}
	all, err := sb.Processes(id)
	if err != nil {
		return 0, errors.Wrapf(err, "list processes")
	}
	victims := known.choose(all, mine)
	for _, pid := range victims {
		_ = sb.Signal(id, pid, syscall.SIGKILL, false)
	}
	return len(victims), nil
}

// environ returns a process's environment, empty if it is gone. The root container sees the processes of all.
func (g *guest) environ(pid int32) []byte {
	b, _ := g.readFile(g.args.Ref, fmt.Sprintf("/proc/%d/environ", pid))
	return b
}

// census knows to which commands processes belong. Children belong to the command of their parent, members of a process group
// to that of its leader, and others, whose parents are gone, to the one that marker names in their environment.
//
// gVisor's ProcfsDump tells all of this at once, but ends the sandbox when a process exits at the wrong moment.
type census struct {
	environ func(pid int32) []byte
	owners  map[int32]string // of all processes ever seen
	signals map[int32]int    // how often a process was chosen
}

func newCensus(environ func(pid int32) []byte) *census {
	return &census{environ: environ, owners: map[int32]string{}, signals: map[int32]int{}}
}

// choose returns the processes whose command mine picks. all are those of a container, ordered by id, so that the container's
// first process, which belongs to nobody, comes first.
func (c *census) choose(all []*runsc.Process, mine func(owner string) bool) []int32 {
	if len(all) == 0 {
		return nil
	}
	init := all[0].PID
	byPID := map[int32]*runsc.Process{}
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

// owner finds out to which command a process belongs, and remembers.
func (c *census) owner(p *runsc.Process, byPID map[int32]*runsc.Process, init int32) string {
	pid, ppid, group := p.PID, p.PPID, p.PGID
	if owner, ok := c.owners[pid]; ok && owner != "" {
		return owner
	}
	owner := c.owners[group]
	if parent := byPID[ppid]; owner == "" && parent != nil && ppid != init {
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
