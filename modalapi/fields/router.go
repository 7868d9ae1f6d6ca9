package fields

import "google.golang.org/protobuf/reflect/protoreflect"

// routerRoots are the requests of TaskCommandRouter. A stream of input is not checked: its fields are all served.
var routerRoots = []protoreflect.Name{
	"SandboxStdinWriteV2Request", "SandboxStdioReadV2Request", "SandboxWaitUntilReadyTcrRequest",
	"TaskContainerCreateRequest", "TaskContainerGetRequest", "TaskContainerListRequest",
	"TaskContainerTerminateRequest", "TaskContainerWaitRequest", "TaskExecPollRequest", "TaskExecStartRequest",
	"TaskExecStdinStatusRequest", "TaskExecStdinWriteRequest", "TaskExecStdinWriteStreamRequest",
	"TaskExecStdioReadRequest", "TaskExecWaitRequest", "TaskMountDirectoryRequest", "TaskReloadVolumesRequest",
	"TaskSetNetworkAccessRequest", "TaskSnapshotDirectoryRequest", "TaskSnapshotFilesystemRequest",
	"TaskSnapshotMemoryRequest", "TaskUnmountDirectoryRequest",
}

var routerServed = map[protoreflect.Name][]protoreflect.Name{
	"SandboxStdinWriteV2Request":      {"task_id", "offset", "data", "eof"},
	"SandboxStdioReadV2Request":       {"task_id", "offset", "file_descriptor"},
	"SandboxWaitUntilReadyTcrRequest": {"task_id", "timeout"},
	"TaskContainerCreateRequest": {"task_id", "container_name", "image_id", "args", "env", "workdir", "secret_ids",
		"volume_mounts", "network_access", "pty_info", "secret_sources"},
	"TaskContainerGetRequest":       {"task_id", "container_name", "include_terminated"},
	"TaskContainerListRequest":      {"task_id", "include_terminated"},
	"TaskContainerTerminateRequest": {"task_id", "container_id"},
	"TaskContainerWaitRequest":      {"task_id", "container_id", "timeout"},
	"TaskExecPollRequest":           {"task_id", "exec_id"},
	"TaskExecStartRequest": {"task_id", "exec_id", "command_args", "stdout_config", "stderr_config", "timeout_secs",
		"workdir", "secret_ids", "pty_info", "container_id", "env", "secret_sources"},
	"TaskExecStdinStatusRequest":      {"task_id", "exec_id"},
	"TaskExecStdinWriteRequest":       {"task_id", "exec_id", "offset", "data", "eof"},
	"TaskExecStdinWriteStreamRequest": {"start", "data", "end"},
	"TaskExecStdinWriteStreamStart":   {"task_id", "exec_id", "offset"},
	"TaskExecStdioReadRequest":        {"task_id", "exec_id", "offset", "file_descriptor"},
	"TaskExecWaitRequest":             {"task_id", "exec_id"},
	"TaskMountDirectoryRequest": {"task_id", "path", "image_id", "customer_supplied_encryption_key",
		"container_id"},
	"TaskReloadVolumesRequest":    {"task_id", "container_id"},
	"TaskSetNetworkAccessRequest": {"task_id", "network_access"},
	"TaskSnapshotDirectoryRequest": {"task_id", "path", "snapshot_id", "ttl_seconds",
		"customer_supplied_encryption_key", "container_id"},
	"TaskSnapshotFilesystemRequest": {"task_id", "snapshot_id", "ttl_seconds", "container_id"},
	"TaskSnapshotMemoryRequest":     {"task_id", "idempotency_key"},
	"TaskUnmountDirectoryRequest":   {"task_id", "path", "container_id"},
}

var routerRefused = map[protoreflect.Name]map[protoreflect.Name]Refusal{
	"TaskSnapshotFilesystemRequest": {"customer_supplied_encryption_key": Elsewhere},
}
