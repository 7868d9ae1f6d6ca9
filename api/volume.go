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

// Entry of a directory.
type Entry struct {
	Name     string    `json:"name"`
	Mode     uint32    `json:"mode"` // as in struct stat
	Size     int64     `json:"size_bytes"`
	Modified time.Time `json:"modified_at"`
	Link     string    `json:"link,omitempty"`
}

// VolumeSyncRequest is the body of POST /v1/volumes/{name}/sync.
type VolumeSyncRequest struct {
	Direction string `json:"direction"`        // "up": volume to bucket, "down" or "both"
	Bucket    string `json:"bucket,omitempty"` // one of the account's own; without one, the server's
	Prefix    string `json:"prefix,omitempty"` // in the bucket
	Secret    string `json:"secret,omitempty"` // with the bucket's credentials; "aws" if missing
	// Mirror deletes on the side that changes what the other does not have.
	Mirror    bool   `json:"mirror,omitempty"`
	Conflicts string `json:"conflicts,omitempty"` // of "both": "both" (the default), "newer", "local" or "remote"
	// Versioned saves a new version beneath {prefix}/{account}/{unix time}/, or restores Version; the latest if that is missing.
	Versioned bool   `json:"versioned,omitempty"`
	Version   string `json:"version,omitempty"`
	Path      string `json:"path,omitempty"`     // only what is beneath it
	List      bool   `json:"list,omitempty"`     // see what others changed in the bucket
	Contents  bool   `json:"contents,omitempty"` // compare contents, not sizes and times
	DryRun    bool   `json:"dry_run,omitempty"`  // say what would be done
	// DeleteMany allows the sync to delete most files of a side, or all files of a volume whose place in S3 holds nothing. Otherwise that is refused.
	DeleteMany bool `json:"delete_many,omitempty"`
}

// SyncStats is what a sync did.
type SyncStats struct {
	Files     int64        `json:"files"` // sent or received whole
	Bytes     int64        `json:"bytes"`
	Updated   int64        `json:"updated"` // metadata only
	Skipped   int64        `json:"skipped"` // unchanged
	Deleted   int64        `json:"deleted"`
	Conflicts int64        `json:"conflicts"`
	Failed    int64        `json:"failed"`
	Duration  float64      `json:"duration_ms"`
	Rate      float64      `json:"bytes_per_second"`
	Seen      int64        `json:"seen_bytes,omitempty"`  // of files that are done, sent or not; while it goes on
	Total     int64        `json:"total_bytes,omitempty"` // of all files; 0 for as long as that is not known
	Failures  []SyncedPath `json:"failures,omitempty"`    // the first thousand
	Decided   []SyncedPath `json:"decided,omitempty"`     // what was done about conflicts
	// Unconditional says that the S3 server ignores conditions of writes: see docs/s3.md, "Two-way sync".
	Unconditional bool `json:"unconditional,omitempty"`
}

// SyncedPath is a path and what is to say about it.
type SyncedPath struct {
	Path   string `json:"path"`
	Reason string `json:"reason"`
	Remedy string `json:"remedy,omitempty"`
}

// PlannedAction is what a dry run says of a path.
type PlannedAction struct {
	Action   string `json:"action"` // such as "upload" or "delete remote"
	Path     string `json:"path"`
	Size     int64  `json:"size_bytes,omitempty"`
	Conflict string `json:"conflict,omitempty"`
	Reason   string `json:"reason,omitempty"` // of "skip"
}

// Synced is the answer to a VolumeSyncRequest.
type Synced struct {
	Volume    string          `json:"volume"`
	Place     string          `json:"place"` // s3://bucket/prefix/
	Direction string          `json:"direction"`
	Version   string          `json:"version,omitempty"`
	Plan      []PlannedAction `json:"plan,omitempty"` // of a dry run: the first ten thousand
	SyncStats
}

// VolumeVersion is a volume's files at a time, in S3.
type VolumeVersion struct {
	Version string    `json:"version"` // its Unix time
	Created time.Time `json:"created_at"`
	Whole   bool      `json:"whole"` // false if it was never finished
}
