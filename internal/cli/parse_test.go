package cli

import (
	"testing"

	"github.com/RelevanceAI/harvest/client/api"
)

func TestParseS3(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]api.S3{
		"s3://b/p/q:/data":  {Place: api.Place{Bucket: "b", Prefix: "p/q"}, MountPath: "/data"},
		"s3://b:/data:init": {Place: api.Place{Bucket: "b"}, MountPath: "/data", Init: true},
		"s3://b/p:/x:/data:sync:init": {Place: api.Place{Bucket: "b", Prefix: "p:/x"}, MountPath: "/data", Init: true,
			SyncOnTerminate: true},
		"s3:/data:sync": {MountPath: "/data", SyncOnTerminate: true},
		"s3://b/p:/data:every=90s": {Place: api.Place{Bucket: "b", Prefix: "p"}, MountPath: "/data",
			SyncEverySeconds: 90},
		"s3:/data:init:every=5m:sync": {MountPath: "/data", Init: true, SyncOnTerminate: true, SyncEverySeconds: 300},
		"s3://b/p:every=x:/data":      {Place: api.Place{Bucket: "b", Prefix: "p:every=x"}, MountPath: "/data"},
		"s3://b/p:/data:mount":        {Place: api.Place{Bucket: "b", Prefix: "p"}, MountPath: "/data", Mount: true},
		"s3://b/ro:/data:mount:ro": {Place: api.Place{Bucket: "b", Prefix: "ro"}, MountPath: "/data", Mount: true,
			ReadOnly: true},
		"s3://b/init:/data:init:sync": {Place: api.Place{Bucket: "b", Prefix: "init"}, MountPath: "/data", Init: true,
			SyncOnTerminate: true},
	} {
		if got, err := parseS3(text, ""); err != nil || *got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
	}
	for _, text := range []string{"b:/data", "s3://b/p", "s3://:/data", "s3:work", "s3://", "s3:", "s3:/data:every=",
		"s3:/data:every=-5m", "s3:/data:every=5"} {
		if got, err := parseS3(text, ""); err == nil {
			t.Errorf("%s: %+v", text, got)
		}
	}
	if _, err := parseS3("", "aws"); err == nil {
		t.Error("a secret for nothing")
	}
	if got, err := parseS3("", ""); got != nil || err != nil {
		t.Errorf("nothing: %+v, %v", got, err)
	}
}
