package modal_test

import (
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// TestForcedBuildsThatComeAgain checks that a forced build whose answer was lost is done once, also if the request is
// repeated at the next server and if the build fails. A build that was temporarily impossible is done on the repeated
// request.
//
// mission: B2
func TestForcedBuildsThatComeAgain(t *testing.T) {
	w := newWorld(t)
	req := pb.ImageGetOrCreateRequest_builder{Image: pb.Image_builder{DockerfileCommands: []string{"FROM base",
		"RUN true"}}.Build(), ForceBuild: true}.Build()
	build := func(key string) (*pb.ImageGetOrCreateResponse, error) {
		return w.control.ImageGetOrCreate(w.ctx("x-idempotency-key", key), req)
	}
	builds := func() int {
		w.images.mu.Lock()
		defer w.images.mu.Unlock()
		return len(w.images.built)
	}
	built := func(key string, want pb.GenericResult_GenericStatus, count int) string {
		t.Helper()
		made, err := build(key)
		if err != nil {
			t.Fatal(err)
		}
		if got := made.GetResult().GetStatus(); got != want || builds() != count {
			t.Errorf("%s: %v after %d builds; want %v after %d", key, got, builds(), want, count)
		}
		return made.GetImageId()
	}
	const good, bad = pb.GenericResult_GENERIC_STATUS_SUCCESS, pb.GenericResult_GENERIC_STATUS_FAILURE
	id := built("one", good, 1)
	if again := built("one", good, 1); again != id {
		t.Errorf("again it is %s, not %s", again, id)
	}
	if other := built("two", good, 2); other == id {
		t.Error("two requests have one image")
	}
	w.images.fail = errors.Newf(errors.Invalid, "step 2 failed")
	built("fails", bad, 3)
	built("fails", bad, 3)
	w.images.fail = errors.Newf(errors.Unavailable, "the registry does not answer")
	if _, err := build("later"); status.Code(err) != codes.Unavailable {
		t.Errorf("for now: %v", err)
	}
	built("later", good, 5)
	if err := w.server.Close(); err != nil {
		t.Fatal(err)
	}
	w.sdk.Close()
	w.serve()
	if again := built("one", good, 5); again != id {
		t.Errorf("at the next server it is %s, not %s", again, id)
	}
	for count := range 2 { // without a key, the server cannot recognise a repeated request
		if _, err := w.control.ImageGetOrCreate(w.ctx(), req); err != nil || builds() != 6+count {
			t.Errorf("without a key: %d builds, %v", builds(), err)
		}
	}
}

// TestSidecarsThatComeAgain checks that a sidecar whose answer was lost is created once, with either kind of request,
// also if it has ended, and also by the next server.
//
// mission: A6
func TestSidecarsThatComeAgain(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Timeout: time.Minute})
	img, err := w.control.ImageGetOrCreate(w.ctx(),
		pb.ImageGetOrCreateRequest_builder{Image: pb.Image_builder{DockerfileCommands: []string{"FROM base"}}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	task := "ta-" + strings.TrimPrefix(sb.SandboxID, "sb-") + "V"
	for name, ask := range map[string]func(key string) (string, error){
		"control": func(key string) (string, error) {
			made, err := w.control.SandboxContainerCreateV2(w.ctx("x-idempotency-key", key),
				pb.SandboxContainerCreateV2Request_builder{
					SandboxId: sb.SandboxID, ContainerName: "one",
					Definition: pb.Sandbox_builder{ImageId: img.GetImageId()}.Build(),
				}.Build())
			return made.GetContainerId(), err
		},
		"router": func(key string) (string, error) {
			access, err := w.control.SandboxGetCommandRouterAccess(w.ctx(),
				pb.SandboxGetCommandRouterAccessRequest_builder{SandboxId: &sb.SandboxID}.Build())
			if err != nil {
				return "", err
			}
			ctx := metadata.AppendToOutgoingContext(w.routed(pb.CommandRouterAccess_builder{Jwt: access.GetJwt()}.Build()), "x-idempotency-key", key)
			made, err := w.router.TaskContainerCreate(ctx, pb.TaskContainerCreateRequest_builder{TaskId: task,
				ContainerName: "two", ImageId: img.GetImageId()}.Build())
			return made.GetContainerId(), err
		},
	} {
		id, err := ask(name)
		if err != nil {
			t.Fatal(err)
		}
		same := func(when string) {
			t.Helper()
			if again, err := ask(name); err != nil || again != id {
				t.Errorf("%s, %s: %s, %v; want %s", name, when, again, err, id)
			}
		}
		same("at once")
		if _, err := ask(name + " of another client"); status.Code(err) != codes.AlreadyExists {
			t.Errorf("%s: another one of that name: %v", name, err)
		}
		if err := w.server.Close(); err != nil {
			t.Fatal(err)
		}
		w.sdk.Close()
		w.serve()
		same("at the next server")
		if err := w.fleet.Destroy(t.Context(), "personal", fleetID(id)); err != nil {
			t.Fatal(err)
		}
		same("after its end")
		if err := w.server.Close(); err != nil {
			t.Fatal(err)
		}
		w.sdk.Close()
		w.serve()
		same("after its end, at the next server")
	}
	if all, err := w.fleet.List(t.Context(), "personal", record.Filter{All: true}); err != nil || len(all) != 3 {
		t.Errorf("there are %d sandboxes, %v", len(all), err)
	}
}
