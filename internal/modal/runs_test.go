package modal_test

import (
	"context"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	pb "github.com/modal-labs/modal-client/go/proto/modal_proto"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/testenv"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
)

// run starts an app as "with app.run()" does, and returns its ID.
func (w *world) run(description string, state pb.AppState) string {
	w.t.Helper()
	got, err := w.control.AppCreate(w.python(), pb.AppCreateRequest_builder{Description: description, AppState: state,
		Tags: map[string]string{"team": "a"}}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	if !regexp.MustCompile(`^ap-[a-zA-Z0-9]{22}$`).MatchString(got.GetAppId()) || got.GetAppPageUrl() == "" {
		w.t.Errorf("the command line does not take %v for an app's ID", got)
	}
	if _, err := w.control.AppHeartbeat(w.python(),
		pb.AppHeartbeatRequest_builder{AppId: got.GetAppId()}.Build()); err != nil {
		w.t.Errorf("heartbeat: %v", err)
	}
	if _, err := w.control.AppPublish(w.python(), pb.AppPublishRequest_builder{AppId: got.GetAppId(),
		AppState: state, Tags: map[string]string{"team": "a"}}.Build()); err != nil {
		w.t.Errorf("publish: %v", err)
	}
	return got.GetAppId()
}

// sandboxOfApp creates a sandbox as Sandbox.create of Python's SDK does, and returns the IDs of the sandbox and its
// task.
func (w *world) sandboxOfApp(app string, args ...string) (id, task string, err error) {
	w.t.Helper()
	image, _, err := w.imageOf(pb.Image_builder{DockerfileCommands: []string{"FROM base"}}, false)
	if err != nil {
		w.t.Fatal(err)
	}
	made, err := w.control.SandboxCreate(w.python(), pb.SandboxCreateRequest_builder{AppId: app,
		Definition: pb.Sandbox_builder{EntrypointArgs: args, ImageId: image, TimeoutSecs: 600}.Build()}.Build())
	if err != nil {
		return "", "", err
	}
	got, err := w.control.SandboxGetTaskId(w.python(),
		pb.SandboxGetTaskIdRequest_builder{SandboxId: made.GetSandboxId()}.Build())
	return made.GetSandboxId(), got.GetTaskId(), err
}

func (w *world) disconnect(app string) error {
	return second(w.control.AppClientDisconnect(w.python(), pb.AppClientDisconnectRequest_builder{AppId: app,
		Reason: pb.AppDisconnectReason_APP_DISCONNECT_REASON_ENTRYPOINT_COMPLETED}.Build()))
}

func (w *world) lifecycle(app string) *pb.AppLifecycle {
	w.t.Helper()
	got, err := w.control.AppGetLifecycle(w.python(), pb.AppGetLifecycleRequest_builder{AppId: app}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	return got.GetLifecycle()
}

// alive counts the sandboxes that have not ended.
func (w *world) alive() int {
	w.t.Helper()
	all, err := w.fleet.List(context.WithoutCancel(w.t.Context()), "", record.Filter{})
	if err != nil {
		w.t.Fatal(err)
	}
	return len(all)
}

// TestPythonAppRun calls what "with app.run()" around sandboxes calls: the sandboxes of an ephemeral app end with it.
//
// mission: A8
func TestPythonAppRun(t *testing.T) {
	w := newWorld(t)
	id := w.run("modal shell", pb.AppState_APP_STATE_EPHEMERAL)
	sb, task, err := w.sandboxOfApp(id, "sleep", "600")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := w.control.AppGetTags(w.python(), pb.AppGetTagsRequest_builder{AppId: id}.Build()); err != nil ||
		got.GetTags()["team"] != "a" {
		t.Errorf("the tags are %v, %v", got, err)
	}
	listed := w.listed(id)
	if listed == nil || listed.GetDescription() != "modal shell" ||
		listed.GetState() != pb.AppState_APP_STATE_EPHEMERAL ||
		listed.GetNRunningTasks() != 1 {
		t.Errorf("it is listed as %v", listed)
	}
	tasks, err := w.control.TaskList(w.python(), pb.TaskListRequest_builder{AppId: id, EnvironmentName: "main"}.Build())
	if err != nil || len(tasks.GetTasks()) != 1 || tasks.GetTasks()[0].GetTaskId() != task ||
		tasks.GetTasks()[0].GetAppId() != id || tasks.GetTasks()[0].GetAppDescription() != "modal shell" {
		t.Errorf("the tasks are %v, %v", tasks, err)
	}
	boxes, err := w.control.SandboxList(w.python(), pb.SandboxListRequest_builder{AppId: id}.Build())
	if err != nil || len(boxes.GetSandboxes()) != 1 || boxes.GetSandboxes()[0].GetId() != sb ||
		boxes.GetSandboxes()[0].GetAppId() != id {
		t.Errorf("the sandboxes are %v, %v", boxes, err)
	}
	other := w.run("other", pb.AppState_APP_STATE_EPHEMERAL)
	if _, _, err := w.sandboxOfApp(other, "sleep", "600"); err != nil {
		t.Fatal(err)
	}
	if err := w.disconnect(id); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the app's sandbox ends", func() bool { return w.alive() == 1 })
	testenv.Eventually(t, "the app is stopped", func() bool {
		return w.lifecycle(id).GetAppState() == pb.AppState_APP_STATE_STOPPED
	})
	if w.lifecycle(id).GetStoppedAt() == 0 || w.lifecycle(other).GetAppState() != pb.AppState_APP_STATE_EPHEMERAL {
		t.Errorf("they are %v and %v", w.lifecycle(id), w.lifecycle(other))
	}
	if _, _, err := w.sandboxOfApp(id, "true"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a sandbox in a stopped app: %v", err)
	}
	if err := w.disconnect(id); err != nil {
		t.Errorf("once more: %v", err)
	}
	back := w.asOther("acme")
	for name, err := range map[string]error{
		"disconnect": w.disconnect(other),
		"stop":       w.stopApp(other),
		"heartbeat":  second(w.control.AppHeartbeat(w.python(), pb.AppHeartbeatRequest_builder{AppId: other}.Build())),
		"create":     func() error { _, _, err := w.sandboxOfApp(other, "true"); return err }(),
	} {
		if status.Code(err) != codes.NotFound {
			t.Errorf("another account: %s: %v", name, err)
		}
	}
	back()
	if w.alive() != 1 {
		t.Errorf("there are %d sandboxes", w.alive())
	}
}

// TestAppsOfSilentClients checks that an ephemeral app ends when its client sends no heartbeats, that a detached one
// ends after its last sandbox, and that a deployed one stays.
//
// mission: A8
func TestAppsOfSilentClients(t *testing.T) {
	w := newWorld(t)
	silent := w.run("silent", pb.AppState_APP_STATE_EPHEMERAL)
	detached := w.run("detached", pb.AppState_APP_STATE_DETACHED)
	deployed := w.deploy("web", "")
	var boxes []string
	for _, app := range []string{silent, detached, deployed} {
		id, _, err := w.sandboxOfApp(app, "sleep", "600")
		if err != nil {
			t.Fatal(err)
		}
		boxes = append(boxes, id)
	}
	w.server.SweepApps(time.Now())
	if w.alive() != 3 {
		t.Errorf("at once, %d sandboxes are left", w.alive())
	}
	later := time.Now().Add(2 * time.Minute)
	w.server.SweepApps(later)
	testenv.Eventually(t, "the sandbox of the ephemeral app ends", func() bool { return w.alive() == 2 })
	testenv.Eventually(t, "the ephemeral app is stopped", func() bool {
		return w.lifecycle(silent).GetAppState() == pb.AppState_APP_STATE_STOPPED
	})
	if state := w.lifecycle(detached).GetAppState(); state != pb.AppState_APP_STATE_DETACHED_DISCONNECTED {
		t.Errorf("the detached app is %v", state)
	}
	if _, err := w.control.SandboxTerminate(w.python(),
		pb.SandboxTerminateRequest_builder{SandboxId: boxes[1]}.Build()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the detached app ends with its sandbox", func() bool {
		w.server.SweepApps(later)
		return w.lifecycle(detached).GetAppState() == pb.AppState_APP_STATE_STOPPED
	})
	if state := w.lifecycle(deployed).GetAppState(); state != pb.AppState_APP_STATE_DEPLOYED || w.alive() != 1 {
		t.Errorf("the deployed app is %v, with %d sandboxes", state, w.alive())
	}
}

func (w *world) stopApp(id string) error {
	return second(w.control.AppStop(w.python(), pb.AppStopRequest_builder{AppId: id,
		Source: pb.AppStopSource_APP_STOP_SOURCE_CLI}.Build()))
}

// listed is the entry of an app in the list, nil without one.
func (w *world) listed(id string) *pb.AppListResponse_AppListItem {
	w.t.Helper()
	got, err := w.control.AppList(w.python(), pb.AppListRequest_builder{EnvironmentName: "main"}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range got.GetApps() {
		if a.GetAppId() == id {
			return a
		}
	}
	return nil
}

func (w *world) byName(name string) *pb.AppGetByDeploymentNameResponse {
	w.t.Helper()
	got, err := w.control.AppGetByDeploymentName(w.python(),
		pb.AppGetByDeploymentNameRequest_builder{Name: name}.Build())
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

// deploy calls what App.deploy calls.
func (w *world) deploy(name, tag string) string {
	w.t.Helper()
	id := w.byName(name).GetAppId()
	if id == "" {
		got, err := w.control.AppCreate(w.python(), pb.AppCreateRequest_builder{Description: name,
			AppState: pb.AppState_APP_STATE_INITIALIZING}.Build())
		if err != nil {
			w.t.Fatal(err)
		}
		id = got.GetAppId()
	} else if _, err := w.control.AppGetLayout(w.python(),
		pb.AppGetLayoutRequest_builder{AppId: id}.Build()); err != nil {
		w.t.Errorf("the layout: %v", err)
	}
	got, err := w.control.AppPublish(w.python(), pb.AppPublishRequest_builder{AppId: id, Name: name, DeploymentTag: tag,
		AppState: pb.AppState_APP_STATE_DEPLOYED, CommitInfo: pb.CommitInfo_builder{CommitHash: "abc"}.Build()}.Build())
	if err != nil || got.GetDeployedAt() == 0 {
		w.t.Errorf("publish: %v, %v", got, err)
	}
	return id
}

// TestPythonAppDeploy calls what App.deploy, App.lookup and "modal app history|stop" call.
//
// mission: A7
func TestPythonAppDeploy(t *testing.T) {
	w := newWorld(t)
	if got := w.byName("web"); got.GetAppId() != "" || got.GetPreviousAppId() != "" ||
		got.GetEnvironmentName() != "main" {
		t.Errorf("before: %v", got)
	}
	id := w.deploy("web", "v1")
	if again := w.deploy("web", "v2"); again != id {
		t.Errorf("the second deployment is %s, the first %s", again, id)
	}
	if got := w.byName("web"); got.GetAppId() != id || got.GetLifecycle().GetVersion() != 2 ||
		got.GetLifecycle().GetAppState() != pb.AppState_APP_STATE_DEPLOYED {
		t.Errorf("by name: %v", got)
	}
	if got := w.byName(id); got.GetAppId() != id {
		t.Errorf("by its ID, in place of a name: %v", got)
	}
	lookup, err := w.control.AppGetOrCreate(w.python(), pb.AppGetOrCreateRequest_builder{AppName: "web"}.Build())
	if err != nil || lookup.GetAppId() != id {
		t.Errorf("lookup: %v, %v", lookup, err)
	}
	w.restart()
	history, err := w.control.AppDeploymentHistory(w.python(),
		pb.AppDeploymentHistoryRequest_builder{AppId: id}.Build())
	var tags []string
	for _, v := range history.GetAppDeploymentHistories() {
		tags = append(tags, v.GetTag())
		if v.GetClientVersion() != "1.5.4" || v.GetCommitInfo().GetCommitHash() != "abc" || v.GetDeployedAt() == 0 {
			t.Errorf("a version is %v", v)
		}
	}
	if err != nil || !slices.Equal(tags, []string{"v2", "v1"}) {
		t.Errorf("the history has %v, %v", tags, err)
	}
	if _, _, err := w.sandboxOfApp(id, "sleep", "600"); err != nil {
		t.Fatal(err)
	}
	if err := w.disconnect(id); err != nil || w.alive() != 1 {
		t.Errorf("a disconnect leaves %d sandboxes, %v", w.alive(), err)
	}
	if err := w.stopApp(id); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the sandbox ends", func() bool { return w.alive() == 0 })
	if got := w.byName("web"); got.GetAppId() != "" || got.GetPreviousAppId() != id ||
		got.GetLifecycle().GetStoppedAt() == 0 {
		t.Errorf("after the stop: %v", got)
	}
	if _, err := w.control.AppGetOrCreate(w.python(),
		pb.AppGetOrCreateRequest_builder{AppName: "web"}.Build()); status.Code(err) !=
		codes.NotFound {
		t.Errorf("lookup after the stop: %v", err)
	}
	w.deploy("web", "v3")
	if got := w.byName("web"); got.GetAppId() == "" {
		t.Errorf("deployed after the stop: %v", got)
	}
	for name, req := range map[string]pb.AppPublishRequest_builder{
		"functions": {AppId: id, Name: "web", FunctionIds: map[string]string{"f": "fu-1"}},
		"classes":   {AppId: id, Name: "web", ClassIds: map[string]string{"C": "cs-1"}},
		"staged":    {AppId: id, Name: "web", Staged: true},
	} {
		req.AppState = pb.AppState_APP_STATE_DEPLOYED
		if _, err := w.control.AppPublish(w.python(), req.Build()); status.Code(err) != codes.Unimplemented {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// logsOf follows the logs of an app until they are done, as get_app_logs_loop of Python's SDK does.
func (w *world) logsOf(req pb.AppGetLogsRequest_builder) (text string, done bool, err error) {
	var all strings.Builder
	for range 20 {
		stream, err := w.control.AppGetLogs(w.python(), req.Build())
		if err != nil {
			return "", false, err
		}
		for {
			batch, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return all.String(), false, err
			}
			if batch.GetEntryId() != "" {
				req.LastEntryId = batch.GetEntryId()
			}
			for _, l := range batch.GetItems() {
				all.WriteString(l.GetData())
			}
			if batch.GetAppDone() {
				return all.String(), true, nil
			}
		}
		if req.Timeout == 0 {
			break
		}
	}
	return all.String(), false, nil
}

// TestPythonAppLogs calls what "modal app logs" and "modal container logs|stop" call.
//
// mission: A1
func TestPythonAppLogs(t *testing.T) {
	w := newWorld(t)
	id := w.run("logs", pb.AppState_APP_STATE_EPHEMERAL)
	_, task, err := w.sandboxOfApp(id, "sh", "-c", "echo one; echo two >&2; sleep 600")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := w.sandboxOfApp(id, "sh", "-c", "echo three"); err != nil {
		t.Fatal(err)
	}
	has := func(text string, words ...string) bool {
		return !slices.ContainsFunc(words, func(word string) bool { return strings.Count(text, word) != 1 })
	}
	testenv.Eventually(t, "the logs have all lines", func() bool {
		text, _, err := w.logsOf(pb.AppGetLogsRequest_builder{AppId: id})
		return err == nil && has(text, "one\n", "two\n", "three\n")
	})
	if text, _, err := w.logsOf(pb.AppGetLogsRequest_builder{TaskId: task,
		FileDescriptor: pb.FileDescriptor_FILE_DESCRIPTOR_STDERR}); err != nil || text != "two\n" {
		t.Errorf("standard error of the container: %q, %v", text, err)
	}
	if text, _, err := w.logsOf(pb.AppGetLogsRequest_builder{AppId: id, SearchText: "hre"}); err != nil ||
		text != "three\n" {
		t.Errorf("the lines with a text: %q, %v", text, err)
	}
	fetched, err := w.control.AppFetchLogs(w.python(), pb.AppFetchLogsRequest_builder{AppId: id, Limit: 100,
		Since: timestamppb.New(time.Now().Add(-time.Hour)),
		Until: timestamppb.New(time.Now().Add(time.Minute))}.Build())
	n := 0
	for _, batch := range fetched.GetBatches() {
		n += len(batch.GetItems())
	}
	if err != nil || n != 3 {
		t.Errorf("%d lines fetched, %v", n, err)
	}
	counted, err := w.control.AppCountLogs(w.python(), pb.AppCountLogsRequest_builder{AppId: id, BucketSecs: 3600,
		Since: timestamppb.New(time.Now().Add(-time.Hour)),
		Until: timestamppb.New(time.Now().Add(time.Minute))}.Build())
	n = 0
	for _, b := range counted.GetBuckets() {
		n += int(b.GetStdoutLogs() + b.GetStderrLogs())
	}
	if err != nil || n != 3 {
		t.Errorf("%d lines counted, %v", n, err)
	}
	info, err := w.control.TaskGetInfo(w.python(), pb.TaskGetInfoRequest_builder{TaskId: task}.Build())
	if err != nil || info.GetAppId() != id || info.GetInfo().GetStartedAt() == 0 ||
		info.GetInfo().GetFinishedAt() != 0 {
		t.Errorf("the container: %v, %v", info, err)
	}
	if _, err := w.control.ContainerStop(w.python(),
		pb.ContainerStopRequest_builder{TaskId: task}.Build()); err != nil {
		t.Fatal(err)
	}
	testenv.Eventually(t, "the container ends", func() bool {
		info, err := w.control.TaskGetInfo(w.python(), pb.TaskGetInfoRequest_builder{TaskId: task}.Build())
		return err == nil && info.GetInfo().GetFinishedAt() != 0
	})
	followed := make(chan string, 1)
	go func() {
		text, done, err := w.logsOf(pb.AppGetLogsRequest_builder{AppId: id, Timeout: 55})
		if err != nil || !done {
			t.Errorf("following ends with %v, %v", done, err)
		}
		followed <- text
	}()
	if err := w.disconnect(id); err != nil {
		t.Fatal(err)
	}
	if text := <-followed; !has(text, "one\n", "two\n", "three\n") {
		t.Errorf("followed: %q", text)
	}
	defer w.asOther("acme")()
	if _, _, err := w.logsOf(pb.AppGetLogsRequest_builder{AppId: id}); status.Code(err) != codes.NotFound {
		t.Errorf("another account reads the logs: %v", err)
	}
	if _, err := w.control.ContainerStop(w.python(),
		pb.ContainerStopRequest_builder{TaskId: task}.Build()); status.Code(err) !=
		codes.NotFound {
		t.Errorf("another account stops the container: %v", err)
	}
}
