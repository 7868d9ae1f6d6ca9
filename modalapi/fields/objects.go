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

var objectServed = map[protoreflect.Name][]protoreflect.Name{
	"AppClientDisconnectRequest": {"app_id"},
	"AppCountLogsRequest": {"app_id", "task_id", "sandbox_id", "search_text", "since", "until", "bucket_secs",
		"source"},
	"AppCreateRequest":            {"description", "environment_name", "app_state", "tags"},
	"AppDeploymentHistoryRequest": {"app_id"},
	"AppFetchLogsRequest": {"app_id", "since", "until", "limit", "source", "task_id", "sandbox_id",
		"search_text"},
	"AppGetByDeploymentNameRequest": {"name", "environment_name"},
	"AppGetInfoRequest":             {"app_id"},
	"AppGetLayoutRequest":           {"app_id"},
	"AppGetLifecycleRequest":        {"app_id"},
	"AppGetLogsRequest": {"app_id", "timeout", "last_entry_id", "task_id", "file_descriptor", "sandbox_id",
		"search_text"},
	"AppGetOrCreateRequest": {"app_name", "environment_name", "object_creation_type"},
	"AppGetTagsRequest":     {"app_id"},
	"AppHeartbeatRequest":   {"app_id"},
	"AppListRequest":        {"environment_name"},
	"AppPublishRequest":     {"app_id", "name", "deployment_tag", "app_state", "commit_info", "tags"},
	"AppSetTagsRequest":     {"app_id", "tags"},
	"AppStopRequest":        {"app_id"},
	"CommitInfo": {"vcs", "branch", "commit_hash", "commit_timestamp", "dirty", "author_name", "author_email",
		"repo_url"},
	"ContainerFilesystemExecRequest": {"file_open_request", "file_write_request", "file_read_request",
		"file_flush_request", "file_read_line_request", "file_seek_request", "file_close_request", "file_ls_request",
		"file_mkdir_request", "file_rm_request", "file_watch_request", "task_id"},
	"ContainerFileCloseRequest":     {"file_descriptor"},
	"ContainerFileFlushRequest":     {"file_descriptor"},
	"ContainerFileLsRequest":        {"path"},
	"ContainerFileMkdirRequest":     {"path", "make_parents"},
	"ContainerFileOpenRequest":      {"path", "mode"},
	"ContainerFileReadLineRequest":  {"file_descriptor"},
	"ContainerFileReadRequest":      {"file_descriptor", "n"},
	"ContainerFileRmRequest":        {"path", "recursive"},
	"ContainerFileSeekRequest":      {"file_descriptor", "offset", "whence"},
	"ContainerFileWatchRequest":     {"path", "recursive", "timeout_secs"},
	"ContainerFileWriteRequest":     {"file_descriptor", "data"},
	"ContainerStopRequest":          {"task_id"},
	"DictClearRequest":              {"dict_id"},
	"DictContainsRequest":           {"dict_id", "key"},
	"DictContentsRequest":           {"dict_id", "keys", "values"},
	"DictDeleteRequest":             {"dict_id"},
	"DictEntry":                     {"key", "value"},
	"DictGetByIdRequest":            {"dict_id"},
	"DictGetOrCreateRequest":        {"deployment_name", "environment_name", "object_creation_type", "data"},
	"DictGetRequest":                {"dict_id", "key"},
	"DictHeartbeatRequest":          {"dict_id"},
	"DictLenRequest":                {"dict_id"},
	"DictListRequest":               {"environment_name", "pagination"},
	"DictPopRequest":                {"dict_id", "key"},
	"DictUpdateRequest":             {"dict_id", "updates", "if_not_exists"},
	"EnvironmentCreateRequest":      {"name"},
	"EnvironmentDeleteRequest":      {"name"},
	"EnvironmentGetOrCreateRequest": {"deployment_name"},
	"EnvironmentUpdateRequest":      {"current_name", "name"},
	"StringValue":                   {"value"},
	"Timestamp":                     {"seconds", "nanos"},
	"ImageDeleteRequest":            {"image_id"},
	"ImageFromIdRequest":            {"image_id"},
	"ImageGetByTagRequest":          {"tag", "environment_name"},
	"ImageJoinStreamingRequest":     {"image_id", "timeout", "last_entry_id"},
	"ImagePublishRequest":           {"image_id", "tag", "environment_name"},
	"ListPagination":                {"max_objects", "created_before"},
	"ProxyCreateRequest":            {"name", "environment_name"},
	"ProxyGetRequest":               {"name", "environment_name"},
	"QueueClearRequest":             {"queue_id", "partition_key", "all_partitions"},
	"QueueDeleteRequest":            {"queue_id"},
	"QueueGetByIdRequest":           {"queue_id"},
	"QueueGetOrCreateRequest":       {"deployment_name", "environment_name", "object_creation_type"},
	"QueueGetRequest":               {"queue_id", "timeout", "n_values", "partition_key"},
	"QueueHeartbeatRequest":         {"queue_id"},
	"QueueLenRequest":               {"queue_id", "partition_key", "total"},
	"QueueListRequest":              {"environment_name", "total_size_limit", "pagination"},
	"QueueNextItemsRequest":         {"queue_id", "partition_key", "last_entry_id", "item_poll_timeout"},
	"QueuePutRequest":               {"queue_id", "values", "partition_key"},

	"SandboxGetCommandRouterAccessRequest": {"sandbox_id", "task_id"},
	"SandboxGetLogsRequest":                {"sandbox_id", "file_descriptor", "timeout", "last_entry_id"},
	"SandboxRestoreRequest":                {"snapshot_id", "sandbox_name_override", "sandbox_name_override_type"},
	"SandboxSetNameRequest":                {"sandbox_id", "name"},
	"SandboxSnapshotGetRequest":            {"snapshot_id"},
	"SandboxSnapshotRequest":               {"sandbox_id"},
	"SandboxSnapshotWaitRequest":           {"snapshot_id", "timeout"},
	"SandboxStdinWriteRequest":             {"sandbox_id", "input", "index", "eof"},
	"SandboxWaitUntilReadyRequest":         {"sandbox_id", "timeout"},
	"SecretDeleteRequest":                  {"secret_id"},
	"SecretGetInfoRequest":                 {"secret_id"},
	"SecretGetOrCreateRequest": {"deployment_name", "environment_name", "object_creation_type", "env_dict",
		"required_keys"},
	"SecretListRequest":                 {"environment_name", "pagination"},
	"SecretUpdateRequest":               {"secret_id", "updates"},
	"Update":                            {"key", "value"}, // of a secret
	"TaskGetCommandRouterAccessRequest": {"task_id"},
	"TaskGetInfoRequest":                {"task_id"},
	"TaskListRequest":                   {"environment_name", "app_id"},
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

var objectHarmless = map[protoreflect.Name][]protoreflect.Name{
	"AppClientDisconnectRequest":    {"reason", "exception"},
	"AppCreateRequest":              {"client_id"},
	"AppPublishRequest":             {"rollback_version", "client_version", "deployment_type"},
	"AppStopRequest":                {"source"},
	"ContainerFileOpenRequest":      {"file_descriptor"},
	"ContainerStopRequest":          {"graceful"},
	"EnvironmentCreateRequest":      {"environment_type"},
	"EnvironmentGetOrCreateRequest": {"object_creation_type"},
	"ImageJoinStreamingRequest":     {"include_logs_for_finished"},
	"ProxyCreateRequest":            {"region"},
	"QueuePutRequest":               {"partition_ttl_seconds"},
	"SandboxRestoreRequest":         {"worker_id"},
	"SecretGetOrCreateRequest":      {"app_id"},
	"TaskContainerCreateRequest":    {"memory_reserve_consume_mib"},
	"TaskExecStartRequest":          {"runtime_debug"},
}
