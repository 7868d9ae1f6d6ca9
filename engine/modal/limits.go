package modal

import (
	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/engine"
)

// What Modal reserves for a sandbox of which nothing is said.
const (
	reservedCPU    = 0.125 // cores
	reservedMemory = 128   // MiB
)

// limits has Modal hold what it can hold. It wants what it reserves to be no more than the limit.
func limits(params *sdk.SandboxCreateParams, l engine.Limits) {
	if l.CPU > 0 {
		params.CPULimit, params.CPU = l.CPU, min(l.CPU, reservedCPU)
	}
	if l.Memory > 0 {
		params.MemoryLimitMiB = int(max(l.Memory>>20, 1))
		params.MemoryMiB = min(params.MemoryLimitMiB, reservedMemory)
	}
}
