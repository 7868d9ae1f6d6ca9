package volsync

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/s3"
)

// TestModelMinIO checks that two-way synchronization loses nothing on MinIO, a third implementation of S3.
// HARVEST_TEST_MINIO is its program, which `make test-s3` builds from tools/peers/minio.
// mission: D1, D2
func TestModelMinIO(t *testing.T) {
	testenv.Long(t)
	program := os.Getenv("HARVEST_TEST_MINIO")
	if program == "" {
		t.Skip("no MinIO: make test-s3 builds it, and runs this test")
	}
	loc := startMinIO(t, program)
	var buckets atomic.Int64
	model(t, func(t *testing.T) modelServer {
		at := loc
		at.Bucket = "bucket" + strconv.FormatInt(buckets.Add(1), 10)
		_, err := sdkOf(openBucket(t, at)).CreateBucket(t.Context(), &sdk.CreateBucketInput{Bucket: &at.Bucket})
		must(t, err)
		return modelAt(t, at)
	})
}

// startMinIO starts MinIO until the test ends, and returns a location without a bucket.
func startMinIO(t *testing.T, program string) s3.Location {
	t.Helper()
	const user, password = "the-user-of-tests", "a-secret-of-the-tests"
	address := "127.0.0.1:" + testenv.FreePort(t)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, "server", "--quiet", "--address",
		address, t.TempDir())
	cmd.Env = append(os.Environ(), "MINIO_ROOT_USER="+user, "MINIO_ROOT_PASSWORD="+password, "MINIO_BROWSER=off",
		"MINIO_UPDATE=off")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	testenv.Eventually(t, "MinIO is ready", func() bool {
		resp, err := http.Get("http://" + address + "/minio/health/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	})
	return s3.Location{Bucket: "none", Prefix: "work", Endpoint: "http://" + address, PathStyle: true,
		Region:      "us-east-1",
		Patience:    20 * time.Second,
		Credentials: s3.Credentials{AccessKeyID: user, SecretAccessKey: password}}
}
