// Package s3server serves a directory as S3: for who has no other (Start), for tests, and for benchmarks. It is versitygw's gateway over
// plain files: an object is a file, its metadata are extended attributes. It runs in a process of its own, since the gateway changes its
// process's directory and may run once per process only.
package s3server

import (
	"context"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/errors"
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
	if err := Check(c.Dir); err != nil {
		return err
	}
	be, err := posix.New(c.Dir, meta.XattrMeta{}, posix.PosixOpts{ValidateBucketNames: true, CopyObjectThreshold: 5 << 30})
	if err != nil {
		return errors.Wrapf(err, "open the directory of the embedded S3")
	}
	err = embedgw.RunVersityGW(ctx, be, &embedgw.Config{RootUserAccess: c.AccessKey, RootUserSecret: c.SecretKey, Region: c.Region, Ports: []string{c.Address},
		CertFile: c.CertFile, KeyFile: c.KeyFile, Quiet: true, KeepAlive: true, MaxConnections: 10000, MaxRequests: 5000, MultipartMaxParts: 10000})
	if ctx.Err() != nil {
		return nil
	}
	return errors.Wrapf(err, "serve S3")
}

// Check returns nil if a directory can be served. Unsupported if its file system keeps no extended attributes.
func Check(dir string) error {
	const probe = "user.harvest.probe"
	err := unix.Setxattr(dir, probe, []byte("x"), 0)
	if err == nil {
		err = unix.Removexattr(dir, probe)
	}
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.EPERM) {
		return errors.Remedy(errors.Explainf(err, errors.Unsupported, "the file system of the embedded S3 keeps no extended attributes"),
			"have the data directory on ext4, xfs or btrfs")
	}
	return errors.Wrapf(err, "look at the file system of the embedded S3")
}
