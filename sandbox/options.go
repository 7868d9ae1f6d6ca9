package sandbox

import (
	"cmp"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/sandbox/boots"
	"github.com/RelevanceAI/harvest/sandbox/record"
	"github.com/RelevanceAI/harvest/sandbox/spec"
	"github.com/RelevanceAI/harvest/secret"
)

// Options of a Fleet. Engine and Store are required. Other zero fields get the default given in their comments.
type Options struct {
	Engine engine.Engine
	Store  record.Store
	// Secrets stores the secrets that Request.Secrets names. nil: requests with secrets are refused as Unsupported.
	Secrets *secret.Vault
	// S3 serves Request.S3. nil: requests with S3 are refused as Unsupported.
	S3 Syncer
	// Mounts serves Request.S3 with Mount, for engines without mounts of their own. nil: such requests are refused as
	// Unsupported.
	Mounts Mounter
	// Checkpoints is the directory of checkpoints, on the file system of the engine's images. It is created if
	// missing. "": no checkpoints.
	Checkpoints string

	Defaults engine.Limits // defaults of requests: 1 core, 2 GiB, 10 GiB of disk, 1024 processes, 65536 open files
	Quotas   Quotas        // of every account: no quotas
	Prices   Prices        // all zero
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
	Machine   spec.Machine  // upper bounds for requests: this machine

	// Clock returns the time for records and lifetimes: the system clock.
	Clock func() time.Time
	// Event, if set, receives events, in order for each sandbox. It must return soon and must not call the Fleet.
	Event func(record.Event)
}

// A volume may have one file per bytesPerFile of the disk limit, like inodes of a file system, but at least
// leastVolumeFiles: enough for a few trees of node_modules.
const (
	bytesPerFile     = 16 << 10
	leastVolumeFiles = 200_000
)

// VolumeFiles returns the limit of files of a volume that follows from the default limits of sandboxes.
func VolumeFiles(defaults engine.Limits) int {
	return cmp.Or(defaults.VolumeFiles, int(max(leastVolumeFiles, defaults.Disk/bytesPerFile)))
}

// Quotas of an account; 0 means no quota.
type Quotas struct {
	Sandboxes int     `json:"sandboxes"`
	CPU       float64 `json:"cpu"`
	Memory    int64   `json:"memory_bytes"`
}

// Prices in USD.
type Prices struct {
	CPUSecond float64            `json:"cpu_second"` // of one core
	GiBSecond float64            `json:"gib_second"` // of one GiB of memory
	GPUSecond map[string]float64 `json:"gpu_second"` // of one GPU, by its kind; missing kinds are free
}

// Stats of a Fleet.
type Stats struct {
	Sandboxes map[record.Status]int `json:"sandboxes"` // sandboxes that have not ended, by status
	CPU       float64               `json:"cpu"`       // reserved by them
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
	o.Machine.CPU = cmp.Or(o.Machine.CPU, float64(runtime.NumCPU()))
	if o.Machine.Memory == 0 {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return o, errors.Wrapf(err, "ask for the size of the memory")
		}
		o.Machine.Memory = int64(info.Totalram) * int64(info.Unit)
	}
	o.Boots = cmp.Or(o.Boots, boots.PerCore*runtime.NumCPU())
	d := &o.Defaults
	d.CPU = cmp.Or(d.CPU, min(1, o.Machine.CPU))
	d.Memory = cmp.Or(d.Memory, min(2<<30, o.Machine.Memory))
	d.Disk = cmp.Or(d.Disk, 10<<30)
	d.Processes = cmp.Or(d.Processes, 1024)
	d.Files = cmp.Or(d.Files, 65536)
	d.VolumeFiles = VolumeFiles(*d)
	t := &o.Timeouts
	t.MaxLife = cmp.Or(t.MaxLife, 7*24*time.Hour)
	t.Life = cmp.Or(t.Life, min(24*time.Hour, t.MaxLife))
	t.Exec = cmp.Or(t.Exec, min(30*time.Minute, t.MaxLife))
	t.Grace = cmp.Or(t.Grace, 2*time.Second)
	if o.Clock == nil {
		o.Clock = time.Now
	}
	o.Capture = cmp.Or(o.Capture, 4<<20)
	o.Retention = cmp.Or(o.Retention, 30*24*time.Hour)
	o.UsageEvery = cmp.Or(o.UsageEvery, 5*time.Second)

	check := func(ok bool, what string) {
		if !ok {
			p.Invalidf("correct the configuration", "%s", what)
		}
	}
	check(d.CPU >= spec.MinCPU && d.CPU <= o.Machine.CPU,
		"the default number of cores exceeds this machine, or is too low")
	check(d.Memory >= spec.MinMemory && d.Memory <= o.Machine.Memory,
		"the default memory exceeds this machine, or is too low")
	check(d.Disk >= spec.MinDisk && d.Processes > 0 && d.Files > 0,
		"the default limits of disk, processes and open files must be positive")
	check(o.Quotas.Sandboxes >= 0 && o.Quotas.CPU >= 0 && o.Quotas.Memory >= 0, "quotas must not be negative")
	prices := append(slices.Collect(maps.Values(o.Prices.GPUSecond)), o.Prices.CPUSecond, o.Prices.GiBSecond)
	check(!slices.ContainsFunc(prices, func(v float64) bool { return !isPrice(v) }),
		"prices must be numbers and not negative")
	check(t.MaxLife > 0 && t.Life > 0 && t.Life <= t.MaxLife,
		"the default lifetime must be positive and not above the maximum")
	check(t.Idle >= 0 && t.Idle <= t.MaxLife,
		"the default idle limit must not be negative nor above the maximum lifetime")
	check(t.Exec > 0 && t.Exec <= t.MaxLife,
		"the default time limit of commands must be positive and not above the maximum lifetime")
	check(t.Grace > 0 && o.Retention > 0 && o.UsageEvery > 0 && o.Capture > 0 && o.Warm >= 0,
		"the grace period, the retention, the time between samples, the capture and the warm pool must not be negative")
	return o, p.Err()
}

func isPrice(v float64) bool { return v >= 0 && !math.IsInf(v, 0) }

// cost returns the price of reserving cpu, memory and gpu (in the notation of requests) for a duration (mission A12).
func (p Prices) cost(cpu float64, memory int64, gpu string, took time.Duration) float64 {
	kind, count, several := strings.Cut(gpu, ":")
	gpus := 1.0
	if n, err := strconv.Atoi(count); several && err == nil {
		gpus = float64(n)
	}
	return max(0, took.Seconds()) * (cpu*p.CPUSecond + float64(memory)/(1<<30)*p.GiBSecond + gpus*p.GPUSecond[kind])
}
