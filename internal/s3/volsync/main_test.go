package volsync

import (
	"os"
	"testing"
	"time"

	"github.com/RelevanceAI/harvest/internal/s3"
	"github.com/RelevanceAI/harvest/internal/s3/object"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

func TestMain(m *testing.M) {
	if spec := os.Getenv("S3SYNC_TEST_CHILD"); spec != "" {
		os.Exit(syncOnce(spec))
	}
	os.Exit(s3test.M{M: m}.Run())
}

// location is a new, empty bucket.
func location(t *testing.T) s3.Location {
	t.Helper()
	url, name := s3test.Bucket(t)
	return s3.Location{Bucket: name, Prefix: "work", Endpoint: url, PathStyle: true, Region: "us-east-1",
		Patience:    20 * time.Second,
		Credentials: s3.Credentials{AccessKeyID: s3test.AccessKey, SecretAccessKey: s3test.SecretKey}}
}

func openBucket(t *testing.T, loc s3.Location) *object.Bucket {
	t.Helper()
	b, err := object.Open(t.Context(), loc)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	return b
}

func openTree(t *testing.T, dir string) *tree.Tree {
	t.Helper()
	tree, err := tree.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tree.Close() })
	return tree
}
