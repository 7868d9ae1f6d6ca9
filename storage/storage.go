// Package storage brings volumes and S3 together: whose bucket and credentials, one sync of a volume at a time, and what this machine
// remembers of each, which is kept beside the volume's files.
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

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/netguard"
	"github.com/RelevanceAI/harvest/internal/pattern"
	"github.com/RelevanceAI/harvest/s3sync"
	"github.com/RelevanceAI/harvest/secret"
	"github.com/RelevanceAI/harvest/volume"
)

// Options of a Manager.
type Options struct {
	Secrets *secret.Vault
	Place   Place // where files go that are sent nowhere else
	Packs   bool  // syncs up keep packs: s3sync.Options.Packs
	// Rules say which addresses an account's secrets may lead to; nil: those of the internet. Place.Endpoint is always one of them.
	Rules func(account string) netguard.Rules
	// Limits of the guard against mass deletion: see s3sync.Options. 0 means the defaults.
	MaxDeleteFiles, MaxDeletePercent int

	// What the volumes of sandboxes need: see Fill and Save.
	Store Store                                                                    // of what is still to be sent
	Open  func(ctx context.Context, account, volume string) (volume.Volume, error) // opens a volume
	Tell  func(Told)                                                               // is told of every Fill and Save; may be nil; must return soon
}

// Place is the bucket of whoever runs the server. Each volume has a prefix of its own in it.
type Place struct {
	Bucket    string // "" for none
	Prefix    string
	Endpoint  string // "" is AWS; it also counts for buckets that requests name
	Region    string // "" is what the secret says
	PathStyle bool
	CAFile    string // a file with authorities to trust besides the system's, in PEM; "" for none
	Proxy     string // URL of an HTTP proxy on the way there; "" is what the environment says
	Account   string // whose secret it is
	Secret    string // with the credentials

	// Local is how to get to a bucket of this machine's own S3, which it makes if it is missing; nil without one. Whoever names no secret
	// is there. Each account has its own buckets: those of others than Account are called BUCKET.ACCOUNT there.
	Local func(bucket string) (s3sync.Location, error)
}

// DefaultSecret is the one with the credentials of S3, unless somebody names another.
const DefaultSecret = "aws"

// Where says which place in S3 a request is about.
type Where struct {
	// Bucket is one of the account's own, which needs a secret of its own; "" is the place of the server, at a prefix that belongs to the volume.
	Bucket string
	Prefix string // in Bucket
	Secret string // "" is DefaultSecret
}

// Request is a sync of a volume.
type Request struct {
	Where
	// Versioned saves the volume as a new version, or restores one. Version is the one to restore, as its name; "" is the latest.
	Versioned bool
	Version   string
	Sync      s3sync.Options // without State
	// Wait waits for the end of another sync of the volume instead of a Conflict.
	Wait     bool
	Patience time.Duration // how long a request to S3 is tried again; 0 means 2 minutes
}

// Result is what a sync did.
type Result struct {
	Place   string // as an s3:// URL
	Version string // that was saved or restored, if any
	Stats   s3sync.Stats
}

// Manager syncs volumes. All methods may be called concurrently.
type Manager struct {
	opts Options

	mu   sync.Mutex
	busy map[string]chan struct{} // guarded by mu; directories of volumes that are being synchronised; closed at the end of that

	later later
}

// New returns a Manager.
func New(opts Options) *Manager { return &Manager{opts: opts, busy: map[string]chan struct{}{}} }

// Sync makes an account's volume and its place in S3 alike. What failed is in the statistics; the error is for what ended the sync.
// Conflict while another one of the volume is under way, Unsupported for volumes that are not on this machine.
func (m *Manager) Sync(ctx context.Context, account string, vol volume.Volume, req Request) (Result, error) {
	waiting, err := m.unsentOf(ctx, account, vol.Name())
	if err != nil {
		return Result{}, err
	}
	res, err := m.syncVolume(ctx, account, vol, req)
	if o := req.Sync; err == nil && o.Direction != s3sync.Down && !req.Versioned && !o.DryRun && o.Only == "" && len(res.Stats.Refused) == 0 {
		m.sentByHand(ctx, waiting, req.Where, res)
	}
	return res, errors.Stage(err, "sync")
}

// syncVolume is Sync for those who have a name of their own for the step.
func (m *Manager) syncVolume(ctx context.Context, account string, vol volume.Volume, req Request) (Result, error) {
	here, release, err := m.hold(ctx, vol, req.Wait)
	if err != nil {
		return Result{}, err
	}
	defer release()
	b, err := m.bucket(ctx, account, vol.Name(), req.Where, req.Versioned, orPatience(req.Patience))
	if err != nil {
		return Result{}, err
	}
	defer b.close()
	tree, err := s3sync.OpenTree(here.Dir())
	if err != nil {
		return Result{}, err
	}
	defer tree.Close()
	o := req.Sync
	o.State, o.Owners, o.Packs = filepath.Join(here.Notes(), syncNotes), true, m.opts.Packs
	o.MaxDeleteFiles, o.MaxDeletePercent = m.opts.MaxDeleteFiles, m.opts.MaxDeletePercent
	res := Result{Place: b.String()}
	switch {
	case !req.Versioned:
		res.Stats, err = s3sync.Sync(ctx, tree, b.Bucket, o)
	case o.Direction == s3sync.Up:
		var v s3sync.Version
		if v, res.Stats, err = s3sync.Save(ctx, tree, b.Bucket, o); err == nil {
			res.Version = v.Name()
		}
	case o.Direction == s3sync.Down:
		var v s3sync.Version
		if v, err = s3sync.ParseVersion(req.Version); err == nil {
			v, res.Stats, err = s3sync.Restore(ctx, tree, b.Bucket, v, o)
			res.Version = v.Name()
		}
	default:
		err = errors.Remedy(errors.Newf(errors.Invalid, "versions go up or down, not both ways"), "choose a direction")
	}
	return res, err
}

// syncNotes is what of a volume's notes is remembered of its syncs. It must not be another volume's: what that one has, and this one has not,
// would be taken for deleted.
const syncNotes = "s3"

// Versions lists what Sync saved as versions, the latest first.
func (m *Manager) Versions(ctx context.Context, account, name string, where Where) (place string, all []s3sync.Version, err error) {
	b, err := m.bucket(ctx, account, name, where, true, patience)
	if err != nil {
		return "", nil, err
	}
	defer b.close()
	all, err = b.Versions(ctx)
	return b.String(), all, err
}

// Prune deletes all versions but the latest keep ones, with what is left of uploads that nobody continues, and returns those that it
// deleted.
func (m *Manager) Prune(ctx context.Context, account, name string, where Where, keep int) ([]s3sync.Version, error) {
	b, err := m.bucket(ctx, account, name, where, true, patience)
	if err != nil {
		return nil, err
	}
	defer b.close()
	deleted, err := b.Prune(ctx, keep)
	if err != nil {
		return deleted, err
	}
	_, err = b.Sweep(ctx, s3sync.Stale)
	return deleted, err
}

// errBusy is another sync of the volume, for which nobody waits.
var errBusy = errors.Newf(errors.Conflict, "the volume is being synchronised already")

// hold takes a volume for one sync: meanwhile nobody deletes it, and no other sync begins.
func (m *Manager) hold(ctx context.Context, vol volume.Volume, wait bool) (here volume.Directory, release func(), err error) {
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

// turn takes a volume until free is called. Whoever has to wait for another one does, or gets errBusy.
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
			return nil, errors.Remedy(errors.Explainf(errBusy, errors.Conflict, "the volume %s is being synchronised already", name), "wait until that is done")
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

// opened is a bucket whose credentials are hidden from the log for as long as it is open.
type opened struct {
	*s3sync.Bucket
	release func()
}

func (o opened) close() {
	o.Close()
	o.release()
}

// bucket opens a place. Only requests for the server's own place get its credentials, and only beneath the volume's prefix.
func (m *Manager) bucket(ctx context.Context, account, name string, where Where, versioned bool, patience time.Duration) (opened, error) {
	loc, release, err := m.location(ctx, account, name, where, versioned)
	if err != nil {
		return opened{}, err
	}
	loc.Patience = patience
	b, err := s3sync.Open(ctx, loc)
	if err != nil {
		release()
		return opened{}, err
	}
	return opened{b, release}, nil
}

// location says where a place is, with the credentials, which are hidden from the log until release is called.
func (m *Manager) location(ctx context.Context, account, name string, where Where, versioned bool) (loc s3sync.Location, release func(), err error) {
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
		return loc, nil, errors.Remedy(err, "harvest secret set %s AWS_ACCESS_KEY_ID AWS_SECRET_ACCESS_KEY", named)
	}
	if loc, err = m.withKeys(loc, pairs, owner, named); err != nil {
		release()
	}
	return loc, release, err
}

// rules returns the rules for a bucket with the credentials of an account.
func (m *Manager) rules(account, bucket string) *netguard.Rules {
	var r netguard.Rules
	if m.opts.Rules != nil {
		r = m.opts.Rules(account)
	}
	if u, err := url.Parse(m.opts.Place.Endpoint); err == nil && u.Host != "" {
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
func (m *Manager) isLocal(where Where) bool {
	return m.opts.Place.Local != nil && (where.Bucket == "" || where.Secret == "")
}

// local adds to a place of this machine's own S3 how to get there.
func (m *Manager) local(loc s3sync.Location, account string, where Where) (s3sync.Location, error) {
	p, bucket := m.opts.Place, loc.Bucket
	if where.Bucket != "" {
		if !localName().MatchString(bucket) {
			return loc, errors.Remedy(errors.Newf(errors.Invalid, "%.100q cannot be a bucket's name in this machine's own S3", bucket), "use 3 to 63 small letters, digits and hyphens")
		}
		if account != p.Account {
			bucket += "." + account
		}
	}
	if len(bucket) > maxBucket {
		return loc, errors.Remedy(errors.Newf(errors.Invalid, "the bucket's name %.100q is too long", where.Bucket), "use %d characters at most", maxBucket-len(account)-1)
	}
	at, err := p.Local(bucket)
	at.Bucket, at.Prefix = bucket, loc.Prefix
	return at, err
}

// maxBucket is how long a bucket's name may be.
const maxBucket = 63

// localName has no dot: what follows one is an account.
var localName = pattern.New(`^[a-z0-9][a-z0-9-]{1,61}[a-z0-9]$`)

// locate says where a place is, and whose secret has its credentials.
func (m *Manager) locate(account, name string, where Where, versioned bool) (loc s3sync.Location, owner, secretName string, err error) {
	p := m.opts.Place
	loc = s3sync.Location{Bucket: where.Bucket, Prefix: where.Prefix, Endpoint: p.Endpoint, Region: p.Region, PathStyle: p.PathStyle}
	owner, named := account, where.Secret
	if where.Bucket == "" {
		if p.Bucket == "" {
			return loc, "", "", errors.Remedy(errors.Newf(errors.Invalid, "no bucket is named, and the server has none"), "name one as s3://BUCKET/PREFIX, or set s3.bucket in the configuration")
		}
		if where.Prefix != "" || where.Secret != "" {
			return loc, "", "", errors.Newf(errors.Invalid, "a prefix or a secret needs a bucket of one's own")
		}
		loc.Bucket, loc.Prefix, owner, named = p.Bucket, join(p.Prefix, account, name), p.Account, p.Secret
		if versioned {
			// No volume is called so: what mirrors the volume itself, and deletes what it has no more, does not see versions.
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

// Location is where a job's files are, with the credentials, which nobody else may see: they stay hidden from the log for as long as this
// process lives.
func (m *Manager) Location(ctx context.Context, job Job) (s3sync.Location, error) {
	loc, _, err := m.location(ctx, job.Account, job.Volume, job.Where, false)
	return loc, err
}

// withKeys adds the credentials in pairs to a place.
func (m *Manager) withKeys(loc s3sync.Location, pairs secret.Pairs, owner, named string) (s3sync.Location, error) {
	p := m.opts.Place
	keys, err := pairs.AWS()
	if err != nil {
		return loc, err
	}
	loc.AccessKeyID, loc.SecretAccessKey, loc.SessionToken = keys.AccessKeyID, keys.SecretAccessKey.Reveal(), keys.SessionToken.Reveal()
	loc.RoleARN, loc.ExternalID, loc.TokenFile, loc.Ambient, loc.STS = keys.RoleARN, keys.ExternalID, keys.TokenFile, keys.Machine, keys.STS
	loc.Proxy = p.Proxy
	if keys.OfMachine() && owner != p.Account {
		return loc, errors.Remedy(errors.Newf(errors.Denied, "the secret %s asks for credentials of the server's machine, which are of who runs it", named),
			"give it AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY of your own, with AWS_ROLE_ARN if they are to assume a role")
	}
	if loc.Region == "" {
		loc.Region = keys.Region
	}
	loc.PathStyle = loc.PathStyle || keys.PathStyle
	if loc.Endpoint == "" && keys.Endpoint != "" || keys.STS != "" {
		// The server reaches addresses that others must not make it ask.
		if owner != p.Account {
			return loc, errors.Remedy(errors.Newf(errors.Denied, "the secret %s names an endpoint, which only who runs the server may choose", named),
				"leave AWS_ENDPOINT_URL and AWS_ENDPOINT_URL_STS out of it, or have s3.endpoint set in the server's configuration")
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

// versions is the directory of an account that has the versions of its volumes, in the server's place.
const versions = ".versions"

// patience is how long a request to S3 is tried again before a sync ends, to be continued later.
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
