// Package storage syncs volumes with S3. It chooses the bucket and the credentials, runs one sync
// of a volume at a time, and keeps the state of the syncs on this machine next to the volume's
// files.
package storage

import (
	"cmp"
	"context"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/engine/volume"
	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
)

// Options configures a Manager.
type Options struct {
	Secrets *secret.Vault
	Server  Server // default place of files
	Packs   bool   // uploads keep packs: see s3sync.Options.Packs
	// Rules returns the addresses that an account's secrets may lead to. If it is nil, they are
	// those of the internet. Server.Endpoint is always allowed.
	Rules func(account string) netguard.Rules
	// Limits of the guard against mass deletion: see s3sync.Options. 0 selects the defaults.
	MaxDeleteFiles, MaxDeletePercent int

	// For the volumes of sandboxes: see Fill and Save.
	Store Store                                                                    // of unsent jobs
	Open  func(ctx context.Context, account, volume string) (volume.Volume, error) // opens a volume
	// Tell is called after every Fill and Save. It may be nil and must return soon.
	Tell func(Told)
}

// Server is the S3 of the server's operator.
type Server struct {
	places.Place        // each volume has its own prefix in it; Bucket is "" for none
	Endpoint     string // "" is AWS; also applies to buckets that requests name
	Region       string // "" selects the region of the secret
	PathStyle    bool
	CAFile       string // PEM file of CAs to trust besides the system's; "" for none
	Proxy        string // URL of an HTTP proxy; "" uses the environment
	Account      string // owner of Secret

	// Local returns the location of a bucket in this machine's own S3 and creates the bucket if it
	// is missing. It is nil if there is no such S3. Requests without a secret use it. Each account
	// has its own buckets: for accounts other than Account they are called BUCKET.ACCOUNT.
	Local func(bucket string) (s3.Location, error)
}

// DefaultSecret is the secret with the S3 credentials for requests that name none.
const DefaultSecret = "aws"

// Request is a sync of a volume.
type Request struct {
	// Place is a bucket of the account, which needs a secret of the account. Without a bucket it is
	// the server's place, at a prefix that belongs to the volume. "" as Secret is DefaultSecret.
	places.Place
	// Versioned saves the volume as a new version, or restores one. Version is the name of the
	// version to restore; "" is the latest.
	Versioned bool
	Version   string
	Sync      s3sync.Options // without State
	// Wait waits for another sync of the volume to end. Otherwise the request fails with Conflict.
	Wait     bool
	Patience time.Duration // limit for retries of a request to S3; 0 means 2 minutes
}

// Result is the outcome of a sync.
type Result struct {
	Place   string // as an s3:// URL
	Version string // the version saved or restored, if any
	Stats   s3sync.Stats
}

// Manager syncs volumes. All methods may be called concurrently.
type Manager struct {
	opts Options

	mu   sync.Mutex
	busy map[string]chan struct{} // guarded by mu; volume directories with a sync in progress; closed at its end

	later later
}

// New returns a Manager.
func New(opts Options) *Manager { return &Manager{opts: opts, busy: map[string]chan struct{}{}} }

// Sync syncs an account's volume with its place in S3. The statistics hold the files that failed;
// the error is the one that ended the sync. Kinds: Conflict while another sync of the volume is in
// progress, Unsupported for volumes that are not on this machine.
func (m *Manager) Sync(ctx context.Context, account string, vol volume.Volume, req Request) (Result, error) {
	waiting, err := m.unsentOf(ctx, account, vol.Name())
	if err != nil {
		return Result{}, err
	}
	res, err := m.syncVolume(ctx, account, vol, req)
	if o := req.Sync; err == nil && o.Direction != plan.Down && !req.Versioned && !o.DryRun && o.Only == "" &&
		len(res.Stats.Refused) == 0 {
		m.sentByHand(ctx, waiting, req.Place, res)
	}
	return res, errors.Stage(err, "sync")
}

// syncVolume is Sync without the error stage, for callers that add their own.
func (m *Manager) syncVolume(ctx context.Context, account string, vol volume.Volume, req Request) (Result, error) {
	here, release, err := m.hold(ctx, vol, req.Wait)
	if err != nil {
		return Result{}, err
	}
	defer release()
	b, err := m.bucket(ctx, account, vol.Name(), req.Place, req.Versioned, orPatience(req.Patience))
	if err != nil {
		return Result{}, err
	}
	defer b.close()
	tree, err := tree.Open(here.Dir())
	if err != nil {
		return Result{}, err
	}
	defer tree.Close()
	root, err := os.OpenRoot(here.Dir())
	if err != nil {
		return Result{}, errors.Wrapf(err, "open a volume")
	}
	defer root.Close()
	if tree.Room, err = volume.Admit(ctx, vol, root); err != nil {
		return Result{}, err
	}
	o := req.Sync
	o.State, o.Owners, o.Packs = filepath.Join(here.Notes(), syncNotes), true, m.opts.Packs
	o.MaxDeleteFiles, o.MaxDeletePercent = m.opts.MaxDeleteFiles, m.opts.MaxDeletePercent
	res := Result{Place: b.String()}
	switch {
	case !req.Versioned:
		res.Stats, err = s3sync.Sync(ctx, tree, b.Bucket, o)
	case o.Direction == plan.Up:
		var v object.Version
		if v, res.Stats, err = s3sync.Save(ctx, tree, b.Bucket, o); err == nil {
			res.Version = v.Name()
		}
	case o.Direction == plan.Down:
		var v object.Version
		if v, err = object.ParseVersion(req.Version); err == nil {
			v, res.Stats, err = s3sync.Restore(ctx, tree, b.Bucket, v, o)
			res.Version = v.Name()
		}
	default:
		err = errors.Remedy(errors.Newf(errors.Invalid, "versions go up or down, not both ways"), "choose a direction")
	}
	return res, err
}

// syncNotes is the part of a volume's notes that holds the state of its syncs. Volumes must not
// share it: files that are missing in one volume would be taken for deleted.
const syncNotes = "s3"

// Versions lists the versions that Sync saved, latest first.
func (m *Manager) Versions(ctx context.Context, account, name string,
	where places.Place) (place string, all []object.Version, err error) {
	b, err := m.bucket(ctx, account, name, where, true, patience)
	if err != nil {
		return "", nil, err
	}
	defer b.close()
	all, err = b.Versions(ctx)
	return b.String(), all, err
}

// Prune deletes all versions but the latest keep ones, and abandoned uploads. It returns the
// deleted versions.
func (m *Manager) Prune(ctx context.Context, account, name string, where places.Place,
	keep int) ([]object.Version, error) {
	b, err := m.bucket(ctx, account, name, where, true, patience)
	if err != nil {
		return nil, err
	}
	defer b.close()
	deleted, err := b.Prune(ctx, keep)
	if err != nil {
		return deleted, err
	}
	_, err = b.Sweep(ctx, object.Stale)
	return deleted, err
}

// errBusy reports that another sync of the volume is in progress.
var errBusy = errors.Newf(errors.Conflict, "the volume is being synchronised already")

// hold reserves a volume for one sync. Until release is called, the volume cannot be deleted and no
// other sync can begin.
func (m *Manager) hold(ctx context.Context, vol volume.Volume,
	wait bool) (here volume.Directory, release func(), err error) {
	d, ok := vol.(volume.Directory)
	if !ok || d.Dir() == "" {
		return nil, nil, errors.Newf(errors.Unsupported, "the volume %s is not on this machine", vol.Name())
	}
	free, err := m.turn(ctx, d, vol.Name(), wait)
	if err != nil {
		return nil, nil, err
	}
	done, err := d.Use("a sync with S3")
	if err != nil {
		free()
		return nil, nil, err
	}
	return d, func() { done(); free() }, nil
}

// turn reserves a volume for one sync until free is called. If another sync is in progress, it
// waits for the end of that sync or returns errBusy, depending on wait.
func (m *Manager) turn(ctx context.Context, d volume.Directory, name string, wait bool) (free func(), err error) {
	dir, mine := d.Dir(), make(chan struct{})
	for {
		m.mu.Lock()
		busy := m.busy[dir]
		if busy == nil {
			m.busy[dir] = mine
		}
		m.mu.Unlock()
		if busy == nil {
			break
		}
		if !wait {
			return nil, errors.Remedy(errors.Explainf(errBusy, errors.Conflict,
				"the volume %s is being synchronised already", name), "wait until that is done")
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, errors.Wrapf(context.Cause(ctx), "wait for another sync of the volume %s", name)
		}
	}
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.busy, dir)
		close(mine)
	}, nil
}

// opened is a bucket whose credentials are hidden from the log while it is open.
type opened struct {
	*object.Bucket
	release func()
}

func (o opened) close() {
	o.Close()
	o.release()
}

// bucket opens a place. Only requests for the server's own place get the server's credentials, and
// only below the volume's prefix.
func (m *Manager) bucket(ctx context.Context, account, name string, where places.Place, versioned bool,
	patience time.Duration) (opened, error) {
	loc, release, err := m.location(ctx, account, name, where, versioned)
	if err != nil {
		return opened{}, err
	}
	loc.Patience = patience
	b, err := object.Open(ctx, loc)
	if err != nil {
		release()
		return opened{}, err
	}
	return opened{b, release}, nil
}

// location returns the location of a place, with the credentials. They are hidden from the log
// until release is called.
func (m *Manager) location(ctx context.Context, account, name string, where places.Place,
	versioned bool) (loc s3.Location, release func(), err error) {
	loc, owner, named, err := m.locate(account, name, where, versioned)
	if err != nil {
		return loc, nil, err
	}
	loc.Rules = m.rules(owner, loc.Bucket)
	if m.isLocal(where) {
		loc, err = m.local(loc, account, where)
		return loc, func() {}, err
	}
	pairs, release, err := m.opts.Secrets.Reveal(ctx, owner, named)
	if err != nil {
		return loc, nil, errors.Remedy(err,
			"store them: harvest secret set %s AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY", named)
	}
	if loc, err = m.withKeys(loc, pairs, owner, named); err != nil {
		release()
	}
	return loc, release, err
}

// rules returns the address rules for a bucket with the credentials of an account.
func (m *Manager) rules(account, bucket string) *netguard.Rules {
	var r netguard.Rules
	if m.opts.Rules != nil {
		r = m.opts.Rules(account)
	}
	if u, err := url.Parse(m.opts.Server.Endpoint); err == nil && u.Host != "" {
		at := u.Host
		if u.Port() == "" {
			port := "443"
			if u.Scheme == "http" {
				port = "80"
			}
			at = net.JoinHostPort(u.Hostname(), port)
		}
		r.Hosts = append(slices.Clone(r.Hosts), at, bucket+"."+at)
	}
	return &r
}

// isLocal reports whether a place is in this machine's own S3.
func (m *Manager) isLocal(where places.Place) bool {
	return m.opts.Server.Local != nil && (where.Bucket == "" || where.Secret == "")
}

// local completes a location in this machine's own S3.
func (m *Manager) local(loc s3.Location, account string, where places.Place) (s3.Location, error) {
	p, bucket := m.opts.Server, loc.Bucket
	if where.Bucket != "" {
		if !localName().MatchString(bucket) {
			return loc, errors.Remedy(errors.Newf(errors.Invalid, "invalid bucket name %.100q in this machine's own S3",
				bucket), "use 3 to 63 small letters, digits and hyphens")
		}
		if account != p.Account {
			bucket += "." + account
		}
	}
	if len(bucket) > maxBucket {
		return loc, errors.Remedy(errors.Newf(errors.Invalid, "the bucket's name %.100q is too long", where.Bucket),
			"use %d characters at most", maxBucket-len(account)-1)
	}
	at, err := p.Local(bucket)
	at.Bucket, at.Prefix = bucket, loc.Prefix
	return at, err
}

// maxBucket is the maximum length of a bucket's name.
const maxBucket = 63

// localName allows no dot: a dot separates the bucket from the account.
var localName = pattern.New(`^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$`)

// locate returns the location of a place without credentials, and the secret that holds them.
func (m *Manager) locate(account, name string, where places.Place,
	versioned bool) (loc s3.Location, owner, secretName string, err error) {
	p := m.opts.Server
	loc = s3.Location{Bucket: where.Bucket, Prefix: where.Prefix, Endpoint: p.Endpoint, Region: p.Region,
		PathStyle: p.PathStyle}
	owner, named := account, where.Secret
	if where.Bucket == "" {
		if p.Bucket == "" {
			return loc, "", "", errors.Remedy(errors.Newf(errors.Invalid,
				"no bucket is named, and the server has none"),
				"name one as s3://BUCKET/PREFIX, or set s3.bucket in the configuration")
		}
		if where.Prefix != "" || where.Secret != "" {
			return loc, "", "", errors.Newf(errors.Invalid, "a prefix or a secret needs a bucket of one's own")
		}
		loc.Bucket, loc.Prefix, owner, named = p.Bucket, join(p.Prefix, account, name), p.Account, p.Secret
		if versioned {
			// No volume has this name. Thus a sync that mirrors the volume and deletes extra
			// objects does not see its versions.
			loc.Prefix = join(p.Prefix, account, versions, name)
		}
	} else if versioned {
		loc.Prefix = join(where.Prefix, account)
	}
	if named == "" {
		named = DefaultSecret
	}
	return loc, owner, named, nil
}

// Location returns the location of a job's files, with the credentials. The caller must keep them
// private. They stay hidden from the log until this process ends.
func (m *Manager) Location(ctx context.Context, job Job) (s3.Location, error) {
	loc, _, err := m.location(ctx, job.Account, job.Volume, job.Place, false)
	return loc, err
}

// withKeys adds the credentials in pairs to a location.
func (m *Manager) withKeys(loc s3.Location, pairs secret.Pairs, owner, named string) (s3.Location, error) {
	p := m.opts.Server
	keys, err := pairs.AWS()
	if err != nil {
		return loc, err
	}
	loc.AccessKeyID, loc.SecretAccessKey, loc.SessionToken = keys.AccessKeyID, keys.SecretAccessKey.Reveal(),
		keys.SessionToken.Reveal()
	loc.RoleARN, loc.ExternalID, loc.TokenFile, loc.Ambient, loc.STS = keys.RoleARN, keys.ExternalID, keys.TokenFile,
		keys.Machine, keys.STS
	loc.Proxy = p.Proxy
	if keys.OfMachine() && owner != p.Account {
		return loc, errors.Remedy(errors.Newf(errors.Denied,
			"the secret %s asks for credentials of the server's machine, which belong to its operator", named),
			"give it AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of your own, with AWS_ROLE_ARN if they are to "+
				"assume a role")
	}
	if loc.Region == "" {
		loc.Region = keys.Region
	}
	loc.PathStyle = loc.PathStyle || keys.PathStyle
	if loc.Endpoint == "" && keys.Endpoint != "" || keys.STS != "" {
		// The server can reach addresses that other accounts must not make it connect to.
		if owner != p.Account {
			return loc, errors.Remedy(errors.Newf(errors.Denied,
				"the secret %s names an endpoint, which only the server's operator may choose", named),
				"leave AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_STS out of it, or have s3.endpoint set in the server's "+
					"configuration")
		}
		loc.Endpoint = cmp.Or(loc.Endpoint, keys.Endpoint)
	}
	if p.CAFile != "" {
		if loc.CA, err = os.ReadFile(p.CAFile); err != nil {
			return loc, errors.Explainf(err, errors.Invalid, "the authorities in s3.ca_file cannot be read")
		}
	}
	return loc, nil
}

// versions is the directory, in the server's place, that holds the versions of an account's
// volumes.
const versions = ".versions"

// patience bounds the retries of a request to S3. After that the sync ends, and a later one
// continues it.
const patience = 2 * time.Minute

func orPatience(d time.Duration) time.Duration {
	if d == 0 {
		return patience
	}
	return d
}

func join(parts ...string) string {
	all := ""
	for _, p := range parts {
		if p != "" && all != "" && all[len(all)-1] != '/' {
			all += "/"
		}
		all += p
	}
	return all
}
