// Package serve serves a directory as S3: versitygw's gateway over plain files. An object is a file, its metadata are extended attributes. It
// runs in a process of its own (Main), since the gateway changes its process's directory and may run once per process only.
package serve

import (
	"context"
	"os"
	"path/filepath"
	"runtime/debug"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"github.com/versity/versitygw/s3err"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/s3server"
)

// Config says what to serve, where and for whom.
type Config struct {
	Dir       string // its directories are the buckets; must be there
	Address   string // "127.0.0.1:port" or a Unix socket's path
	AccessKey string
	SecretKey string
	Region    string // "" is us-east-1
	CertFile  string // of TLS, with KeyFile; "" is plain HTTP
	KeyFile   string
}

// Serve serves until ctx ends. Unsupported if the file system of Dir keeps no extended attributes.
func Serve(ctx context.Context, c Config) error {
	if err := s3server.Check(c.Dir); err != nil {
		return err
	}
	be, err := posix.New(c.Dir, attributes{}, posix.PosixOpts{ValidateBucketNames: true, CopyObjectThreshold: 5 << 30})
	if err != nil {
		return errors.Wrapf(err, "open the directory of the embedded S3")
	}
	debug.SetGCPercent(garbage)
	err = embedgw.RunVersityGW(ctx, be, &embedgw.Config{RootUserAccess: c.AccessKey, RootUserSecret: c.SecretKey, Region: c.Region, Ports: []string{c.Address},
		CertFile: c.CertFile, KeyFile: c.KeyFile, Quiet: true, KeepAlive: true, MaxConnections: 10000, MaxRequests: 5000, MultipartMaxParts: 10000})
	if ctx.Err() != nil {
		return nil
	}
	return errors.Wrapf(err, "serve S3")
}

// garbage is by how many percent the heap may grow before the garbage collector runs. Little of it lives longer than a request, and the collector
// takes the space from stacks that requests then have to grow again: with 100, together a fifth of the processor time.
const garbage = 400

// partsOf is the attribute in which the gateway notes where the parts of an object began that came in parts (versitygw's backend/posix, mpMetaKey).
const partsOf = "mp-metadata"

// attributes keeps metadata in extended attributes, of which ext4 has room for less than 4 KiB. Where the list of an object's parts does not fit, as
// with some 800, the object has none: it cannot be asked for by the numbers of its parts, and is as good as others otherwise.
type attributes struct{ meta.XattrMeta }

// StoreAttribute implements meta.MetadataStorer.
func (a attributes) StoreAttribute(f *os.File, bucket, object, name string, value []byte) error {
	err := a.XattrMeta.StoreAttribute(f, bucket, object, name, value)
	full := errors.Is(err, unix.E2BIG) || errors.Is(err, s3err.GetAPIError(s3err.ErrNoSpaceLeftOnDevice))
	if name == partsOf && full {
		return nil
	}
	return err
}

// usual is the size of a value that nearly all attributes stay below.
const usual = 1 << 10

// RetrieveAttribute implements meta.MetadataStorer, as what it is made of does, with one question for most attributes, where that asks for the size
// first: there are nine in each GET of an object.
func (a attributes) RetrieveAttribute(f *os.File, bucket, object, name string) ([]byte, error) {
	var small [usual]byte
	var n int
	var err error
	if f != nil {
		n, err = unix.Fgetxattr(int(f.Fd()), attributePrefix+name, small[:])
	} else {
		n, err = unix.Getxattr(filepath.Join(bucket, object), attributePrefix+name, small[:])
	}
	switch {
	case err == nil && n > 0:
		return append([]byte(nil), small[:n]...), nil
	case errors.Is(err, unix.ENODATA):
		return nil, meta.ErrNoSuchKey
	}
	return a.XattrMeta.RetrieveAttribute(f, bucket, object, name)
}

// attributePrefix is before the names of attributes (versitygw's backend/meta, xattrPrefix).
const attributePrefix = "user."
