package fleet

import (
	"cmp"
	"crypto/x509"
	"runtime"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet/boots"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/reserve"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/fleet/transfer"
)

// Options of a Fleet. Engine and Store are required. Other zero fields get the default given in their comments.
type Options struct {
	Engine engine.Engine
	Store  record.Store
	// Isolations are the kinds of isolation that requests may name, the default first, for an engine.Isolator. nil: the
	// engine's own, without a choice.
	Isolations []string
	// Secrets stores the secrets that Request.Secrets names. nil: requests with secrets are refused as Unsupported.
	Secrets *secret.Vault
	// Roots are the authorities of hosts that get the values of bound secrets. nil: those of this machine.
	Roots *x509.CertPool
	// S3 serves Request.S3. nil: requests with S3 are refused as Unsupported.
	S3 transfer.Syncer
	// Mounts serves Request.S3 with Mount, for engines without mounts of their own. nil: such requests are refused as
	// Unsupported.
	Mounts transfer.Mounter
	// Checkpoints is the directory of checkpoints, on the file system of the engine's images. It is created if
	// missing. "": no checkpoints.
	Checkpoints string

	Defaults engine.Limits  // defaults of requests: 1 core, 2 GiB, 10 GiB of disk, 1024 processes, 65536 open files
	Quotas   reserve.Quotas // of every account: no quotas
	Prices   reserve.Prices // all zero
	Timeouts spec.Timeouts
	Boots    int // how many sandboxes boot concurrently, others queue: 2 per core; negative: no limit
	Warm     int // number of warm sandboxes: 0
	// WarmUp is a command that runs in warm sandboxes, after the expected image is mounted and if the image has the
	// program. The first command then finds files that both use in the cache. Default: none.
	WarmUp []string

	// UsageEvery is the interval at which the usage of running sandboxes is sampled, if the engine supports it: 5
	// seconds.
	UsageEvery time.Duration

	Capture   int           // bytes of each stream that a Result keeps: 4 MiB
	Retention time.Duration // how long records of ended sandboxes are kept: 30 days
	Suspended time.Duration // how long a sandbox may be suspended, until it ends: 30 days
	Machine   spec.Machine  // upper bounds for requests: this machine

	// Clock returns the time for records and lifetimes: the system clock.
	Clock func() time.Time
	// Event, if set, receives events, in order for each sandbox. It must return soon and must not call the Fleet.
	Event func(record.Event)
}

// Stats of a Fleet.
type Stats struct {
	Sandboxes map[record.Status]int `json:"sandboxes"` // sandboxes that have not ended, by status
	CPU       float64               `json:"cpu"`       // reserved by those that are not suspended
	Memory    int64                 `json:"memory_bytes"`
	Commands  int                   `json:"commands"` // running
	Warm      int                   `json:"warm"`     // booted and waiting
	Prepared  int                   `json:"prepared"` // warm ones with the most recently requested image
	Created   int64                 `json:"created"`  // since the Fleet was opened
	WarmUsed  int64                 `json:"warm_used"`
	Failed    int64                 `json:"failed"`
	// Used is the usage of sandboxes according to their samples: cumulative values since the Fleet was opened, other
	// values now.
	Used     engine.Usage `json:"used"`
	Leftover int          `json:"leftover"` // ended, but not completely released by the engine
}

// withDefaults returns o with defaults filled in, or an error that lists all problems.
func (o Options) withDefaults() (Options, error) {
	var p spec.Problems
	if o.Engine == nil || o.Store == nil {
		return o, errors.Errorf("a Fleet needs an engine and a store")
	}
	var err error
	if o.Machine, err = o.Machine.WithDefaults(); err != nil {
		return o, err
	}
	o.Boots = cmp.Or(o.Boots, boots.PerCore*runtime.NumCPU())
	o.Defaults, o.Timeouts = o.Machine.Limits(o.Defaults), o.Timeouts.WithDefaults()
	if o.Clock == nil {
		o.Clock = time.Now
	}
	o.Capture = cmp.Or(o.Capture, 4<<20)
	o.Retention = cmp.Or(o.Retention, 30*24*time.Hour)
	o.Suspended = cmp.Or(o.Suspended, 30*24*time.Hour)
	o.UsageEvery = cmp.Or(o.UsageEvery, 5*time.Second)
	o.Machine.CheckLimits(&p, o.Defaults)
	o.Quotas.Check(&p)
	o.Prices.Check(&p)
	o.Timeouts.Check(&p)
	p.Require(o.Timeouts.Grace > 0 && o.Retention > 0 && o.Suspended > 0 && o.UsageEvery > 0 && o.Capture > 0 &&
		o.Warm >= 0, "the grace period, the retention, the longest suspension, the time between samples, the "+
		"capture and the warm pool must not be negative")
	return o, p.Err()
}
