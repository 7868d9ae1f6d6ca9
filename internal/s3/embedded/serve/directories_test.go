package serve

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"
	"github.com/versity/versitygw/backend/posix"
	"github.com/versity/versitygw/s3err"
	"github.com/versity/versitygw/s3response"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
)

// TestNameOfAnEmptyDirectory stores objects under the names of directories that failed uploads have left. A directory
// with an object below it, and one that is an object, stay: versitygw refuses such a name.
func TestNameOfAnEmptyDirectory(t *testing.T) {
	dir := testenv.DataDir(t)
	t.Chdir(dir) // posix.New changes the directory too
	plain, err := posix.New(dir, attributes{}, posix.PosixOpts{CopyObjectThreshold: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	ctx, bucket := t.Context(), aws.String("bucket")
	put := func(be interface {
		PutObject(context.Context, s3response.PutObjectInput) (s3response.PutObjectOutput, error)
	}, key, content string) error {
		t.Helper()
		_, err := be.PutObject(ctx, s3response.PutObjectInput{Bucket: bucket, Key: &key,
			ContentLength: aws.Int64(int64(len(content))), Body: strings.NewReader(content)})
		return err
	}
	d := directories{plain, attributes{}}
	for _, left := range []string{"put/a/b", "put/c", "copy/a", "parts/a", "object/a"} {
		if err := os.MkdirAll(filepath.Join(dir, "bucket", left), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for key, content := range map[string]string{"full/a/f": "content", "object/": "", "source": "content"} {
		if err := put(d, key, content); err != nil {
			t.Fatal(err)
		}
	}

	isDirectory := s3err.GetAPIError(s3err.ErrExistingObjectIsDirectory)
	if err := put(plain, "put", "content"); !errors.Is(err, isDirectory) {
		t.Fatalf("versitygw itself: %v; is the wrapper still needed?", err)
	}
	if err := put(d, "put", "content"); err != nil {
		t.Error(err)
	}
	if _, err := d.CopyObject(ctx, s3response.CopyObjectInput{Bucket: bucket, Key: aws.String("copy"),
		CopySource: aws.String("bucket/source"), ExpectedBucketOwner: aws.String("")}); err != nil {
		t.Errorf("copy: %v", err)
	}
	if err := putParts(t, d, "parts"); err != nil {
		t.Errorf("an upload in parts: %v", err)
	}
	for _, key := range []string{"full", "full/a", "object"} {
		if err := put(d, key, "content"); !errors.Is(err, isDirectory) {
			t.Errorf("%s: %v", key, err)
		}
		if err := putParts(t, d, key); !errors.Is(err, isDirectory) {
			t.Errorf("an upload of %s in parts: %v", key, err)
		}
	}
	for name, want := range map[string]string{"put": "content", "copy": "content", "parts": "content",
		"full/a/f": "content"} {
		if got, err := os.ReadFile(filepath.Join(dir, "bucket", name)); err != nil || string(got) != want {
			t.Errorf("%s has %q: %v", name, got, err)
		}
	}
	if _, err := d.HeadObject(ctx, &s3.HeadObjectInput{Bucket: bucket, Key: aws.String("object/")}); err != nil {
		t.Errorf("the directory that is an object: %v", err)
	}

	d.clear(aws.String("bucket"), aws.String("../../x"))
	d.clear(aws.String(".."), aws.String("x"))
}

// putParts stores an object as one part.
func putParts(t *testing.T, d directories, key string) error {
	t.Helper()
	bucket, number, content := aws.String("bucket"), aws.Int32(1), "content"
	begun, err := d.CreateMultipartUpload(t.Context(), s3response.CreateMultipartUploadInput{Bucket: bucket, Key: &key})
	if err != nil {
		return err
	}
	part, err := d.UploadPart(t.Context(), &s3.UploadPartInput{Bucket: bucket, Key: &key, UploadId: &begun.UploadId,
		PartNumber: number, ContentLength: aws.Int64(int64(len(content))), Body: strings.NewReader(content)})
	if err != nil {
		return err
	}
	_, _, err = d.CompleteMultipartUpload(t.Context(), &s3.CompleteMultipartUploadInput{Bucket: bucket, Key: &key,
		UploadId: &begun.UploadId, MultipartUpload: &types.CompletedMultipartUpload{
			Parts: []types.CompletedPart{{ETag: part.ETag, PartNumber: number}}}})
	return err
}
