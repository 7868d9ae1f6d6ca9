package keeper

import (
	"github.com/RelevanceAI/harvest/internal/engine"
)

// usage returns the sandbox's use of resources so far, as counted by its cgroup. Without one, it is the sum
// over its processes, with gVisor's count of memory.
func (k *Keeper) usage() (engine.Usage, error) {
	if err := k.errEnded(); err != nil {
		return engine.Usage{}, err
	}
	cpu, memory, err := k.sandbox.Usage()
	if err != nil {
		if ended := k.errEnded(); ended != nil {
			err = ended
		}
		return engine.Usage{}, err
	}
	u := engine.Usage{Memory: memory}
	u.Received, u.Sent = k.network.Traffic()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.cpu = max(k.cpu, cpu) // the sum lacks the time of ended processes
	u.CPU = k.cpu.Seconds()
	return u, nil
}
