package api

import "time"

// Routes of a sandbox's files. Paths are absolute and are those that commands in the sandbox see.
const (
	SandboxFiles = "/v1/sandboxes/{id}/files"       // ?path=; GET (with ranges), PUT, DELETE
	FilesList    = "/v1/sandboxes/{id}/files/list"  // ?path=
	FilesStat    = "/v1/sandboxes/{id}/files/stat"  // ?path=
	FilesWatch   = "/v1/sandboxes/{id}/files/watch" // ?path=&recursive=
	FilesMove    = "/v1/sandboxes/{id}/files/move"
	FilesMkdir   = "/v1/sandboxes/{id}/files/mkdir"
)

// MaxFile is the size limit for a file of a PUT, in bytes.
const MaxFile = 5 << 30

// EventFile is the name of the events of FilesWatch. Their data is a FileChange.
const EventFile = "file.changed"

// File is a file of any kind.
type File struct {
	Name     string    `json:"name"`
	Path     string    `json:"path,omitempty"` // of stat
	Kind     string    `json:"kind"`           // "file", "directory", "symlink" or "other"
	Mode     uint32    `json:"mode"`           // as in struct stat
	Size     int64     `json:"size_bytes"`
	Modified time.Time `json:"modified_at"`
	Link     string    `json:"link,omitempty"` // target of a symbolic link
	UID      int       `json:"uid"`
	GID      int       `json:"gid"`
	ETag     string    `json:"etag,omitempty"` // as in the header: changes with the content; for If-Match
}

// FileChange is a change below a watched path.
type FileChange struct {
	// Kind is "ready" once changes are reported, then "created", "changed" or "removed". "lagged" means that there
	// were too many changes: list the files again.
	Kind string `json:"kind"`
	Path string `json:"path,omitempty"`
}

// MoveRequest is the body of POST …/files/move.
type MoveRequest struct {
	From      string `json:"from"`
	To        string `json:"to"`
	Overwrite bool   `json:"overwrite,omitempty"` // replace an existing file
}

// MkdirRequest is the body of POST …/files/mkdir.
type MkdirRequest struct {
	Path    string `json:"path"`
	Parents bool   `json:"parents,omitempty"` // create missing parent directories, and accept an existing directory
}
