// Package api defines Harvest's wire format: the JSON bodies, routes, event names and limits that server and client
// share.
//
// Durations are in seconds and sizes in bytes, as the field names say; times are RFC 3339 in UTC. Fields may be
// added; existing fields never change their meaning. Failures are a Problem.
package api

import (
	"net/url"
	"strings"
	"time"
)

// Routes. {…} is a placeholder for a path element, which Path fills in.
const (
	Sandboxes        = "/v1/sandboxes"
	Sandboxed        = "/v1/sandboxes/{id}"
	SandboxExec      = "/v1/sandboxes/{id}/exec"
	SandboxProcesses = "/v1/sandboxes/{id}/processes"
	SandboxArchive   = "/v1/sandboxes/{id}/archive"  // ?path=
	SandboxTerminal  = "/v1/sandboxes/{id}/terminal" // ?rows=&cols=
	SandboxPort      = "/v1/sandboxes/{id}/ports/{port}/{path...}"
	SSHInfo          = "/v1/ssh"
	SandboxSSH       = "/v1/sandboxes/{id}/ssh"
	SandboxExtend    = "/v1/sandboxes/{id}/extend"
	SandboxSuspend   = "/v1/sandboxes/{id}/suspend"
	SandboxWake      = "/v1/sandboxes/{id}/wake"
	SandboxSnapshot  = "/v1/sandboxes/{id}/snapshot"
	SandboxFork      = "/v1/sandboxes/{id}/fork"
	SandboxSync      = "/v1/sandboxes/{id}/sync"
	SandboxNetwork   = "/v1/sandboxes/{id}/network"
	SandboxUsage     = "/v1/sandboxes/{id}/usage"
	// SandboxConnect takes ?port= and is a WebSocket: binary messages contain the data, a text message marks the end
	// of one side's data.
	SandboxConnect = "/v1/sandboxes/{id}/connect"
	Run            = "/v1/run"

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

	Logins        = "/v1/logins"
	LoginTo       = "/v1/logins/{name}"
	LoginFinished = "/v1/logins/{name}/finish"

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

	Account = "/v1/account"       // the caller's account
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
	MCP      = "/mcp" // Model Context Protocol
)

// Path replaces the placeholders of a route with values, in order.
func Path(route string, values ...string) string {
	for _, v := range values {
		before, rest, _ := strings.Cut(route, "{")
		_, after, _ := strings.Cut(rest, "}")
		// Clients would resolve "." and ".." as path segments.
		escaped := url.PathEscape(v)
		if strings.Trim(escaped, ".") == "" {
			escaped = strings.ReplaceAll(escaped, ".", "%2E")
		}
		route = before + escaped + after
	}
	return route
}

// StepQueue is the step of Progress while a sandbox waits for its turn to start.
const StepQueue = "queue"

// Limits of requests, in bytes.
const (
	MaxBody   = 1 << 20  // of a JSON body
	MaxExec   = 32 << 20 // of a body with code or standard input
	MaxPrompt = 1 << 20  // of a prompt of a session
	MaxFrame  = 1 << 20  // of a message on a stream, after the first
	Window    = 1 << 20  // of standard input that a client may send before the command has read it
	Chunk     = 64 << 10 // the maximum size of an output message
)

// Names of headers.
const (
	HeaderRequestID = "X-Request-ID"
	HeaderVersion   = "Harvest-Version"
	HeaderLastEvent = "Last-Event-ID"
	// HeaderIdempotency is the header that identifies a POST. If the client sends the POST again within a day, and
	// before 10,000 others, it gets the same response and nothing is done twice. A response of more than 1 MiB is not
	// kept. In that case, and if a command may have started, the response says that it was done before.
	HeaderIdempotency = "Idempotency-Key"
	// HeaderReplayed is "true" on a repeated response.
	// HeaderChanges identifies the changes in a diff or a bundle of a session.
	HeaderChanges  = "Harvest-Changes"
	HeaderReplayed = "Idempotency-Replayed"
)

// Content types.
const (
	TypeJSON    = "application/json"
	TypeProblem = "application/problem+json"
	TypeEvents  = "text/event-stream"
	TypeTar     = "application/x-tar"
	TypeForm    = "multipart/form-data"
	TypeURLForm = "application/x-www-form-urlencoded"
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

// List is a page of a list.
type List[T any] struct {
	Data       []T    `json:"data"`
	NextCursor string `json:"next_cursor,omitempty"` // cursor of the next page; "" at the end
}

// Problem is the body of every failure (RFC 9457).
type Problem struct {
	Type      string `json:"type"`
	Title     string `json:"title"` // general description of Code
	Status    int    `json:"status"`
	Detail    string `json:"detail"`           // what happened, for people
	Code      string `json:"code"`             // a kind of package errors
	Stage     string `json:"stage,omitempty"`  // failed step
	Remedy    string `json:"remedy,omitempty"` // what to do about it
	Retryable bool   `json:"retryable"`        // a retry of the request may succeed
	RequestID string `json:"request_id,omitempty"`
	// ReturnCode is the return code of a command that could not be started, as in shells: 127 if the program does not
	// exist, 126 if it cannot be executed.
	ReturnCode int `json:"returncode,omitempty"`
}

// Server is the response of /readyz about the server.
type Server struct {
	Status     string   `json:"status"` // "ready" or "stopping"
	Version    string   `json:"version"`
	PID        int      `json:"pid"`
	Background bool     `json:"background"` // a client started it; it ends by itself when it is unused
	Requests   int      `json:"requests"`   // in progress, without this one
	Sandboxes  int      `json:"sandboxes"`  // not ended
	Spares     int      `json:"spares"`     // sessions made ahead that wait for a prompt; their sandboxes are among Sandboxes
	Commands   int      `json:"commands"`   // running
	Engine     string   `json:"engine"`
	Isolation  string   `json:"isolation"`
	Limits     []string `json:"limits"`  // limits that are enforced on this machine
	Missing    []string `json:"missing"` // weaknesses, one sentence each
	// ModalURL is the server's address for programs written for Modal; "" if there is no such address.
	ModalURL string `json:"modal_url,omitempty"`
	// ModalAuthority is the certificate (PEM) that signs those of Modal's tunnels; "" if there is none.
	ModalAuthority string `json:"modal_authority,omitempty"`
}

// ServerInfo is the response of /readyz for keys that do not belong to an operator.
type ServerInfo struct {
	Status    string   `json:"status"` // "ready" or "stopping"
	Version   string   `json:"version"`
	Engine    string   `json:"engine"`
	Isolation string   `json:"isolation"`
	Limits    []string `json:"limits"`
	Missing   []string `json:"missing"`
	ModalURL  string   `json:"modal_url,omitempty"`
	// ModalAuthority is the certificate (PEM) that signs those of Modal's tunnels; "" if there is none.
	ModalAuthority string `json:"modal_authority,omitempty"`
}

// AuditLine is a line of the audit log: who did what. It contains no bodies and queries, since they may contain
// secrets.
type AuditLine struct {
	Time      time.Time `json:"time"`
	RequestID string    `json:"request_id,omitempty"` // of a request to the API
	Account   string    `json:"account"`
	KeyID     string    `json:"key_id,omitempty"` // "" for the Unix socket
	Address   string    `json:"address,omitempty"`
	Method    string    `json:"method"`
	Path      string    `json:"path"`
	Status    int       `json:"status"`

	// SandboxID is set in lines about a client of SSH, and in lines about a request of a sandbox with the value of a
	// secret, or with a placeholder that it may not use. Path begins with the host of the latter.
	SandboxID string `json:"sandbox_id,omitempty"`
	// Command is what a client of SSH runs, or the address that it connects to. Method is "SSH" then, and Path "shell",
	// "exec", "sftp", "forward", "listen" or "agent".
	Command string `json:"command,omitempty"`
	Secret  string `json:"secret,omitempty"`  // its name
	Refused string `json:"refused,omitempty"` // why the secret was not used, one sentence
	Count   int    `json:"count,omitempty"`   // of equal requests since the last line about them
}

// Finding is the result of a check for a feature that sandboxes need or benefit from.
type Finding struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Needed bool   `json:"needed"` // sandboxes do not work without it
	Detail string `json:"detail"`
	Remedy string `json:"remedy,omitempty"`
	Fix    string `json:"fix,omitempty"` // Debian package that doctor --fix installs
}

// BackupRequest is the body of POST /v1/backup.
type BackupRequest struct {
	// Keys includes the key files, without which secrets cannot be read. A backup with them exposes the secrets.
	Keys bool `json:"keys,omitempty"`
}

// Rekeyed is the response of POST /v1/secrets/rekey.
type Rekeyed struct {
	Secrets int `json:"secrets"` // number of secrets sealed with the new key
}

// ShutdownRequest is the body of POST /v1/shutdown. Sandboxes keep running.
type ShutdownRequest struct {
	IfIdle bool `json:"if_idle,omitempty"` // Conflict while commands or requests are under way
}
