package spec

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/base/secret"
)

// S3 is a location in S3 for the files of the volume at MountPath. The volume is one of the request's volumes, or
// else one for this bucket and prefix that all sandboxes of the account with the same location share.
type S3 struct {
	places.Place
	MountPath string `json:"mount_path"`
	// Init copies the files from S3 into the volume before the sandbox is ready. It does not if another sandbox that
	// has done so still uses the volume: its files are newer.
	Init bool `json:"init,omitempty"`
	// SyncOnTerminate copies the volume to S3 when the sandbox ends, in whatever way. It does not delete objects. If
	// it fails, the sandbox ends anyway, and the copy is retried.
	SyncOnTerminate bool `json:"sync_on_terminate,omitempty"`
	// SyncEverySeconds is the interval at which the volume is copied to S3 while the sandbox runs; 0 means never.
	SyncEverySeconds float64 `json:"sync_every_seconds,omitempty"`
	// Mount mounts the bucket itself at MountPath, without a volume: a file is stored as soon as it is closed.
	Mount    bool `json:"mount,omitempty"`
	ReadOnly bool `json:"read_only,omitempty"` // of Mount
}

const (
	maxPrefix    = 900 // of the 1,024 bytes of a key
	nameOfBucket = 40  // bytes of its name in a volume's name
	leastEvery   = 5 * time.Second
	mostEvery    = 24 * time.Hour
)

// bucketPattern matches names of buckets:
// https://docs.aws.amazon.com/AmazonS3/latest/userguide/bucketnamingrules.html, and the names that older buckets may
// have.
var bucketPattern = pattern.New(`^[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]$`)

// synced is the volume of a request with S3.
type synced struct {
	name string // "" without one
	own  bool   // the volume is named after the location
}

// withS3 adds the volume for req.S3, unless a volume at its path exists.
func (r Rules) withS3(p *Problems, req Request) (Request, synced) {
	if req.S3 == nil {
		return req, synced{}
	}
	out := *req.S3
	if !r.S3 {
		p.Addf(errors.Unsupported, "omit s3, and use a volume", "this server does not support S3")
		return req, synced{}
	}
	if out.Bucket == "" && (out.Prefix != "" || out.Secret != "") {
		p.Invalidf("name a bucket, too", "s3: prefix or secret without a bucket")
	}
	if out.Bucket != "" && !bucketPattern().MatchString(out.Bucket) {
		p.Invalidf("give the name without s3:// and without a prefix", "invalid bucket %.100q", out.Bucket)
	}
	if !isText(out.Prefix, maxPrefix) {
		p.Invalidf("use up to 900 bytes of text in one line", "invalid prefix %.100q", out.Prefix)
	}
	// The condition also rejects NaN.
	if every := out.SyncEverySeconds; every != 0 && !(every >= leastEvery.Seconds() && every <= mostEvery.Seconds()) {
		p.Invalidf(fmt.Sprintf("give a number from %v to %v, or 0 for no uploads at intervals", leastEvery.Seconds(),
			mostEvery.Seconds()), "invalid sync_every_seconds of s3: %v", every)
	}
	if out.Secret != "" {
		p.Add(secret.CheckName(out.Secret))
	}
	if out.Mount || out.ReadOnly {
		r.checkS3Mount(p, out, req.Volumes)
		return req, synced{}
	}
	if r.Can.Views {
		p.Addf(errors.Unsupported, "omit s3, and copy the files in and out",
			"volumes of the engine %s cannot be synchronized with S3: their files are not on this machine",
			r.Engine)
	}
	for _, m := range req.Volumes {
		if m.Path == out.MountPath {
			return req, synced{name: m.Name}
		}
	}
	if out.Bucket == "" {
		p.Invalidf("name a bucket, or a volume with the same path", "s3: no bucket, and no volume at %.200q",
			out.MountPath)
		return req, synced{}
	}
	name := s3VolumeName(out.Bucket, out.Prefix)
	req.Volumes = append(req.Volumes[:len(req.Volumes):len(req.Volumes)], Mount{Name: name, Path: out.MountPath})
	return req, synced{name: name, own: true}
}

// s3VolumeName returns the name of the volume for a location. Volumes belong to accounts, so equal names of different
// accounts are different volumes.
func s3VolumeName(bucket, prefix string) string {
	sum := sha256.Sum256([]byte(bucket + "/" + strings.Trim(prefix, "/")))
	return "s3-" + bucket[:min(len(bucket), nameOfBucket)] + "-" + hex.EncodeToString(sum[:6])
}

// checkS3Mount validates an S3 request with Mount.
func (r Rules) checkS3Mount(p *Problems, s S3, volumes []Mount) {
	switch {
	case !s.Mount:
		p.Invalidf("mount the bucket, or omit read_only", "s3: only a mount can be read-only")
	case s.Bucket == "":
		p.Invalidf("name a bucket", "s3: a mount needs a bucket")
	case s.Init || s.SyncOnTerminate || s.SyncEverySeconds != 0:
		p.Invalidf("omit init, sync and sync_every_seconds: a mount is the bucket itself",
			"s3: a mount is neither downloaded first nor uploaded at the end")
	}
	if !r.Can.Buckets && (!r.Mounts || !r.Can.Dirs) {
		p.Addf(errors.Unsupported, "omit mount, to have the files copied", "the engine %s cannot mount S3",
			r.Engine)
	}
	// Its path has the same restrictions as those of volumes.
	checkMounts(p, append(volumes[:len(volumes):len(volumes)], Mount{Name: s3VolumeName(s.Bucket, s.Prefix),
		Path: s.MountPath, ReadOnly: s.ReadOnly}))
}
