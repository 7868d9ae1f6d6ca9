package sandbox

import (
	"time"

	"github.com/RelevanceAI/harvest/engine"
)

// Options of a Fleet. Engine and Store are required; what else is zero gets the default that is named here.
type Options struct {
	Engine engine.Engine
	Store  Store

	Defaults engine.Limits // of requests that name none: 1 core, 2 GiB, 10 GiB of disk, 1024 processes, 65536 open files
	Quotas   Quotas        // of every account: none
	Prices   Prices        // nothing costs anything
	Timeouts Timeouts
	Warm     int // how many booted sandboxes wait; 0: none

	Capture   int           // bytes of each stream that a Result keeps: 4 MiB
	Retention time.Duration // how long records of ended sandboxes are kept: 30 days
	Machine   Machine       // what no request may exceed: this machine

	// Event, if set, is told what happens, in order for each sandbox. It must return soon and must not call the Fleet.
	Event func(Event)
}

// Quotas of an account; 0 means no quota.
type Quotas struct {
	Sandboxes int     `json:"sandboxes"`
	CPU       float64 `json:"cpu"`
	Memory    int64   `json:"memory_bytes"`
}

// Prices in USD.
type Prices struct {
	CPUSecond float64 `json:"cpu_second"` // of one core
	GiBSecond float64 `json:"gib_second"` // of one GiB of memory
}

// Timeouts are the defaults and the bounds of time limits.
type Timeouts struct {
	Life    time.Duration // of a sandbox: 24 h
	Idle    time.Duration // of a sandbox: 0, none
	MaxLife time.Duration // 7 days; also bounds idle limits and commands
	Exec    time.Duration // of a command: 30 minutes
	Grace   time.Duration // between TERM to running commands and their end in Destroy: 2 s
}

// Machine is what there is at all.
type Machine struct {
	CPU    float64
	Memory int64
}

// Event is something that happened to a sandbox.
type Event struct {
	Type    EventType
	Sandbox Sandbox
	Stage   Stage // of EventStage
}

// EventType names events as clients see them.
type EventType string

// The events of sandboxes.
const (
	EventStarting   EventType = "sandbox.starting"
	EventStage      EventType = "sandbox.stage"
	EventReady      EventType = "sandbox.ready"
	EventOOM        EventType = "sandbox.oom"
	EventLost       EventType = "sandbox.lost"
	EventFailed     EventType = "sandbox.failed"
	EventTerminated EventType = "sandbox.terminated"
)

// Stats of a Fleet.
type Stats struct {
	Sandboxes map[Status]int `json:"sandboxes"` // those that have not ended, by status
	CPU       float64        `json:"cpu"`       // reserved by them
	Memory    int64          `json:"memory_bytes"`
	Commands  int            `json:"commands"` // running
	Warm      int            `json:"warm"`     // booted and waiting
	Created   int64          `json:"created"`  // since the Fleet was opened
	WarmUsed  int64          `json:"warm_used"`
	Failed    int64          `json:"failed"`
	Leftover  int            `json:"leftover"` // ended, but the engine could not release all of it yet
}
