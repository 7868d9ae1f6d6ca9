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

var routerRefused = map[protoreflect.Name]map[protoreflect.Name]Refusal{
	"TaskSnapshotFilesystemRequest": {"customer_supplied_encryption_key": Elsewhere},
}
