package server

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
)

// TestModalS3 checks that the document's fields of S3 work, with and without a path and a volume.
// mission: 1.3, 6.2
func TestModalS3(t *testing.T) {
	t.Parallel()
	work := []spec.Mount{{Name: "work", Path: "/data"}}
	for name, c := range map[string]struct {
		req     api.ModalRequest
		volumes []spec.Mount
		want    *spec.S3
	}{
		"nothing": {volumes: work},
		"all": {api.ModalRequest{S3BucketName: "b", S3KeyPrefix: "p", S3MountPath: "/s3", S3Secret: "mine",
			InitFromS3: true, SyncToS3: true}, work, &spec.S3{Place: places.Place{Bucket: "b", Prefix: "p",
			Secret: "mine"}, MountPath: "/s3", Init: true, SyncOnTerminate: true}},
		"for the volume": {api.ModalRequest{S3BucketName: "b"}, work, &spec.S3{Place: places.Place{Bucket: "b"},
			MountPath: "/data"}},
		"by itself": {api.ModalRequest{S3BucketName: "b", InitFromS3: true}, nil,
			&spec.S3{Place: places.Place{Bucket: "b"}, MountPath: api.ModalMountPath, Init: true}},
	} {
		if diff := cmp.Diff(c.want, modalS3(c.req, c.volumes)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	made := modalOut(record.Sandbox{S3: &record.S3Volume{S3: *modalS3(api.ModalRequest{S3BucketName: "b",
		S3KeyPrefix: "p"}, nil), SyncError: "S3 is away"}})
	if made.S3Bucket != "b" || made.S3Prefix != "p" || made.S3Path != api.ModalMountPath ||
		made.SyncError != "S3 is away" {
		t.Errorf("shown as %+v", made)
	}
}
