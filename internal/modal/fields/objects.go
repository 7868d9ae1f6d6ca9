package fields

import (
	"maps"

	"google.golang.org/protobuf/reflect/protoreflect"
)

// together returns maps as one.
func together[V any](all ...map[protoreflect.Name]V) map[protoreflect.Name]V {
	joined := map[protoreflect.Name]V{}
	for _, m := range all {
		maps.Copy(joined, m)
	}
	return joined
}

// objectRoots are the requests of apps, Dicts, environments, images by name, proxies, queues, secrets and tasks, and
// those of sandboxes that describe no sandbox.
var objectRoots = []protoreflect.Name{
	"AppClientDisconnectRequest", "AppCountLogsRequest", "AppCreateRequest", "AppDeploymentHistoryRequest",
	"AppFetchLogsRequest", "AppGetByDeploymentNameRequest", "AppGetInfoRequest", "AppGetLayoutRequest",
	"AppGetLifecycleRequest", "AppGetLogsRequest", "AppGetOrCreateRequest", "AppGetTagsRequest", "AppHeartbeatRequest",
	"AppListRequest", "AppPublishRequest", "AppSetTagsRequest", "AppStopRequest", "ContainerFilesystemExecRequest",
	"ContainerStopRequest", "DictClearRequest", "DictContainsRequest", "DictContentsRequest", "DictDeleteRequest",
	"DictGetByIdRequest", "DictGetOrCreateRequest", "DictGetRequest", "DictHeartbeatRequest", "DictLenRequest",
	"DictListRequest", "DictPopRequest", "DictUpdateRequest", "EnvironmentCreateRequest", "EnvironmentDeleteRequest",
	"EnvironmentGetOrCreateRequest", "EnvironmentUpdateRequest", "ImageDeleteRequest", "ImageFromIdRequest",
	"ImageGetByTagRequest", "ImageJoinStreamingRequest", "ImagePublishRequest", "ProxyCreateRequest", "ProxyGetRequest",
	"QueueClearRequest", "QueueDeleteRequest", "QueueGetByIdRequest", "QueueGetOrCreateRequest", "QueueGetRequest",
	"QueueHeartbeatRequest", "QueueLenRequest", "QueueListRequest", "QueueNextItemsRequest", "QueuePutRequest",
	"SandboxGetCommandRouterAccessRequest", "SandboxGetLogsRequest", "SandboxRestoreRequest", "SandboxSetNameRequest",
	"SandboxSnapshotGetRequest", "SandboxSnapshotRequest", "SandboxSnapshotWaitRequest", "SandboxStdinWriteRequest",
	"SandboxWaitUntilReadyRequest", "SecretDeleteRequest", "SecretGetInfoRequest", "SecretGetOrCreateRequest",
	"SecretListRequest", "SecretUpdateRequest", "TaskGetCommandRouterAccessRequest", "TaskGetInfoRequest",
	"TaskListRequest", "TokenInfoGetRequest",
}

var (
	noSettings = Refusal{"this server has no settings of environments", "leave the settings out"}
	noRoles    = Refusal{"this server has no roles of environments",
		"use accounts: harvest key create --account"}
	noRestoredVolumes = Refusal{"a restored sandbox has no volumes here",
		"create a sandbox with the volumes from a snapshot of the files"}
)

var objectRefused = map[protoreflect.Name]map[protoreflect.Name]Refusal{
	"AppCountLogsRequest": {"function_id": Elsewhere, "function_call_id": Elsewhere,
		"parametrized_function_id": Elsewhere},
	"AppFetchLogsRequest": {"function_id": Elsewhere, "function_call_id": Elsewhere,
		"parametrized_function_id": Elsewhere},
	"AppGetLogsRequest": {"function_id": Elsewhere, "function_call_id": Elsewhere,
		"parametrized_function_id": Elsewhere,
		"input_id":                 Elsewhere},
	"AppPublishRequest": {"function_ids": Elsewhere, "class_ids": Elsewhere, "definition_ids": Elsewhere,
		"staged": Elsewhere},
	"ContainerFilesystemExecRequest": {"file_delete_bytes_request": Elsewhere,
		"file_write_replace_bytes_request": Elsewhere},
	"EnvironmentCreateRequest": {"is_managed": Elsewhere, "settings": noSettings, "default_member_role": noRoles,
		"default_member_role_str": noRoles},
	"EnvironmentUpdateRequest": {"web_suffix": Elsewhere, "max_concurrent_tasks": Elsewhere,
		"max_concurrent_gpus": Elsewhere, "block_unauthenticated_resources": Elsewhere},
	"ImagePublishRequest":   {"allow_public": {"images are not public here", "leave allow_public out"}},
	"SandboxRestoreRequest": {"replace_volume_mounts": noRestoredVolumes, "volume_mounts": noRestoredVolumes},
}
