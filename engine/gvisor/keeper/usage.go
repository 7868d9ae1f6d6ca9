package keeper

import (
	"time"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/engine/gvisor/cgroup"
	"github.com/RelevanceAI/harvest/errors"
)

// usage returns the sandbox's use of resources so far, as counted by its cgroup. Without one, it is the sum
// over its processes, with gVisor's count of memory.
func (k *Keeper) usage() (engine.Usage, error) {
	if err := k.errEnded(); err != nil {
		return engine.Usage{}, err
	}
	cpu, memory, err := k.guest.usage()
	if err != nil {
		if ended := k.errEnded(); ended != nil {
			err = ended
		}
		return engine.Usage{}, err
	}
	u := engine.Usage{Memory: memory}
	u.Received, u.Sent = k.network.traffic()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cpu = max(k.cpu, cpu) // an ended process may have taken its share of the sum with it
	u.CPU = k.cpu.Seconds()
	return u, nil
}

func (g *guest) usage() (cpu time.Duration, memory int64, err error) {
	if g.group == nil {
		used, err := g.sb.Memory()
		return cgroup.ProcessTime(family(g.sb.Pid())), int64(used), errors.Wrapf(err, "ask gVisor for its memory")
	}
	if cpu, err = g.group.CPU(); err == nil {
		memory, err = g.group.Memory()
	}
	return cpu, memory, err
}

// traffic returns the bytes that the sandbox's interface has received and sent.
func (n *network) traffic() (received, sent int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.gateway == nil {
		return 0, 0
	}
	s := n.gateway.Stats() // the gateway's view
	return int64(s.Out), int64(s.In)
}
