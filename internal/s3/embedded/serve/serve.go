// Package serve serves a directory as S3: versitygw's gateway over plain files. An object is a file, and its
// metadata are extended attributes. The gateway runs in a separate process (Main), because it changes the
// working directory and may run only once in a process.
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

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/s3/embedded"
)

// Config is the configuration of Serve.
type Config struct {
	Dir       string // must exist; its directories are the buckets
	Address   string // "127.0.0.1:port" or a Unix socket's path
	AccessKey string
	SecretKey string
	Region    string // "" means us-east-1
	CertFile  string // TLS certificate, with KeyFile; "" means plain HTTP
	KeyFile   string
}

// Serve serves until ctx ends. Unsupported if the file system of Dir does not support extended attributes.
func Serve(ctx context.Context, c Config) error {
	if err := embedded.Check(c.Dir); err != nil {
		return err
	}
	be, err := posix.New(c.Dir, attributes{}, posix.PosixOpts{ValidateBucketNames: true, CopyObjectThreshold: 5 << 30})
	if err != nil {
		return errors.Wrapf(err, "open the directory of the embedded S3")
	}
	debug.SetGCPercent(garbage)
	err = embedgw.RunVersityGW(ctx, directories{be, attributes{}}, &embedgw.Config{
		RootUserAccess: c.AccessKey, RootUserSecret: c.SecretKey, Region: c.Region, Ports: []string{c.Address},
		CertFile: c.CertFile, KeyFile: c.KeyFile, Quiet: true, KeepAlive: true, MaxConnections: 10000,
		MaxRequests: 5000, MultipartMaxParts: 10000})
	if ctx.Err() != nil {
		return nil
	}
	return errors.Wrapf(err, "serve S3")
}

// garbage is GOGC, the percentage by which the heap may grow before a garbage collection. Little of the heap
// outlives a request, and the collector shrinks stacks that requests then have to grow again. With 100, both
// together cost a fifth of the processor time.
const garbage = 400

// partsOf is the attribute in which the gateway stores the offsets of a multipart object's parts (versitygw's
// backend/posix, mpMetaKey).
const partsOf = "mp-metadata"

// attributes keeps metadata in extended attributes, for which ext4 has less than 4 KiB. If the list of an
// object's parts does not fit, as with some 800 parts, it is left out. Such an object cannot be read by part
// number, but works otherwise.
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

// usual is a size that nearly all attribute values stay below.
const usual = 1 << 10

// RetrieveAttribute implements meta.MetadataStorer. It reads most attributes with one system call. XattrMeta
// asks for the size first, and each GET of an object reads nine attributes.
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

// attributePrefix is the prefix of attribute names (versitygw's backend/meta, xattrPrefix).
const attributePrefix = "user."
