// Package s3 says how places in S3 are reached: the server, the bucket and the credentials. The packages
// below it work there: object on single objects, sync on whole trees, mount as a file system.
package s3

import (
	"context"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/netguard"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/s3/tree"
)

// Location is the place of files in S3, and the way to reach it.
type Location struct {
	Bucket string
	// Prefix precedes all keys; a slash is appended if it has none. "" is the whole bucket.
	Prefix string
	// Region is the bucket's region, such as "eu-central-1". "" uses the environment, or else
	// us-east-1.
	Region string
	// Endpoint is the URL of an S3-compatible server; "" is AWS.
	Endpoint string
	// Socket is the Unix socket of the server of Endpoint; "" connects to Endpoint.
	Socket string
	// Dial connects to the server of Endpoint; nil connects to its address. It precedes Socket.
	Dial func(ctx context.Context) (net.Conn, error) `json:"-"`
	// PathStyle puts the bucket into the path instead of the host name. Most servers other than AWS
	// require it.
	PathStyle bool
	// CA holds PEM certificates to trust besides the system's.
	CA []byte
	// Proxy is the URL of an HTTP proxy; "" uses the environment.
	Proxy string
	// Rules restrict the addresses that requests may go to, including those to STS. nil allows any
	// address, for places of the operator.
	Rules *netguard.Rules `json:",omitempty"`
	// Patience bounds the retries of one request while the server is unavailable or overloaded; 0
	// means two minutes.
	Patience time.Duration
	Credentials
}

// Credentials sign the requests. If they are empty and Ambient is false, requests are anonymous.
type Credentials struct {
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string
	// RoleARN is a role to assume with the keys above, or with the web identity token in the file
	// TokenFile.
	RoleARN    string
	ExternalID string
	TokenFile  string
	// STS is the URL of the service that assumes roles; "" is AWS's.
	STS string
	// Ambient uses the credentials that the AWS SDK finds on this machine: environment, shared
	// files, instance and container roles.
	Ambient bool
}

// Check returns Invalid for a location that no server can have.
func (l Location) Check() error {
	switch {
	case l.Bucket == "":
		return errors.Remedy(errors.Newf(errors.Invalid, "no bucket given"), "name a bucket")
	case strings.ContainsAny(l.Bucket, "/?#% \x00") || len(l.Bucket) > 255:
		return errors.Newf(errors.Invalid, "invalid bucket name %.100q", l.Bucket)
	case len(l.Prefix) > tree.MaxKey/2:
		return errors.Newf(errors.Invalid, "the prefix has %d bytes; at most %d leave room for files", len(l.Prefix),
			tree.MaxKey/2)
	}
	if err := l.checkPrefix(); err != nil {
		return err
	}
	if l.Endpoint != "" {
		if u, err := url.Parse(l.Endpoint); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" ||
			u.User != nil || u.RawQuery != "" {
			return errors.Remedy(errors.Newf(errors.Invalid, "invalid endpoint: not the address of a server"),
				"write it as https://host:port, without user or query")
		}
	}
	if l.Region != "" && (l.Endpoint == "" || l.RoleARN != "") && !IsRegion(l.Region) {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid region %.100q", l.Region),
			"use a name such as eu-central-1")
	}
	if (l.AccessKeyID == "") != (l.SecretAccessKey == "") {
		return errors.Newf(errors.Invalid, "the access key is incomplete: its id or its secret is missing")
	}
	return l.checkRole()
}

// checkPrefix returns Invalid for a prefix whose parts cannot be directories, and for one in the reserved directory of
// another place.
func (l Location) checkPrefix() error {
	p := strings.TrimSuffix(l.Prefix, "/")
	if l.Prefix == "" || p != "" && tree.ValidPath(p) && !slices.Contains(strings.Split(p, "/"), tree.Reserved) {
		return nil
	}
	parts := slices.DeleteFunc(strings.Split(l.Prefix, "/"), func(part string) bool { return part == "" })
	without := strings.Join(append([]string{"s3://" + l.Bucket}, parts...), "/")
	switch {
	case slices.Contains(parts, tree.Reserved):
		return errors.Remedy(errors.Newf(errors.Invalid,
			"invalid prefix %.100q: Harvest stores its own objects beneath %s of every place", l.Prefix, tree.Reserved),
			"choose a prefix without %s", tree.Reserved)
	case strings.HasPrefix(l.Prefix, "/") || strings.Contains(l.Prefix, "//"):
		return errors.Remedy(errors.Newf(errors.Invalid,
			"invalid prefix %.100q: an empty name between slashes cannot be a directory", l.Prefix),
			"write %.200s, or store the objects under keys without empty names", without)
	}
	return errors.Remedy(errors.Newf(errors.Invalid, "invalid prefix %.100q", l.Prefix),
		"use names with slashes between them, none of them '.' or '..'")
}

// regionName restricts regions to characters that AWS uses, since a region becomes part of a host
// name and must not lead to another host.
var regionName = pattern.New(`^[A-Za-z0-9-]{1,63}$`)

// IsRegion reports whether a name can be that of a region.
func IsRegion(name string) bool { return regionName().MatchString(name) }

func (l Location) checkRole() error {
	switch {
	case l.RoleARN == "":
	case l.AccessKeyID == "" && l.TokenFile == "" && !l.Ambient:
		return errors.Remedy(errors.Newf(errors.Invalid, "role %.200q: no credentials to assume it with", l.RoleARN),
			"add an access key, or the file with a web identity token")
	}
	if l.STS != "" {
		if u, err := url.Parse(l.STS); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" ||
			u.User != nil {
			return errors.Remedy(errors.Newf(errors.Invalid, "the service for roles has no address"),
				"write it as https://host:port")
		}
	}
	return nil
}
