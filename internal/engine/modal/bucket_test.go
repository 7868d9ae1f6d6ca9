package modal

import (
	"context"
	"maps"
	"testing"

	sdk "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/engine"
)

// secretive is a control plane that records the content of an unnamed secret, and creates none.
type secretive struct {
	pb.ModalClientClient
	got map[string]string
}

//lint:ignore ST1003 the name is the protocol's
func (s *secretive) ImageFromId(context.Context, *pb.ImageFromIdRequest,
	...grpc.CallOption) (*pb.ImageFromIdResponse, error) {
	return pb.ImageFromIdResponse_builder{ImageId: "im-1"}.Build(), nil
}

func (s *secretive) SecretGetOrCreate(_ context.Context, req *pb.SecretGetOrCreateRequest,
	_ ...grpc.CallOption) (*pb.SecretGetOrCreateResponse, error) {
	s.got = req.GetEnvDict()
	return nil, status.Error(codes.PermissionDenied, "that is enough")
}

// TestBuckets checks that a sandbox mounts a bucket of Modal's, with an unnamed secret that has only the necessary
// values.
//
// mission: D5
func TestBuckets(t *testing.T) {
	t.Parallel()
	ctx, control := t.Context(), &secretive{}
	client, err := sdk.NewClientWithOptions(&sdk.ClientParams{TokenID: "ak-x", TokenSecret: "as-x",
		ControlPlaneClient: control})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	place, failure := Place{}, error(nil)
	e := &Engine{client: client, to: &server{},
		opts: Options{Locate: func(_ context.Context, account string, b places.Place) (Place, error) {
			if account != "acme" || b.Secret != "keys" {
				t.Errorf("asked for %+v of %s", b, account)
			}
			return place, failure
		}}}
	spec := engine.Spec{Account: "acme", Mounts: []engine.Mount{{Volume: "v", Path: "/v"},
		{Place: places.Place{Bucket: "files", Prefix: "/a/b", Secret: "keys"}, Path: "/data", ReadOnly: true}}}
	img, err := client.Images.FromID(ctx, "im-1", nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		place    Place
		endpoint string
		secret   map[string]string
	}{
		"Amazon's": {Place{AccessKeyID: "AKIA", SecretAccessKey: "key", SessionToken: "token", Region: "eu-west-1"}, "",
			map[string]string{"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": "token",
				"AWS_REGION": "eu-west-1"}},
		"another": {Place{Endpoint: "https://s3.example.org", PathStyle: true, AccessKeyID: "AKIA",
			SecretAccessKey: "key"}, "https://s3.example.org", map[string]string{"AWS_ACCESS_KEY_ID": "AKIA",
			"AWS_SECRET_ACCESS_KEY": "key"}},
		"Google's": {Place{Endpoint: "https://storage.googleapis.com", AccessKeyID: "GOOG", SecretAccessKey: "key"},
			"https://storage.googleapis.com", map[string]string{"GOOGLE_ACCESS_KEY_ID": "GOOG",
				"GOOGLE_ACCESS_KEY_SECRET": "key"}},
		"public": {Place{Region: "eu-west-1"}, "", nil},
	} {
		place = c.place
		params := &sdk.SandboxCreateParams{}
		to, err := e.buckets(ctx, spec, params)
		m := params.CloudBucketMounts["/data"]
		if err != nil || len(params.CloudBucketMounts) != 1 || m.BucketName != "files" || !m.ReadOnly ||
			*m.KeyPrefix != "a/b/" || (m.Secret == nil) != (c.secret == nil) {
			t.Fatalf("%s: %+v, %v", name, m, err)
		}
		if (m.BucketEndpointURL == nil) != (c.endpoint == "") || c.endpoint != "" &&
			*m.BucketEndpointURL != c.endpoint {
			t.Errorf("%s: the endpoint is %v", name, m.BucketEndpointURL)
		}
		if c.secret != nil {
			if _, err := client.Sandboxes.Create(to, &sdk.App{AppID: "ap-1"}, img,
				params); status.Code(err) != codes.PermissionDenied || !maps.Equal(control.got, c.secret) {
				t.Errorf("%s: the secret has %v, %v", name, control.got, err)
			}
		}
		req := pb.SandboxCreateV2Request_builder{Definition: pb.Sandbox_builder{CloudBucketMounts: []*pb.CloudBucketMount{pb.CloudBucketMount_builder{MountPath: "/data"}.Build()}}.Build()}.Build()
		inPath(to, req)
		if got := req.GetDefinition().GetCloudBucketMounts()[0].GetForcePathStyle(); got != c.place.PathStyle {
			t.Errorf("%s: in the path is %t", name, got)
		}
	}
	inPath(context.WithValue(ctx, pathKey{}, []string{"/data"}), &pb.AppListRequest{})
	place = Place{Local: true}
	if _, err := e.buckets(ctx, spec, &sdk.SandboxCreateParams{}); errors.KindOf(err) != errors.Unsupported ||
		errors.RemedyOf(err) == "" {
		t.Errorf("a place of this machine: %v", err)
	}
	failure = errors.Newf(errors.NotFound, "there is no bucket files")
	if _, err := e.buckets(ctx, spec, &sdk.SandboxCreateParams{}); errors.KindOf(err) != errors.NotFound {
		t.Errorf("no bucket: %v", err)
	}
	if !e.Capabilities().Buckets {
		t.Error("it cannot mount buckets")
	}
	e.opts.Locate = nil
	if _, err := e.buckets(ctx, spec, &sdk.SandboxCreateParams{}); errors.KindOf(err) != errors.Unsupported ||
		e.Capabilities().Buckets {
		t.Errorf("an engine that was told of none: %v", err)
	}
}

// TestReachable checks that endpoints that only this machine or its network reaches are refused, unless Modal's
// stand-in is there, too.
func TestReachable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		endpoint, server string
		ok               bool
	}{
		{"", "api.modal.com", true}, {"https://s3.example.org", "api.modal.com", true},
		{"https://203.0.113.7:9000", "api.modal.com", true}, {"https://[2001:db8::1]", "", true},
		{"http://127.0.0.1:9000", "api.modal.com", false}, {"http://localhost:9000", "api.modal.com", false},
		{"http://s3.localhost", "", false}, {"http://[::1]:9000", "api.modal.com", false},
		{"http://0.0.0.0:9000", "api.modal.com", false}, {"http://10.1.2.3", "api.modal.com", false},
		{"http://[::ffff:192.168.1.2]", "api.modal.com", false}, {"http://169.254.1.1", "10.0.0.1", true},
		{"http://127.0.0.1:9000", "127.0.0.1", true}, {"http://10.1.2.3", "localhost", true},
		{"http://10.1.2.3", "10.0.0.1", true}, {"http://127.0.0.1:9000", "10.0.0.1", false},
		{"https://s3.example.org", "::1", true},
	} {
		err := reachable(Place{Endpoint: c.endpoint}, c.server)
		if (err == nil) != c.ok || err != nil && (errors.KindOf(err) != errors.Unsupported ||
			errors.RemedyOf(err) == "") {
			t.Errorf("%s from %q: %v", c.endpoint, c.server, err)
		}
	}
}

func TestServer(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]string{"127.0.0.1:1": "127.0.0.1", "api.modal.com": "api.modal.com"} {
		s := &server{}
		if got := s.host(); got != "" {
			t.Errorf("before the first call it is %q", got)
		}
		conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		called := false
		err = s.call(t.Context(), "m", nil, nil, conn, func(context.Context, string, any, any, *grpc.ClientConn,
			...grpc.CallOption) error {
			called = true
			return nil
		})
		if got := s.host(); err != nil || !called || got != want {
			t.Errorf("%s is %q, %t, %v", target, got, called, err)
		}
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	}
}
