package modal

import (
	sdk "github.com/modal-labs/modal-client/go"

	"github.com/RelevanceAI/harvest/internal/engine"
)

// Modal's default reservations for a sandbox.
const (
	reservedCPU    = 0.125 // cores
	reservedMemory = 128   // MiB
)

// limits sets the limits that Modal can enforce. Modal requires that a reservation does not exceed its limit.
func limits(params *sdk.SandboxCreateParams, l engine.Limits) {
	if l.CPU > 0 {
		params.CPULimit, params.CPU = l.CPU, min(l.CPU, reservedCPU)
	}
	if l.Memory > 0 {
		params.MemoryLimitMiB = int(max(l.Memory>>20, 1))
		params.MemoryMiB = min(params.MemoryLimitMiB, reservedMemory)
	}
}
