package pod

import (
	"net/netip"
	"time"

	"github.com/RelevanceAI/harvest/internal/engine"
)

// Port is the TCP port at which the agent of a pod listens.
const Port = 7443

// Config is what a pod knows before a claim. It is in the pod's description, and contains no secrets.
type Config struct {
	Limits   engine.Limits
	Platform string       `json:",omitempty"` // of gVisor; "" for its default
	NoSetuid bool         `json:",omitempty"`
	Hosts    []netip.Addr `json:",omitempty"` // addresses of nodes beyond those that Kubernetes tells the pod
	// Grace is how long the pod keeps a sandbox after Kubernetes has asked it to end, so that the server can save it. 0
	// ends it at once.
	Grace       time.Duration `json:",omitempty"`
	OutputBytes int64         `json:",omitempty"` // kept output of each command; 0 for the engine's default
}
