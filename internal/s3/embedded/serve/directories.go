package serve

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/versity/versitygw/backend/meta"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"
	"golang.org/x/sys/unix"

	"github.com/RelevanceAI/harvest/client/errors"
)

// directories is the gateway's backend, except that an object may have the name of an empty directory. The gateway
// creates the directories above an object before it stores the object, and does not remove them if the upload fails,
// for example at a condition. Later uploads to the name of such a directory would fail for ever
// (ExistingObjectIsDirectory), although the bucket has nothing there.
type directories struct {
	*posix.Posix
	meta meta.MetadataStorer
}

// PutObject implements backend.Backend.
func (d directories) PutObject(ctx context.Context, in s3response.PutObjectInput) (s3response.PutObjectOutput, error) {
	d.clear(in.Bucket, in.Key)
	return d.Posix.PutObject(ctx, in)
}

// CopyObject implements backend.Backend.
func (d directories) CopyObject(ctx context.Context, in s3response.CopyObjectInput) (s3response.CopyObjectOutput,
	error) {
	d.clear(in.Bucket, in.Key)
	return d.Posix.CopyObject(ctx, in)
}

// CompleteMultipartUpload implements backend.Backend.
func (d directories) CompleteMultipartUpload(ctx context.Context, in *s3.CompleteMultipartUploadInput) (
	s3response.CompleteMultipartUploadResult, string, error) {
	d.clear(in.Bucket, in.Key)
	res, version, err := d.Posix.CompleteMultipartUpload(ctx, in)
	if errors.Is(err, unix.EISDIR) { // the gateway checks this for uploads in one piece only
		err = s3err.GetAPIError(s3err.ErrExistingObjectIsDirectory)
	}
	return res, version, err
}

// clear removes the directory with the name of an object, if it and all directories below it are empty and are no
// objects. An upload that is about to store an object below creates its directories again.
func (d directories) clear(bucket, key *string) {
	object := aws.ToString(key)
	path := filepath.Join(aws.ToString(bucket), object)
	if strings.HasSuffix(object, "/") || !filepath.IsLocal(object) || !filepath.IsLocal(path) {
		return
	}
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		d.remove(path)
	}
}

// remove reports whether it has removed a directory.
func (d directories) remove(path string) bool {
	if _, err := d.meta.RetrieveAttribute(nil, path, "", etagAttribute); !errors.Is(err, meta.ErrNoSuchKey) {
		return false
	}
	below, err := os.ReadDir(path)
	if err != nil {
		return false
	}
	for _, e := range below {
		if !e.IsDir() || !d.remove(filepath.Join(path, e.Name())) {
			return false
		}
	}
	return os.Remove(path) == nil
}

// etagAttribute is the attribute that makes a directory an object (versitygw's backend/posix, etagkey).
const etagAttribute = "etag"
