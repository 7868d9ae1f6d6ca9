// Package s3server serves a directory as S3, for tests and benchmarks. It is versitygw's gateway over plain files: an
// object is a file, its metadata are extended attributes. It is no part of the program (decision 015), and runs in a process of its own, since the gateway changes its
// process's directory and may run once per process only.
package s3server

import (
	"context"

	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/embedgw"

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
	if err := (meta.XattrMeta{}).Test(c.Dir); err != nil {
		return errors.Remedy(errors.Explainf(err, errors.Unsupported, "the file system of the embedded S3 keeps no extended attributes"), "move it to ext4, xfs or btrfs")
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
