package modal_test

import (
	"strings"
	"testing"
	"time"

	modal "github.com/modal-labs/modal-client/go"
	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/RelevanceAI/harvest/client/errors"
)

// TestWhatThereIsNot checks that missing objects and invalid names are answered with a permanent error code and a
// sentence.
// mission: A9
func TestWhatThereIsNot(t *testing.T) {
	w := newWorld(t)
	sb := w.create(nil)
	app, err := w.control.AppGetOrCreate(w.ctx(), pb.AppGetOrCreateRequest_builder{AppName: "app"}.Build())
	if err != nil {
		t.Fatal(err)
	}
	img, err := w.control.ImageGetOrCreate(w.ctx(), pb.ImageGetOrCreateRequest_builder{AppId: app.GetAppId(),
		Image: pb.Image_builder{DockerfileCommands: []string{"FROM base"}}.Build()}.Build())
	if err != nil {
		t.Fatal(err)
	}
	create := func(app string, change func(*pb.Sandbox_builder)) error {
		def := pb.Sandbox_builder{ImageId: img.GetImageId(), TimeoutSecs: 60, EntrypointArgs: []string{"sleep", "1"}}
		change(&def)
		return second(w.control.SandboxCreateV2(w.ctx(), pb.SandboxCreateV2Request_builder{AppId: app,
			Definition: def.Build()}.Build()))
	}
	for what, c := range map[string]struct {
		err  error
		code codes.Code
	}{
		"an app with a bad name": {second(w.control.AppGetOrCreate(w.ctx(),
			pb.AppGetOrCreateRequest_builder{AppName: "a b/c"}.Build())), codes.InvalidArgument},
		"an environment with a bad one": {second(w.control.EnvironmentGetOrCreate(w.ctx(),
			pb.EnvironmentGetOrCreateRequest_builder{DeploymentName: "a b/c"}.Build())), codes.InvalidArgument},
		"a secret": {second(w.control.SecretGetOrCreate(w.ctx(),
			pb.SecretGetOrCreateRequest_builder{DeploymentName: "none"}.Build())), codes.NotFound},
		"a volume": {second(w.control.VolumeGetOrCreate(w.ctx(),
			pb.VolumeGetOrCreateRequest_builder{DeploymentName: "none"}.Build())), codes.NotFound},
		"a queue": {second(w.control.QueueGetOrCreate(w.ctx(),
			pb.QueueGetOrCreateRequest_builder{DeploymentName: "none"}.Build())), codes.NotFound},
		"the values of a queue": {second(w.control.QueueGet(w.ctx(),
			pb.QueueGetRequest_builder{QueueId: "qu-none"}.Build())), codes.NotFound},
		"the length of a queue": {second(w.control.QueueLen(w.ctx(),
			pb.QueueLenRequest_builder{QueueId: "qu-none"}.Build())), codes.NotFound},
		"the log of a sandbox": {second(w.control.AppFetchLogs(w.ctx(),
			pb.AppFetchLogsRequest_builder{SandboxId: "sb-01JZZZZZZZZZZZZZZZZZZZZZZZ"}.Build())), codes.NotFound},
		"the log of a function": {second(w.control.AppCountLogs(w.ctx(),
			pb.AppCountLogsRequest_builder{AppId: app.GetAppId(), FunctionId: "fu-1"}.Build())), codes.Unimplemented},
		"the log of an app that is not there": {second(w.control.AppCountLogs(w.ctx(),
			pb.AppCountLogsRequest_builder{AppId: "ap-none"}.Build())), codes.NotFound},
		"a sandbox in no app": {create("ap-none", func(*pb.Sandbox_builder) {}), codes.NotFound},
		"a sandbox with a secret": {create(app.GetAppId(),
			func(d *pb.Sandbox_builder) { d.SecretIds = []string{"st-none"} }), codes.NotFound},
		"a sandbox with a volume": {create(app.GetAppId(), func(d *pb.Sandbox_builder) {
			d.VolumeMounts = []*pb.VolumeMount{pb.VolumeMount_builder{VolumeId: "vo-none", MountPath: "/v"}.Build()}
		}), codes.NotFound},
		"a sandbox of no image": {create(app.GetAppId(), func(d *pb.Sandbox_builder) { d.ImageId = "im-none" }),
			codes.NotFound},
		"a reserved tag": {second(w.control.SandboxTagsSet(w.ctx(),
			pb.SandboxTagsSetRequest_builder{SandboxId: sb.SandboxID,
				Tags: []*pb.SandboxTag{pb.SandboxTag_builder{TagName: "modal/app", TagValue: "other"}.Build()}}.Build())),
			codes.InvalidArgument},
	} {
		if st := status.Convert(c.err); st.Code() != c.code || len(st.Message()) < 10 {
			t.Errorf("%s: %s %q, want %s", what, st.Code(), st.Message(), c.code)
		}
	}
	if list, err := w.sdk.Sandboxes.List(t.Context(), nil); err != nil {
		t.Error(err)
	} else {
		for other, err := range list {
			if err != nil || other.SandboxID != sb.SandboxID {
				t.Errorf("there is %v too, %v", other, err)
			}
		}
	}
}

// An app, and the name of a sandbox, is one in each environment.
// mission: A6
func TestEnvironments(t *testing.T) {
	w := newWorld(t)
	ids := map[string]string{}
	for _, env := range []string{"", "dev"} {
		made, err := w.sdk.Apps.FromName(t.Context(), "app", &modal.AppFromNameParams{Environment: env,
			CreateIfMissing: true})
		if err != nil {
			t.Fatal(err)
		}
		sb, err := w.sdk.Sandboxes.Create(t.Context(), made, w.sdk.Images.FromRegistry("base", nil),
			&modal.SandboxCreateParams{Name: "box"})
		if err != nil {
			t.Fatalf("in the environment %q: %v", env, err)
		}
		t.Cleanup(func() { _ = sb.Detach() })
		ids[env] = sb.SandboxID
	}
	for env, want := range ids {
		found, err := w.sdk.Sandboxes.FromName(t.Context(), "app", "box",
			&modal.SandboxFromNameParams{Environment: env})
		if err != nil || found.SandboxID != want {
			t.Errorf("by name in %q: %v, %v, want %s", env, found, err, want)
		}
	}
	list, err := w.control.EnvironmentList(w.ctx(), &emptypb.Empty{})
	var names []string
	for _, env := range list.GetItems() {
		names = append(names, env.GetName())
	}
	if got := strings.Join(names, " "); err != nil || got != "dev main" {
		t.Errorf("the environments are %q, %v", got, err)
	}
	apps, err := w.control.AppList(w.ctx(), pb.AppListRequest_builder{EnvironmentName: "dev"}.Build())
	if err != nil || len(apps.GetApps()) != 1 || apps.GetApps()[0].GetName() != "app" {
		t.Errorf("the apps of dev are %v, %v", apps, err)
	}
}

// TestRenamed checks that a sandbox is found by its current name, and not by earlier names, and that a taken name is
// refused.
// mission: A6
func TestRenamed(t *testing.T) {
	w := newWorld(t)
	sb, taken := w.create(&modal.SandboxCreateParams{Name: "box"}), w.create(&modal.SandboxCreateParams{Name: "taken"})
	if err := sb.ExperimentalSetName(t.Context(), "taken", nil); !errors.As(err, &modal.AlreadyExistsError{}) {
		t.Errorf("a taken name: %v", err)
	}
	if err := sb.ExperimentalSetName(t.Context(), "other", nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"other": sb.SandboxID, "taken": taken.SandboxID} {
		if found, err := w.sdk.Sandboxes.FromName(t.Context(), "app", name, nil); err != nil ||
			found.SandboxID != want {
			t.Errorf("%s is %v, %v", name, found, err)
		}
	}
	if _, err := w.sdk.Sandboxes.FromName(t.Context(), "app", "box", nil); !errors.As(err, &modal.NotFoundError{}) {
		t.Errorf("the old name: %v", err)
	}
}

// The log of a sandbox is searched, counted, and cut by stream and by time.
// mission: A1
func TestLogsAreSearched(t *testing.T) {
	w := newWorld(t)
	sb := w.create(&modal.SandboxCreateParams{Command: []string{"sh", "-c", "echo one; echo two >&2; echo three"}})
	if code, err := sb.Wait(t.Context(), nil); err != nil || code != 0 {
		t.Fatalf("it ended with %d, %v", code, err)
	}
	fetch := func(req pb.AppFetchLogsRequest_builder) string {
		t.Helper()
		req.SandboxId = sb.SandboxID
		got, err := w.control.AppFetchLogs(w.ctx(), req.Build())
		if err != nil {
			t.Fatal(err)
		}
		var text []string
		for _, batch := range got.GetBatches() {
			for _, item := range batch.GetItems() {
				text = append(text, strings.TrimSpace(item.GetData()))
			}
		}
		return strings.Join(text, " ")
	}
	hence := timestamppb.New(time.Now().Add(time.Hour))
	ago := timestamppb.New(time.Now().Add(-time.Hour))
	for what, c := range map[string]struct {
		req  pb.AppFetchLogsRequest_builder
		want string
	}{
		"stdout": {pb.AppFetchLogsRequest_builder{Source: pb.FileDescriptor_FILE_DESCRIPTOR_STDOUT}, "one three"},
		"stderr": {pb.AppFetchLogsRequest_builder{Source: pb.FileDescriptor_FILE_DESCRIPTOR_STDERR}, "two"},
		"text":   {pb.AppFetchLogsRequest_builder{SearchText: "hre"}, "three"},
		"since":  {pb.AppFetchLogsRequest_builder{Since: hence}, ""},
		"until":  {pb.AppFetchLogsRequest_builder{Until: ago}, ""},
	} {
		if got := fetch(c.req); got != c.want {
			t.Errorf("%s: %q, want %q", what, got, c.want)
		}
	}
	counted, err := w.control.AppCountLogs(w.ctx(), pb.AppCountLogsRequest_builder{SandboxId: sb.SandboxID,
		BucketSecs: 3600}.Build())
	var out, errs uint64
	for _, b := range counted.GetBuckets() {
		out, errs = out+uint64(b.GetStdoutLogs()), errs+uint64(b.GetStderrLogs())
	}
	if err != nil || out != 2 || errs != 1 {
		t.Errorf("counted %d and %d, %v", out, errs, err)
	}
}

// TestQueueWaits checks that a client that waits at an empty queue is woken by a put. A client that does not want to
// wait gets the answer that the queue is empty.
func TestQueueWaits(t *testing.T) {
	w := newWorld(t)
	q, err := w.sdk.Queues.FromName(t.Context(), "jobs", &modal.QueueFromNameParams{CreateIfMissing: true})
	if err != nil {
		t.Fatal(err)
	}
	zero := time.Duration(0)
	if _, err := q.Get(t.Context(), &modal.QueueGetParams{Timeout: &zero}); !errors.As(err, &modal.QueueEmptyError{}) {
		t.Errorf("an empty queue: %v", err)
	}
	got := make(chan any, 1)
	go func() {
		v, err := q.Get(t.Context(), nil)
		if err != nil {
			v = err
		}
		got <- v
	}()
	if err := q.Put(t.Context(), "late", nil); err != nil {
		t.Fatal(err)
	}
	if v := <-got; v != "late" {
		t.Errorf("who waited got %v", v)
	}
}
