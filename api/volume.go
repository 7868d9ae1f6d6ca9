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
