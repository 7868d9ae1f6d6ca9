package app

import (
	"context"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/socket"
	"github.com/RelevanceAI/harvest/internal/app/programs"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/config"
	"github.com/RelevanceAI/harvest/internal/base/event"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/storage"
	"github.com/RelevanceAI/harvest/internal/fleet/transfer"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/internal/store"
)

// openStorage opens the manager that syncs volumes with S3. It resumes uploads that an earlier server could not
// finish.
func (a *App) openStorage(ctx context.Context, db *store.DB, eng engine.Engine) (transfer.Syncer, error) {
	where := place(a.cfg.S3)
	if a.cfg.S3.Endpoint == config.Embedded {
		own, err := startS3(ctx, a.cfg.Data, embeddedS3(a.cfg.Data))
		if err != nil {
			return nil, errors.Stage(err, "embedded S3")
		}
		a.then("the embedded S3", func(context.Context) error { own.Stop(); return nil })
		where = ownPlace(a.cfg.S3, own)
	}
	rules, err := rulesOf(a.cfg)
	if err != nil {
		return nil, err
	}
	a.storage = storage.New(storage.Options{
		Rules:   rules,
		Secrets: a.secrets, Server: where, Packs: a.cfg.S3.Packs, Store: db.Unsent(),
		MaxDeleteFiles: a.cfg.S3.MaxDeleteFiles, MaxDeletePercent: a.cfg.S3.MaxDeletePercent,
		Open: func(ctx context.Context, owner, name string) (volume.Volume, error) {
			return volume.Of(eng.Volumes(), account.Owner(owner)).Open(ctx, name)
		},
		Tell: func(t storage.Told) {
			a.events.Post(ctx, syncDrafts(t)...)
			if t.Direction == plan.Up && t.Err == nil {
				a.sent.note(ctx, t.Account, t.Sandbox)
			}
		},
	})
	a.storage.Start(ctx)
	a.then("the syncs with S3", func(context.Context) error { a.storage.Stop(); return nil })
	return a.storage, nil
}

// sentLater reports late uploads of ended sandboxes to the fleet. Reports wait until there is a fleet.
type sentLater struct {
	mu      sync.Mutex
	fleet   *fleet.Fleet // guarded by mu; nil at first
	waiting [][2]string  // guarded by mu; accounts and sandboxes
}

func (s *sentLater) note(ctx context.Context, owner, id string) {
	s.mu.Lock()
	fleet := s.fleet
	if fleet == nil {
		s.waiting = append(s.waiting, [2]string{owner, id})
	}
	s.mu.Unlock()
	if fleet == nil {
		return
	}
	// The record may have been deleted since.
	if err := fleet.Sent(ctx, owner, id); err != nil && !errors.Is(err, errors.NotFound) {
		logf.Errorf(ctx, "record the upload of sandbox %s's volumes to S3: %v", id, err)
	}
}

// to sets the fleet and delivers the waiting reports.
func (s *sentLater) to(ctx context.Context, fleet *fleet.Fleet) {
	s.mu.Lock()
	s.fleet = fleet
	waiting := s.waiting
	s.waiting = nil
	s.mu.Unlock()
	for _, w := range waiting {
		s.note(ctx, w[0], w[1])
	}
}

// startS3 starts an embedded S3 whose files are in dir, with a program of the data directory.
func startS3(ctx context.Context, data, dir string) (*embedded.Server, error) {
	program, err := programs.S3(filepath.Join(data, "bin"))
	if err != nil {
		return nil, err
	}
	if program == "" && !servesS3 {
		return nil, noPrograms(data)
	}
	return embedded.Start(ctx, embedded.Options{Dir: dir, Executable: program})
}

// noPrograms is the error if a program that package programs should have unpacked into the data directory is missing.
func noPrograms(data string) error {
	return errors.Remedy(errors.Newf(errors.Unsupported, "data directory %s: programs cannot be started from it", data),
		"use a data directory on a file system that is mounted without noexec")
}

// embeddedS3 is the directory of the embedded S3.
func embeddedS3(data string) string { return filepath.Join(data, "s3server") }

// ownBucket is the default bucket of volumes, if the embedded S3 is configured without a bucket.
const ownBucket = "volumes"

// ownPlace is the location of volumes in the embedded S3. A configured secret means another S3.
func ownPlace(c config.S3, own *embedded.Server) storage.Server {
	p := storage.Server{Place: places.Place{Bucket: c.Bucket, Prefix: c.Prefix}, Region: c.Region,
		PathStyle: c.PathStyle, CAFile: c.CAFile,
		Proxy: c.Proxy, Account: personal}
	if p.Bucket == "" {
		p.Bucket = ownBucket
	}
	p.Local = func(bucket string) (s3.Location, error) {
		keys := own.Keys()
		return s3.Location{Endpoint: "http://localhost", Socket: own.Socket(), Region: "us-east-1", PathStyle: true,
				Credentials: s3.Credentials{AccessKeyID: keys.AccessKeyID, SecretAccessKey: keys.SecretAccessKey}},
			own.Bucket(bucket)
	}
	return p
}

// ownS3 reports the state of the embedded S3.
func ownS3(ctx context.Context, data string) finding {
	dir := embeddedS3(data)
	f := finding{Name: "embedded S3", OK: true, Detail: dir}
	if err := noPrograms(data); !servesS3 && !programs.Executable(existing(data)) {
		f.OK, f.Detail, f.Remedy = false, errors.Message(err), errors.RemedyOf(err)
		return f
	}
	if at := existing(dir); unix.Access(data, unix.W_OK) != nil {
		f.Detail += "; created when the server starts"
		return f
	} else if err := embedded.Check(at); err != nil {
		f.OK, f.Detail, f.Remedy = false, errors.Message(err), errors.RemedyOf(err)
		return f
	}
	conn, err := socket.Dial(ctx, dir, embedded.Socket)
	if err != nil {
		f.Detail += "; runs while the server runs"
		return f
	}
	_ = conn.Close()
	f.Detail += "; answers"
	return f
}

// place is the default location of volumes. Its credentials are a secret of the operator.
func place(c config.S3) storage.Server {
	return storage.Server{Place: places.Place{Bucket: c.Bucket, Prefix: c.Prefix, Secret: c.Secret},
		Endpoint: c.Endpoint, Region: c.Region,
		PathStyle: c.PathStyle, CAFile: c.CAFile, Proxy: c.Proxy, Account: personal}
}

// The events of syncs between a sandbox's volume and S3.
const (
	eventSynced     = "volume.synced"
	eventSyncFailed = "volume.sync_failed"
)

// toldFailures is how many failed files an event names: enough to see the problem, and small.
const toldFailures = 100

// syncedData is the data of these events.
type syncedData struct {
	SandboxID string           `json:"sandbox_id"`
	Volume    string           `json:"volume"`
	Place     string           `json:"place,omitempty"` // s3://bucket/prefix/
	Direction string           `json:"direction"`       // "down" before a sandbox is ready, "up" when it ends
	Files     int64            `json:"files"`
	Bytes     int64            `json:"bytes"`
	Updated   int64            `json:"updated"`
	Skipped   int64            `json:"skipped"`
	Failed    int64            `json:"failed"`
	Duration  float64          `json:"duration_ms"`
	Failures  []s3sync.Failure `json:"failures,omitempty"` // the first hundred
	Ignored   []s3sync.Failure `json:"ignored,omitempty"`  // FIFOs, sockets and devices: the first hundred
	Reason    string           `json:"reason,omitempty"`   // of volume.sync_failed, with the two below
	Remedy    string           `json:"remedy,omitempty"`
	Retry     time.Time        `json:"retry_at,omitzero"`
}

// syncDrafts returns the events of a sync, for the streams of the sandbox and of its account.
func syncDrafts(t storage.Told) []event.Draft {
	st := t.Result.Stats
	data := syncedData{SandboxID: t.Sandbox, Volume: t.Volume, Place: t.Result.Place, Direction: string(t.Direction),
		Files: st.Files, Bytes: st.Bytes, Updated: st.Updated,
		Skipped: st.Skipped, Failed: st.Failed, Duration: float64(st.Duration.Microseconds()) / 1000,
		Failures: st.Failures[:min(len(st.Failures), toldFailures)],
		Ignored:  st.Ignored[:min(len(st.Ignored), toldFailures)], Retry: t.Retry}
	kind := eventSynced
	if t.Err != nil {
		kind, data.Reason, data.Remedy = eventSyncFailed, errors.Message(t.Err), errors.RemedyOf(t.Err)
	}
	return []event.Draft{{Stream: t.Sandbox, Type: kind, Data: data}, {Stream: event.AccountStream(t.Account),
		Type: kind, Data: data}}
}
