package storage

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/base/secret"
	"github.com/RelevanceAI/harvest/internal/s3"
	s3sync "github.com/RelevanceAI/harvest/internal/s3/volsync"
	"github.com/RelevanceAI/harvest/internal/s3/volsync/plan"
	"github.com/RelevanceAI/harvest/test/stubs/s3test"
)

// TestLocal checks that on a machine with its own S3, a request without a secret uses that S3, with separate buckets
// for each account, and that a request with a secret goes elsewhere.
// mission: 2.7, 9.3
func TestLocal(t *testing.T) {
	t.Parallel()
	var asked []string
	failing := false
	h := newHome(t, func(o *Options) {
		url := o.Server.Endpoint
		o.Server.Endpoint, o.Server.Prefix, o.Server.Secret = "", "", ""
		s3test.Named(t, "mine")
		s3test.Named(t, "mine.acme")
		o.Server.Local = func(bucket string) (s3.Location, error) {
			asked = append(asked, bucket)
			if failing {
				return s3.Location{}, errors.Newf(errors.Exhausted, "no room")
			}
			return s3.Location{Endpoint: url, PathStyle: true,
				Credentials: s3.Credentials{AccessKeyID: s3test.AccessKey, SecretAccessKey: s3test.SecretKey}}, nil
		}
	})
	v := h.volume(t, "data", "a.txt")
	for account, want := range map[string]string{"operator": "s3://mine/x/", "acme": "s3://mine.acme/x/"} {
		if res := h.sync(t, account, v, Request{Place: places.Place{Bucket: "mine", Prefix: "x"},
			Sync: s3sync.Options{Direction: plan.Up, List: true}}); res.Place != want {
			t.Errorf("%s is at %s, want %s", account, res.Place, want)
		}
		bucket := strings.Split(want, "/")[2]
		if there, err := filepath.Glob(filepath.Join(s3test.Dir(bucket), "x", "a.txt")); err != nil || len(there) != 1 {
			t.Errorf("%s has %s, %v", bucket, there, err)
		}
	}
	if res := h.sync(t, "acme", v,
		Request{Sync: s3sync.Options{Direction: plan.Up}}); res.Place != "s3://"+h.bucket+"/acme/data/" {
		t.Errorf("the server's bucket is %s", res.Place)
	}
	loc, err := h.Location(t.Context(), Job{Account: "acme", Place: places.Place{Bucket: "mine", Prefix: "y"}})
	if err != nil || loc.Bucket != "mine.acme" || loc.Prefix != "y" || loc.SecretAccessKey != s3test.SecretKey {
		t.Errorf("the location is %s/%s, %v", loc.Bucket, loc.Prefix, err)
	}
	long := strings.Repeat("b", 60)
	for _, name := range []string{"mine.acme", "Mine", "b", "-b-", "b/c", "..", long + long, long} {
		if _, err := h.Location(t.Context(),
			Job{Account: "acme", Place: places.Place{Bucket: name}}); errors.KindOf(err) != errors.Invalid ||
			errors.RemedyOf(err) == "" {
			t.Errorf("the bucket %s: %v", name, err)
		}
	}
	before := len(asked)
	_, err = h.vault.Set(t.Context(), "acme", "own", secret.Pairs{"AWS_ACCESS_KEY_ID": "AKIAOTHER",
		"AWS_SECRET_ACCESS_KEY": "x"}, secret.Replace)
	must(t, err)
	loc, err = h.Location(t.Context(), Job{Account: "acme", Place: places.Place{Bucket: "mine", Secret: "own"}})
	if err != nil || loc.Bucket != "mine" || loc.AccessKeyID != "AKIAOTHER" || loc.Endpoint != "" ||
		len(asked) != before {
		t.Errorf("with a secret: %s at %q, %v", loc.Bucket, loc.Endpoint, err)
	}
	failing = true
	if _, err := h.Location(t.Context(),
		Job{Account: "acme", Place: places.Place{Bucket: "mine"}}); errors.KindOf(err) != errors.Exhausted {
		t.Errorf("a bucket that cannot be made: %v", err)
	}
}
