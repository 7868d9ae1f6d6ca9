package modal

import (
	"context"
	"os"
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc"

	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/test/host/modalhost"
)

// suiteEnvironment is the environment in which the SDK's suites work, whatever they are configured with.
const suiteEnvironment = "libmodal"

// leftOfModalItself has the tests of the suite that need something which an account at Modal does not have, with the
// reason. Our own server has stand-ins for it.
var leftOfModalItself = map[string]string{
	"TestCreateSandboxWithProxy":       "it wants the proxy libmodal-test-proxy, which the SDK cannot make",
	"TestImageFromRegistryWithSecret":  "it wants a private registry of Modal's own, at Google",
	"TestImageFromAwsEcr":              "it wants a private registry of Modal's own, at Amazon",
	"TestImageFromGcpArtifactRegistry": "it wants a private registry of Modal's own, at Google",
}

// TestModalItself checks that the live tests of Modal's Go SDK pass against Modal itself. The result shows whether
// Harvest or the suite has changed.
//
// mission: 8.1, 8.2, 8.3, F3
func TestModalItself(t *testing.T) {
	testenv.Long(t)
	t.Parallel()
	id, secret := os.Getenv("HARVEST_TEST_MODAL_TOKEN_ID"), os.Getenv("HARVEST_TEST_MODAL_TOKEN_SECRET")
	if id == "" || secret == "" {
		t.Skip("HARVEST_TEST_MODAL_TOKEN_ID and HARVEST_TEST_MODAL_TOKEN_SECRET name no account at Modal: set them " +
			"to a token of yours, which costs some cents")
	}
	h := &modalhost.Host{T: t, Modal: []string{"MODAL_TOKEN_ID=" + id, "MODAL_TOKEN_SECRET=" + secret}}
	fixturesAtModal(t, id, secret)
	t.Run("files", func(t *testing.T) {
		judge(t, h, nil, suite(t, "github.com/modal-labs/modal-client/go", "-tags", "integration"), "-test.run",
			"TestSandboxFsE2e", "-test.timeout", "20m")
	})
	t.Run("sandboxes", func(t *testing.T) {
		live := liveTests(t)
		judge(t, h, live, suite(t, "github.com/modal-labs/modal-client/go/test"), "-test.parallel", "4",
			"-test.timeout", "20m", "-test.run", "^("+strings.Join(live, "|")+")$")
	})
}

// judge runs a suite, and fails unless all of live pass, or, if live is nil, all that run, except those that are left
// out.
func judge(t *testing.T, h *modalhost.Host, live []string, program string, args ...string) {
	t.Helper()
	verdicts, said := runSuite(h, program, args...)
	for _, name := range live {
		if verdicts[name] == "" {
			verdicts[name] = "not run"
		}
	}
	passed := 0
	for name, verdict := range verdicts {
		switch {
		case verdict == "PASS":
			passed++
		case leftOfModalItself[name] != "":
			t.Logf("%s: %s: %s", name, verdict, leftOfModalItself[name])
		default:
			t.Errorf("%s: %s", name, verdict)
		}
	}
	t.Logf("%d of %d live tests pass", passed, len(verdicts))
	if t.Failed() {
		t.Logf("the suite said:\n%s", said)
	}
}

// fixturesAtModal creates the fixtures that the suites expect at Modal: an environment with a secret. At the end it
// removes them if they did not exist before.
func fixturesAtModal(t *testing.T, id, secret string) {
	t.Helper()
	values := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		if r, ok := req.(*pb.SecretGetOrCreateRequest); ok { // the SDK has no call for it
			r.SetEnvDict(map[string]string{"a": "1", "b": "2", "c": "hello world"})
			r.SetObjectCreationType(pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING)
		}
		return invoke(ctx, method, req, reply, conn, opts...)
	}
	client, err := modal.NewClientWithOptions(&modal.ClientParams{
		TokenID: id, TokenSecret: secret, Environment: suiteEnvironment,
		GRPCUnaryInterceptors: []grpc.UnaryClientInterceptor{values},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	there := false
	all, err := client.Environments.Objects.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for env, err := range all {
		if err != nil {
			t.Fatal(err)
		}
		there = there || env.Name == suiteEnvironment
	}
	if !there {
		t.Cleanup(func() {
			if err := client.Environments.Objects.Delete(context.WithoutCancel(t.Context()),
				suiteEnvironment); err != nil {
				t.Errorf("remove the environment %s at Modal by hand: %v", suiteEnvironment, err)
			}
		})
	}
	if _, err := client.Environments.FromName(t.Context(), suiteEnvironment,
		&modal.EnvironmentFromNameParams{CreateIfMissing: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Secrets.FromName(t.Context(), "libmodal-test-secret", nil); err != nil {
		t.Fatal(err)
	}
}
