package api

import "time"

// VolumeRequest is the body of POST /v1/volumes.
type VolumeRequest struct {
	Name string `json:"name"`
}

// Volume is a named file tree.
type Volume struct {
	Name    string    `json:"name"`
	Created time.Time `json:"created_at,omitzero"`
	Size    int64     `json:"size_bytes"`
	Files   int64     `json:"files"`
}

// Entry is an entry of a directory.
type Entry struct {
	Name     string    `json:"name"`
	Mode     uint32    `json:"mode"` // as in struct stat
	Size     int64     `json:"size_bytes"`
	Modified time.Time `json:"modified_at"`
	Link     string    `json:"link,omitempty"`
}

// VolumeSyncRequest is the body of POST /v1/volumes/{name}/sync.
type VolumeSyncRequest struct {
	Direction string `json:"direction"` // "up": volume to bucket, "down" or "both"
	Place
	// Mirror deletes files on the changing side that the other side does not have.
	Mirror    bool   `json:"mirror,omitempty"`
	Conflicts string `json:"conflicts,omitempty"` // of "both": "both" (the default), "newer", "local" or "remote"
	// Versioned saves a new version below {prefix}/{account}/{unix time}/, or restores Version; the latest if Version
	// is missing.
	Versioned bool   `json:"versioned,omitempty"`
	Version   string `json:"version,omitempty"`
	Path      string `json:"path,omitempty"`     // only files below it
	List      bool   `json:"list,omitempty"`     // list the bucket to find changes by other clients
	Contents  bool   `json:"contents,omitempty"` // compare contents, not sizes and times
	DryRun    bool   `json:"dry_run,omitempty"`  // return the plan only
	// DeleteMany allows the sync to delete most files of a side, or all because the other side is empty. Otherwise
	// such a sync is refused.
	DeleteMany bool `json:"delete_many,omitempty"`
}

// SyncStats are the statistics of a sync.
type SyncStats struct {
	Files     int64        `json:"files"` // transferred completely
	Bytes     int64        `json:"bytes"`
	Updated   int64        `json:"updated"` // metadata only
	Skipped   int64        `json:"skipped"` // unchanged
	Deleted   int64        `json:"deleted"`
	Conflicts int64        `json:"conflicts"`
	Failed    int64        `json:"failed"`
	Duration  float64      `json:"duration_ms"`
	Rate      float64      `json:"bytes_per_second"`
	Seen      int64        `json:"seen_bytes,omitempty"`  // bytes of completed files, sent or not; during a sync
	Total     int64        `json:"total_bytes,omitempty"` // bytes of all files; 0 while unknown
	Failures  []SyncedPath `json:"failures,omitempty"`    // the first thousand
	Ignored   []SyncedPath `json:"ignored,omitempty"`     // FIFOs, sockets and devices, which are no failures
	Decided   []SyncedPath `json:"decided,omitempty"`     // resolutions of conflicts
	// Waiting names the server that has answered nothing for 5 s, such as "S3 at HOST"; during a sync.
	Waiting string `json:"waiting,omitempty"`
	// Unconditional means that the S3 server ignores conditions of writes: see docs/s3.md, "Two-way sync".
	Unconditional bool `json:"unconditional,omitempty"`
	// Refusal is the reason why the sync would fail, in the response to a dry run: it deletes most files of a side.
	Refusal string `json:"refusal,omitempty"`
}

// SyncedPath is a path with a remark about it.
type SyncedPath struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Remedy string `json:"remedy,omitempty"`
	Copy   string `json:"copy,omitempty"` // path of the copy that the decision about a conflict made
}

// PlannedAction is an action of a dry run.
type PlannedAction struct {
	Action   string `json:"action"` // such as "upload" or "delete remote"
	Path     string `json:"path"`
	Size     int64  `json:"size_bytes,omitempty"`
	Conflict string `json:"conflict,omitempty"`
	Copy     string `json:"copy,omitempty"`   // path of the copy of the bucket's file, in case of a conflict
	Reason   string `json:"reason,omitempty"` // of "skip"
}

// Synced is the response to a VolumeSyncRequest.
type Synced struct {
	Volume    string          `json:"volume"`
	Place     string          `json:"place"` // s3://bucket/prefix/
	Direction string          `json:"direction"`
	Version   string          `json:"version,omitempty"`
	Plan      []PlannedAction `json:"plan,omitempty"` // of a dry run: the first ten thousand actions
	SyncStats
}

// VolumeVersion is a version of a volume in S3.
type VolumeVersion struct {
	Version string    `json:"version"` // its Unix time
	Created time.Time `json:"created_at"`
	Whole   bool      `json:"whole"` // false if it is incomplete
}
