package object

import (
	"net/http"
	"strings"
	"testing"

	"github.com/aws/aws-sdk-go-v2/aws"
	sdk "github.com/aws/aws-sdk-go-v2/service/s3"

	"github.com/RelevanceAI/harvest/internal/s3"
)

// TestAddresses checks that requests go to the address of the bucket's provider, both from this package and from the
// SDK.
// mission: 2.7
func TestAddresses(t *testing.T) {
	t.Parallel()
	keys := s3.Credentials{AccessKeyID: "AKIA", SecretAccessKey: "key"}
	for name, c := range map[string]struct {
		loc    s3.Location
		base   string
		host   string // if another than of base
		region string
	}{
		"AWS": {s3.Location{Bucket: "files"}, "https://files.s3.us-east-1.amazonaws.com",
			"", "us-east-1"},
		"AWS Europe": {s3.Location{Bucket: "files", Region: "eu-central-1"},
			"https://files.s3.eu-central-1.amazonaws.com", "", "eu-central-1"},
		"AWS China": {s3.Location{Bucket: "files", Region: "cn-north-1"},
			"https://files.s3.cn-north-1.amazonaws.com.cn", "", "cn-north-1"},
		"AWS, dots": {s3.Location{Bucket: "my.files", Region: "eu-central-1"},
			"https://s3.eu-central-1.amazonaws.com/my.files", "", "eu-central-1"},
		"AWS, path": {s3.Location{Bucket: "files", Region: "eu-central-1", PathStyle: true},
			"https://s3.eu-central-1.amazonaws.com/files", "", "eu-central-1"},
		"AWS, capitals": {s3.Location{Bucket: "Old_Files"}, "https://s3.us-east-1.amazonaws.com/Old_Files",
			"", "us-east-1"},
		"R2": {s3.Location{Bucket: "files", Region: "auto",
			Endpoint: "https://0123abc.r2.cloudflarestorage.com"},
			"https://files.0123abc.r2.cloudflarestorage.com", "", "auto"},
		"R2, path": {s3.Location{Bucket: "files", Region: "auto",
			Endpoint: "https://0123abc.r2.cloudflarestorage.com/", PathStyle: true},
			"https://0123abc.r2.cloudflarestorage.com/files", "", "auto"},
		"Google": {s3.Location{Bucket: "files", Region: "auto",
			Endpoint: "https://storage.googleapis.com"}, "https://files.storage.googleapis.com", "", "auto"},
		"Google, path": {s3.Location{Bucket: "files", Region: "auto", Endpoint: "https://storage.googleapis.com",
			PathStyle: true}, "https://storage.googleapis.com/files", "", "auto"},
		"Google, dots": {s3.Location{Bucket: "files.example.org", Endpoint: "https://storage.googleapis.com"},
			"https://storage.googleapis.com/files.example.org", "", "us-east-1"},
		"MinIO": {s3.Location{Bucket: "files", Endpoint: "http://minio:9000", PathStyle: true},
			"http://minio:9000/files", "", "us-east-1"},
		"MinIO, with hosts": {s3.Location{Bucket: "files", Endpoint: "http://minio.example.org:9000"},
			"http://files.minio.example.org:9000", "", "us-east-1"},
		"MinIO, dots": {s3.Location{Bucket: "my.files", Endpoint: "http://minio.example.org:9000"},
			"http://minio.example.org:9000/my.files", "", "us-east-1"},
		"MinIO, an address": {s3.Location{Bucket: "files", Endpoint: "http://192.0.2.7:9000"},
			"http://192.0.2.7:9000/files", "", "us-east-1"},
		"MinIO, an address of 6": {s3.Location{Bucket: "files", Endpoint: "http://[2001:db8::7]:9000"},
			"http://[2001:db8::7]:9000/files", "", "us-east-1"},
		"beneath a path": {s3.Location{Bucket: "files", Endpoint: "https://example.org/s3/", PathStyle: true},
			"https://example.org/s3/files", "", "us-east-1"},
		"the usual port": {s3.Location{Bucket: "files", Endpoint: "https://s3.example.org:443"},
			"https://files.s3.example.org:443", "files.s3.example.org", "us-east-1"},
	} {
		t.Run(name, func(t *testing.T) {
			c.loc.Prefix, c.loc.Credentials = "tree", keys
			b := opened(t, c.loc)
			if b.base.String() != c.base || b.region != c.region {
				t.Errorf("it is at %s in %s, want %s in %s", b.base, b.region, c.base, c.region)
			}
			ours := b.request(t.Context(), &Request{Method: http.MethodGet, Key: "a b/ü"})
			host := c.host
			if host == "" {
				host = b.base.Host
			}
			if got, want := ours.URL.String(), c.base+"/tree/a%20b/%C3%BC"; got != want || ours.Host != host {
				t.Errorf("an object is at %s of %s, want %s of %s", got, ours.Host, want, host)
			}
			theirs, err := sdk.NewPresignClient(b.s3).PresignGetObject(t.Context(),
				&sdk.GetObjectInput{Bucket: &c.loc.Bucket, Key: aws.String("tree/a b/ü")})
			must(t, err)
			if got, _, _ := strings.Cut(theirs.URL, "?"); got != ours.URL.String() {
				t.Errorf("the SDK asks %s, and we %s", got, ours.URL)
			}
			if scope := "%2F" + c.region + "%2Fs3%2F"; !strings.Contains(theirs.URL, scope) {
				t.Errorf("the SDK signs for another region than %s: %s", c.region, theirs.URL)
			}
		})
	}
}
