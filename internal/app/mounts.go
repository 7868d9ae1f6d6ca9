package app

import (
	"context"
	"path/filepath"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/places"
	modalengine "github.com/RelevanceAI/harvest/internal/engine/modal"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
	"github.com/RelevanceAI/harvest/internal/fleet/transfer"
	"github.com/RelevanceAI/harvest/internal/s3"
	s3mount "github.com/RelevanceAI/harvest/internal/s3/mount"
	"github.com/RelevanceAI/harvest/internal/s3/object"
)

// openMounts opens the manager that mounts S3 for sandboxes. openStorage comes first.
func (a *App) openMounts(ctx context.Context) (transfer.Mounter, error) {
	m := &mounter{lost: func(string, string) {}}
	var err error
	m.Manager, err = s3mount.Open(ctx, s3mount.Options{
		Dir: filepath.Join(a.cfg.Data, "mounts"),
		Locate: func(ctx context.Context, about s3mount.About) (s3.Location, error) {
			return a.storage.Location(ctx, storage.Job{Sandbox: about.Sandbox, Account: about.Account,
				Place: about.Place})
		},
		Tell: func(t s3mount.Told) {
			if t.What == s3mount.Lost {
				m.lost(t.Sandbox, t.Reason)
			}
			a.events.Post(ctx, mountDrafts(t)...)
			if t.What == s3mount.Sent {
				a.sent.note(ctx, t.Account, t.Sandbox)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	a.mounts = m.Manager
	a.then("the mounts of S3", func(context.Context) error { m.Close(); return nil })
	return m, nil
}

// setOwner is gvisor.Options.SetOwner: mounts of S3 show the users of their sandboxes.
func (a *App) setOwner(ctx context.Context, dir string, first int) (bool, error) {
	if a.mounts == nil {
		return false, nil
	}
	return a.mounts.SetOwner(ctx, dir, first)
}

// bucketPatience is how long S3 may take to confirm that a bucket exists.
const bucketPatience = 15 * time.Second

// bucketAt is a bucketFinder. It checks the bucket itself, because Modal's mount may report a refusal less
// clearly. An S3 that does not answer here is no error: it may answer where the bucket is mounted.
func (a *App) bucketAt(ctx context.Context, owner string, b places.Place) (modalengine.Place, error) {
	if a.cfg.S3.Endpoint == config.Embedded && b.Secret == "" {
		return modalengine.Place{Local: true}, nil
	}
	loc, err := a.storage.Location(ctx, storage.Job{Account: owner, Place: b})
	if err != nil {
		return modalengine.Place{}, err
	}
	if len(loc.CA) > 0 {
		return modalengine.Place{}, errors.Remedy(errors.Newf(errors.Unsupported, "Modal does not support s3.ca_file"),
			"use an S3 server with a certificate of a public authority")
	}
	if loc.RoleARN != "" || loc.Ambient {
		return modalengine.Place{}, errors.Remedy(errors.Newf(errors.Unsupported,
			"Modal cannot assume roles, and has no credentials of this machine"),
			"name a secret with an access key for the bucket itself")
	}
	loc.Patience = bucketPatience
	bucket, err := object.Open(ctx, loc)
	if err != nil {
		return modalengine.Place{}, err
	}
	defer bucket.Close()
	checking, cancel := context.WithTimeout(ctx, 2*bucketPatience)
	defer cancel()
	if err := bucket.Check(checking); err != nil && checking.Err() == nil && errors.KindOf(err) != errors.Unavailable {
		return modalengine.Place{}, err
	}
	return modalengine.Place{
		Endpoint: loc.Endpoint, Region: loc.Region, PathStyle: loc.PathStyle, Local: loc.Socket != "",
		AccessKeyID: loc.AccessKeyID, SecretAccessKey: loc.SecretAccessKey, SessionToken: loc.SessionToken,
	}, nil
}

// mounter implements transfer.Mounter with the Manager of mounts.
type mounter struct {
	*s3mount.Manager
	lost func(sandbox, reason string)
}

// Watch implements transfer.Mounter, as does Mount.
func (m *mounter) Watch(lost func(sandbox, reason string)) { m.lost = lost }

// Mount mounts an S3 location.
func (m *mounter) Mount(ctx context.Context, j storage.Job, readOnly bool, limit int64) (string, error) {
	return m.Manager.Mount(ctx, s3mount.About{Sandbox: j.Sandbox, Account: j.Account, Place: j.Place,
		ReadOnly: readOnly, Limit: limit})
}

// mountData is the data of the events of a mount: s3.file_failed, s3.lost, s3.left and s3.sent.
type mountData struct {
	SandboxID    string           `json:"sandbox_id"`
	places.Place                  // without the secret
	Path         string           `json:"path,omitempty"` // in the mount
	Reason       string           `json:"reason,omitempty"`
	Dir          string           `json:"directory,omitempty"` // local directory that keeps the files not yet stored
	Unsent       []s3mount.Unsent `json:"unsent,omitempty"`    // the first hundred
}

// mountDrafts returns the events of a mount, for the streams of the sandbox and of its account.
func mountDrafts(t s3mount.Told) []event.Draft {
	data := mountData{SandboxID: t.Sandbox, Place: places.Place{Bucket: t.Bucket, Prefix: t.Prefix}, Path: t.Path,
		Reason: t.Reason,
		Dir:    t.Dir, Unsent: t.Unsent[:min(len(t.Unsent), toldFailures)]}
	kind := "s3." + string(t.What)
	return []event.Draft{{Stream: t.Sandbox, Type: kind, Data: data}, {Stream: event.AccountStream(t.Account),
		Type: kind, Data: data}}
}

// mountsOfS3 checks whether S3 can be mounted on this machine.
func mountsOfS3() finding {
	f := finding{Name: "mounts of S3", OK: true, Detail: "FUSE works"}
	if err := s3mount.Check(); err != nil {
		f.OK, f.Detail, f.Remedy = false, errors.Message(err), errors.RemedyOf(err)
		f.Fix = "fuse3"
	}
	return f
}
