package modal_test

import (
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/test/stubs/modaltest"
)

// TestPythonEnvironment checks that a variable in an image's environment, which Python's SDK puts in single quotes, is
// expanded by the build.
// mission: B2
func TestPythonEnvironment(t *testing.T) {
	w := newWorld(t)
	_, made, err := w.imageOf(pb.Image_builder{DockerfileCommands: []string{"FROM base", "ENV PATH='/x:$PATH'"}}, false)
	if err != nil || len(made) != 1 || made[0].spec.Commands[0] != `ENV PATH="/x:$PATH"` {
		t.Errorf("the builds are %+v, %v", made, err)
	}
}

// TestImageCommand checks that a sandbox without arguments runs the command of its image, and one with arguments those.
// mission: A1
func TestImageCommand(t *testing.T) {
	w := newWorld(t)
	w.images.mu.Lock()
	w.images.cmd = []string{"sh", "-c", "echo of the image; exit 3"}
	w.images.mu.Unlock()
	for _, c := range []struct {
		args []string
		out  string
		code int
	}{{nil, "of the image\n", 3}, {[]string{"echo", "own"}, "own\n", 0}} {
		sb := w.create(&modal.SandboxCreateParams{Command: c.args})
		out, err := io.ReadAll(sb.Stdout)
		if err != nil || string(out) != c.out {
			t.Errorf("%v prints %q, %v", c.args, out, err)
		}
		if code, err := sb.Wait(t.Context(), nil); err != nil || code != c.code {
			t.Errorf("%v ends with %d, %v", c.args, code, err)
		}
	}
}

// TestVariablesInside checks the variables that Modal documents, in the sandbox and in its sidecars. Clients cannot
// set them.
// mission: A4
func TestVariablesInside(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Env: map[string]string{"MODAL_SANDBOX_ID": "sb-other", "MINE": "1"},
		Cloud: "aws"})
	want := []string{
		"MINE=1", "MODAL_CLOUD_PROVIDER=aws", "MODAL_ENVIRONMENT=main", "MODAL_REGION=local",
		"MODAL_SANDBOX_ID=" + sb.SandboxID,
		"MODAL_TASK_ID=ta-" + strings.TrimPrefix(sb.SandboxID, "sb-") + "V", "MODAL_IMAGE_ID=im-",
	}
	check := func(where, env string) {
		t.Helper()
		for _, line := range want {
			if !strings.Contains("\n"+env, "\n"+line) {
				t.Errorf("%s: %s is not in %s", where, line, env)
			}
		}
	}
	check("sandbox", w.output(sb, "env"))
	params := &modal.SandboxExecParams{Env: map[string]string{"MODAL_TASK_ID": "ta-other"}}
	set, _, _ := modaltest.Run(t, sb, params, "env")
	check("a command with an environment", set)
	want = slices.DeleteFunc(want, func(line string) bool {
		return line == "MINE=1" ||
			strings.HasPrefix(line, "MODAL_CLOUD")
	})
	id, _, err := w.imageOf(pb.Image_builder{DockerfileCommands: []string{"FROM base"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	img, err := w.sdk.Images.FromID(t.Context(), id, nil)
	if err != nil {
		t.Fatal(err)
	}
	side, err := sb.ExperimentalSidecars.Create(t.Context(), "side", img,
		&modal.SidecarCreateParams{Command: []string{"sleep", "100"}})
	if err != nil {
		t.Fatal(err)
	}
	env, _, _ := modaltest.Run(t, side, nil, "env")
	check("sidecar", env)
}

// TestErrorsInModalsIDs checks that an error of the core names objects as Modal does.
// mission: A9
func TestErrorsInModalsIDs(t *testing.T) {
	w := newWorld(t)
	sb := w.create(nil)
	if _, err := sb.Terminate(t.Context(), &modal.SandboxTerminateParams{Wait: true}); err != nil {
		t.Fatal(err)
	}
	access, err := w.control.SandboxGetCommandRouterAccess(w.ctx(),
		pb.SandboxGetCommandRouterAccessRequest_builder{SandboxId: &sb.SandboxID}.Build())
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.router.TaskExecStart(w.routed(pb.CommandRouterAccess_builder{Jwt: access.GetJwt()}.Build()),
		pb.TaskExecStartRequest_builder{
			TaskId: "ta-" + strings.TrimPrefix(sb.SandboxID, "sb-") + "V", ExecId: "e",
			CommandArgs: []string{"true"}}.Build())
	if err == nil || strings.Contains(err.Error(), "sbx_") || !strings.Contains(err.Error(), sb.SandboxID) {
		t.Errorf("a command in a sandbox that has ended: %v", err)
	}
}

// TestUnknownOptions checks that options which may restrict a sandbox or an image are refused, and not ignored.
// mission: A6
func TestUnknownOptions(t *testing.T) {
	w := newWorld(t)
	app, err := w.control.AppGetOrCreate(w.ctx(), pb.AppGetOrCreateRequest_builder{AppName: "app",
		ObjectCreationType: pb.ObjectCreationType_OBJECT_CREATION_TYPE_CREATE_IF_MISSING}.Build())
	if err != nil {
		t.Fatal(err)
	}
	id, _, err := w.imageOf(pb.Image_builder{DockerfileCommands: []string{"FROM base"}}, false)
	if err != nil {
		t.Fatal(err)
	}
	create := func(def pb.Sandbox_builder) error {
		def.ImageId, def.EntrypointArgs = id, []string{"sleep", "60"}
		return second(w.control.SandboxCreateV2(w.ctx(), pb.SandboxCreateV2Request_builder{AppId: app.GetAppId(),
			Definition: def.Build()}.Build()))
	}
	routes := pb.OutboundPolicy_builder{TlsDecryption: pb.OutboundPolicy_TLSDecryption_builder{Allowed: true}.Build()}.Build()
	other := pb.Arch_ARCH_AARCH64
	if runtime.GOARCH == "arm64" {
		other = pb.Arch_ARCH_X86_64
	}
	for what, err := range map[string]error{
		"an option":        create(pb.Sandbox_builder{ExperimentalOptionsV2: map[string]string{"proxy_traffic_via_sidecar": "true"}}),
		"one with a value": create(pb.Sandbox_builder{ExperimentalOptionsV2: map[string]string{"vm_cpu": "2"}}),
		//lint:ignore SA1019 old clients send it
		"one of old clients": create(pb.Sandbox_builder{ExperimentalOptions: map[string]bool{"proxy_traffic_via_sidecar": true}}),
		"routes":             create(pb.Sandbox_builder{OutboundPolicy: routes}),
		"RDMA":               create(pb.Sandbox_builder{Resources: pb.Resources_builder{Rdma: true}.Build()}),
		"another processor": second2(w.imageOf(pb.Image_builder{DockerfileCommands: []string{"FROM base", "RUN x"},
			Arch: other}, false)),
		"volumes in a build": second2(w.imageOf(pb.Image_builder{DockerfileCommands: []string{"FROM base", "RUN y"},
			VolumeMounts: []*pb.VolumeMount{{}}}, false)),
	} {
		if st := status.Convert(err); st.Code() != codes.Unimplemented || len(st.Message()) < 20 {
			t.Errorf("%s: %s %q", what, st.Code(), st.Message())
		}
	}
	if err := create(pb.Sandbox_builder{ExperimentalOptionsV2: map[string]string{"proxy_traffic_via_sidecar": "false",
		"enable_docker": "true"}}); err != nil {
		t.Errorf("options that are off or served: %v", err)
	}
}

func second2[A, B any](_ A, _ B, err error) error { return err }

// TestLogOfShortBuild checks that the log of a build that ends at once reaches a client, failed or not. Python's SDK
// joins a build only if the answer to its request has no result.
// mission: B2
func TestLogOfShortBuild(t *testing.T) {
	w := newWorld(t)
	for i, fail := range []error{nil, errors.Newf(errors.Invalid, "the command failed")} {
		w.images.mu.Lock()
		w.images.log, w.images.fail = []string{"step 1", "step 2"}, fail
		w.images.mu.Unlock()
		reply, err := w.control.ImageGetOrCreate(w.ctx(), pb.ImageGetOrCreateRequest_builder{Image: pb.Image_builder{
			DockerfileCommands: []string{"FROM base", "RUN " + strconv.Itoa(i)}}.Build()}.Build())
		if err != nil || reply.HasResult() {
			t.Fatalf("the answer is %v, %v", reply, err)
		}
		stream, err := w.control.ImageJoinStreaming(w.ctx(),
			pb.ImageJoinStreamingRequest_builder{ImageId: reply.GetImageId(), Timeout: 55}.Build())
		if err != nil {
			t.Fatal(err)
		}
		text := ""
		for {
			part, err := stream.Recv()
			if err != nil {
				t.Fatalf("%q, then %v", text, err)
			}
			for _, l := range part.GetTaskLogs() {
				text += l.GetData()
			}
			if !part.HasResult() {
				continue
			}
			if ok := part.GetResult().GetStatus() == pb.GenericResult_GENERIC_STATUS_SUCCESS; ok != (fail == nil) {
				t.Errorf("the build ends with %v", part.GetResult())
			}
			break
		}
		if text != "step 1\nstep 2\n" {
			t.Errorf("the log is %q", text)
		}
	}
}
