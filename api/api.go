// Package api is Harvest's wire format: the JSON bodies, routes, event names and limits that server and client share.
//
// Durations are seconds and sizes bytes, as the field names say; times are RFC 3339 in UTC. Fields may be added, none that is
// here changes its meaning. Failures are a Problem.
package api

import (
	"net/url"
	"strings"
	"time"
)

// Routes. {…} stands for a path element, which Path fills in.
const (
	Sandboxes        = "/v1/sandboxes"
	Sandboxed        = "/v1/sandboxes/{id}"
	SandboxExec      = "/v1/sandboxes/{id}/exec"
	SandboxProcesses = "/v1/sandboxes/{id}/processes"
	SandboxArchive   = "/v1/sandboxes/{id}/archive"  // ?path=
	SandboxTerminal  = "/v1/sandboxes/{id}/terminal" // ?rows=&cols=
	SandboxPort      = "/v1/sandboxes/{id}/ports/{port}/{path...}"
	SandboxExtend    = "/v1/sandboxes/{id}/extend"
	SandboxSnapshot  = "/v1/sandboxes/{id}/snapshot"
	SandboxFork      = "/v1/sandboxes/{id}/fork"
	SandboxSync      = "/v1/sandboxes/{id}/sync"
	SandboxNetwork   = "/v1/sandboxes/{id}/network"
	SandboxUsage     = "/v1/sandboxes/{id}/usage"
	SandboxConnect   = "/v1/sandboxes/{id}/connect" // ?port=; a WebSocket: binary messages are the bytes, a text message is the end of one side's
	Run              = "/v1/run"

	Volumes        = "/v1/volumes"
	VolumeNamed    = "/v1/volumes/{name}" // ?force=
	VolumeSync     = "/v1/volumes/{name}/sync"
	VolumeVersions = "/v1/volumes/{name}/versions"   // ?bucket=&prefix=&secret=
	VolumeArchive  = "/v1/volumes/{name}/archive"    // ?path=
	VolumeList     = "/v1/volumes/{name}/files/list" // ?path=
	VolumeFiles    = "/v1/volumes/{name}/files"      // ?path=

	Images       = "/v1/images"
	Imaged       = "/v1/images/{id}"
	ImageExport  = "/v1/images/{id}/export"
	ImageCollect = "/v1/images/collect"
	BuildCache   = "/v1/build-cache"
	BuildCached  = "/v1/build-cache/{id}"

	Secrets  = "/v1/secrets"
	Secreted = "/v1/secrets/{name}"
	Rekey    = "/v1/secrets/rekey"

	Schedules      = "/v1/schedules"
	Scheduled      = "/v1/schedules/{name}"
	ScheduleRuns   = "/v1/schedules/{name}/runs"
	ScheduleStart  = "/v1/schedules/{name}/run"
	SchedulePause  = "/v1/schedules/{name}/pause"
	ScheduleResume = "/v1/schedules/{name}/resume"

	Events = "/v1/events" // ?stream=&after=&tail=

	Keys  = "/v1/keys"
	Keyed = "/v1/keys/{id}"

	Audit  = "/v1/audit"
	Doctor = "/v1/doctor"

	Account = "/v1/account"       // who one is
	Links   = "/v1/sign-in-links" // for browsers
	SignIn  = "/sign-in"          // ?token=
	SignOut = "/v1/sign-out"

	SignInOIDC = "/sign-in/oidc" // with an OpenID Connect provider
	SignInBack = "/sign-in/oidc/callback"

	OpenAPI = "/v1/openapi.json"
	Docs    = "/docs"

	Shutdown = "/v1/shutdown"
	Backup   = "/v1/backup"
	Metrics  = "/metrics"
	Healthz  = "/healthz"
	Readyz   = "/readyz"
)

// Path fills the placeholders of a route with values, in order.
func Path(route string, values ...string) string {
	for _, v := range values {
		before, rest, _ := strings.Cut(route, "{")
		_, after, _ := strings.Cut(rest, "}")
		// "." and ".." would be taken for steps of the path.
		escaped := url.PathEscape(v)
		if strings.Trim(escaped, ".") == "" {
			escaped = strings.ReplaceAll(escaped, ".", "%2E")
		}
		route = before + escaped + after
	}
	return route
}

// Limits of requests, in bytes.
const (
	MaxBody  = 1 << 20  // of a JSON body
	MaxExec  = 32 << 20 // of one that carries code or standard input
	MaxFrame = 1 << 20  // of a message on a stream, after the first
	Window   = 1 << 20  // of standard input that a client may send before the command has read it
	Chunk    = 64 << 10 // the most that one message of output carries
)

// Names of headers.
const (
	HeaderRequestID = "X-Request-ID"
	HeaderVersion   = "Harvest-Version"
	HeaderLastEvent = "Last-Event-ID"
	// HeaderIdempotency names a POST: sent again within a day, and before 10,000 others, it gets the same answer and nothing is done twice. An answer of
	// more than 1 MiB is not kept; then, and where a command may have been begun, the answer is that it was done before.
	HeaderIdempotency = "Idempotency-Key"
	// HeaderReplayed is "true" on an answer that was given before.
	HeaderReplayed = "Idempotency-Replayed"
)

// Content types.
const (
	TypeJSON    = "application/json"
	TypeProblem = "application/problem+json"
	TypeEvents  = "text/event-stream"
	TypeTar     = "application/x-tar"
	TypeForm    = "multipart/form-data"
)

// Names of server-sent events.
const (
	EventStdout   = "stdout"
	EventStderr   = "stderr"
	EventStarted  = "started"        // Started
	EventExit     = "exit"           // Result
	EventProgress = "image.progress" // Progress
	EventReady    = "sandbox.ready"  // Sandbox
	EventLog      = "image.log"      // LogLine
	EventBuilt    = "image.built"    // Image
	EventSyncing  = "volume.syncing" // SyncStats so far
	EventSynced   = "volume.synced"  // Synced
	EventProblem  = "error"          // Problem
)

// List is a page of things.
type List[T any] struct {
	Data       []T    `json:"data"`
	NextCursor string `json:"next_cursor,omitempty"` // asks for the next page; "" at the end
}

// Problem is the body of every failure (RFC 9457).
type Problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"` // the general sentence of Code
	Status    int    `json:"status"`
	Detail    string `json:"detail"`           // what happened, for people
	Code      string `json:"code"`             // a kind of package errors
	Stage     string `json:"stage,omitempty"`  // the step that failed
	Remedy    string `json:"remedy,omitempty"` // what to do about it
	Retryable bool   `json:"retryable"`        // the same request may work later
	RequestID string `json:"request_id,omitempty"`
	// ReturnCode is that of a command that could not be started, as shells have it: 127 for no such program, 126 for one that cannot be executed.
	ReturnCode int `json:"returncode,omitempty"`
}

// Server is what /readyz tells about the server.
type Server struct {
	Status     string   `json:"status"` // "ready" or "stopping"
	Version    string   `json:"version"`
	PID        int      `json:"pid"`
	Background bool     `json:"background"` // a client started it; it ends by itself when nobody needs it
	Requests   int      `json:"requests"`   // under way, this one excepted
	Sandboxes  int      `json:"sandboxes"`  // that have not ended
	Commands   int      `json:"commands"`   // running
	Engine     string   `json:"engine"`
	Isolation  string   `json:"isolation"`
	Limits     []string `json:"limits"`              // which limits hold on this machine
	Missing    []string `json:"missing"`             // what is weaker than it could be, one sentence each
	ModalURL   string   `json:"modal_url,omitempty"` // where programs written for Modal find it; "" if nowhere
}

// ServerInfo is what keys that are not an operator's learn of a server.
type ServerInfo struct {
	Status    string   `json:"status"` // "ready" or "stopping"
	Version   string   `json:"version"`
	Engine    string   `json:"engine"`
	Isolation string   `json:"isolation"`
	Limits    []string `json:"limits"`
	Missing   []string `json:"missing"`
	ModalURL  string   `json:"modal_url,omitempty"`
}

// AuditLine is a line of the audit log: who did what. Bodies and queries are not in it, since they may have secrets.
type AuditLine struct {
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id"`
	Account   string    `json:"account"`
	KeyID     string    `json:"key_id,omitempty"` // none: by the Unix socket
	Address   string    `json:"address,omitempty"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Status    int       `json:"status"`
}

// Finding is what was found out about one thing that sandboxes need, or are better with.
type Finding struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"` // sandboxes do not work without it
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
	Fix    string `json:"fix,omitempty"` // the Debian package that doctor --fix installs
}

// BackupRequest is the body of POST /v1/backup.
type BackupRequest struct {
	Keys bool `json:"keys,omitempty"` // the key files too, without which secrets cannot be read: whoever has both has the secrets
}

// Rekeyed is what POST /v1/secrets/rekey answers.
type Rekeyed struct {
	Secrets int `json:"secrets"` // how many are sealed with the new key
}

// ShutdownRequest is the body of POST /v1/shutdown. Sandboxes keep running.
type ShutdownRequest struct {
	IfIdle bool `json:"if_idle,omitempty"` // Conflict while commands or requests are under way
}
