// Package fields lists how each field of the requests that describe sandboxes, images and volumes is treated: it is
// served, refused, or harmless to ignore. An option that restricts something is never ignored.
package fields

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/RelevanceAI/harvest/errors"
)

// Roots are the requests whose fields are listed, with all messages within them.
var Roots = slices.Concat(creationRoots, objectRoots, routerRoots)

var creationRoots = []protoreflect.Name{
	"SandboxCreateRequest", "SandboxCreateV2Request", "SandboxContainerCreateV2Request", "SandboxRestoreV2Request",
	"SandboxCreateConnectTokenRequest", "SandboxGetExitSnapshotRequest", "SandboxGetFromNameRequest",
	"SandboxGetTaskIdRequest",
	"SandboxGetTunnelsRequest", "SandboxListRequest", "SandboxTagsGetRequest", "SandboxTagsSetRequest",
	"SandboxTerminateRequest",
	"SandboxWaitRequest", "ImageGetOrCreateRequest", "VolumeGetOrCreateRequest",
	"MountGetOrCreateRequest", "MountPutFileRequest", "MountBatchedCheckExistenceRequest", "BlobCreateRequest",
	"BlobGetRequest",
	"VolumeCopyFilesRequest", "VolumeCopyFiles2Request", "VolumeGetByIdRequest", "VolumeGetFileRequest",
	"VolumeGetFile2Request", "VolumeListFilesRequest", "VolumeListFiles2Request", "VolumePutFilesRequest",
	"VolumePutFiles2Request", "VolumeDeleteRequest", "VolumeHeartbeatRequest", "VolumeListRequest",
	"VolumeRemoveFileRequest", "VolumeRemoveFile2Request", "VolumeRenameRequest",
}

// Served are the fields that have their effect, by message.
var Served = together(creationServed, objectServed, routerServed)

var creationServed = map[protoreflect.Name][]protoreflect.Name{
	"SandboxCreateRequest":   {"app_id", "definition", "environment_name", "tags"},
	"SandboxCreateV2Request": {"app_id", "definition", "ephemeral_secrets", "tags", "secret_sources"},
	"SandboxContainerCreateV2Request": {"sandbox_id", "container_name", "definition", "ephemeral_secrets",
		"secret_sources"},
	"SandboxRestoreV2Request":          {"snapshot_id", "sandbox_name_override", "sandbox_name_override_type"},
	"SandboxCreateConnectTokenRequest": {"sandbox_id", "user_metadata", "port"},
	"SandboxGetExitSnapshotRequest":    {"sandbox_id", "timeout"},
	"SandboxGetFromNameRequest":        {"sandbox_name", "environment_name", "app_name", "include_terminated"},
	"SandboxGetTaskIdRequest":          {"sandbox_id"},
	"SandboxGetTunnelsRequest":         {"sandbox_id", "timeout"},
	"SandboxListRequest":               {"app_id", "before_timestamp", "environment_name", "include_finished", "tags"},
	"SandboxTagsGetRequest":            {"sandbox_id"},
	"SandboxTagsSetRequest":            {"sandbox_id", "tags"},
	"SandboxTerminateRequest":          {"sandbox_id"},
	"SandboxWaitRequest":               {"sandbox_id", "timeout"},
	"Sandbox": {
		"entrypoint_args", "image_id", "secret_ids", "resources", "timeout_secs", "workdir", "block_network",
		"cloud_bucket_mounts", "volume_mounts",
		"pty_info", "open_ports", "network_access", "proxy_id", "enable_snapshot", "cloud_provider_str", "runtime",
		"mount_ids", "name", "experimental_options",
		"experimental_options_v2", "idle_timeout_secs", "include_oidc_identity_token", "readiness_probe",
		"environment_variables", "inbound_cidr_allowlist",
	},
	"Resources": {"memory_mb", "milli_cpu", "memory_mb_max", "ephemeral_disk_mb", "milli_cpu_max"},
	"CloudBucketMount": {"bucket_name", "mount_path", "credentials_secret_id", "read_only",
		"bucket_endpoint_url", "key_prefix", "force_path_style"},
	"VolumeMount": {"volume_id", "mount_path", "read_only", "sub_path"},
	"PTYInfo": {"enabled", "winsz_rows", "winsz_cols", "env_term", "env_colorterm",
		"env_term_program", "pty_type"},
	"PortSpecs":               {"ports"},
	"PortSpec":                {"port", "unencrypted", "tunnel_type"},
	"NetworkAccess":           {"network_access_type", "allowed_cidrs", "allowed_domains"},
	"Probe":                   {"tcp_port", "exec_command", "interval_ms"},
	"ExecCommand":             {"argv"},
	"StringMap":               {"contents"},
	"SandboxTag":              {"tag_name", "tag_value"},
	"SecretSource":            {"secret_id", "env"},
	"ImageGetOrCreateRequest": {"image", "force_build", "ignore_cache"},
	"Image": {"base_images", "dockerfile_commands", "context_files", "context_mount_id", "secret_ids",
		"image_registry_config", "build_args", "arch"},
	"BaseImage":           {"image_id", "docker_tag"},
	"ImageContextFile":    {"filename", "data"},
	"ImageRegistryConfig": {"registry_auth_type", "secret_id"},
	"VolumeGetOrCreateRequest": {
		"deployment_name", "environment_name", "object_creation_type",
	},
	"MountGetOrCreateRequest": {"deployment_name", "namespace", "environment_name", "object_creation_type",
		"files"},
	"MountFile":                         {"filename", "sha256_hex", "mode"},
	"MountPutFileRequest":               {"sha256_hex", "data", "data_blob_id"},
	"MountBatchedCheckExistenceRequest": {"sha256_hex_hashes"},
	"BlobCreateRequest":                 {"content_sha256_base64", "content_length"},
	"BlobGetRequest":                    {"blob_id"},
	"VolumeCopyFilesRequest":            {"volume_id", "src_paths", "dst_path", "recursive"},
	"VolumeCopyFiles2Request":           {"volume_id", "src_paths", "dst_path", "recursive"},
	"VolumeDeleteRequest":               {"volume_id"},
	"VolumeGetByIdRequest":              {"volume_id"},
	"VolumeGetFileRequest":              {"volume_id", "path", "start", "len"},
	"VolumeGetFile2Request":             {"volume_id", "path", "start", "len"},
	"VolumeHeartbeatRequest":            {"volume_id"},
	"VolumeListRequest":                 {"environment_name", "pagination"},
	"VolumeListFilesRequest":            {"volume_id", "path", "recursive", "max_entries"},
	"VolumeListFiles2Request":           {"volume_id", "path", "recursive", "max_entries"},
	"VolumePutFilesRequest":             {"volume_id", "files", "disallow_overwrite_existing_files"},
	"VolumePutFiles2Request":            {"volume_id", "files", "disallow_overwrite_existing_files"},
	"File":                              {"path", "size", "blocks", "mode"},
	"Block":                             {"contents_sha256"},
	"VolumeRemoveFileRequest":           {"volume_id", "path", "recursive"},
	"VolumeRemoveFile2Request":          {"volume_id", "path", "recursive"},
	"VolumeRenameRequest":               {"volume_id", "name"},
}

// Refusal says why a field is refused, and what to do instead.
type Refusal struct{ Why, Remedy string }

// Elsewhere is the refusal of a field by the code that reads the message.
var Elsewhere = Refusal{}

// Refused are the fields with which a request fails, by message.
var Refused = together(creationRefused, objectRefused, routerRefused)

var creationRefused = map[protoreflect.Name]map[protoreflect.Name]Refusal{
	"SandboxCreateV2Request":          {"cloud_bucket_mount_credentials": bucketKeys},
	"SandboxContainerCreateV2Request": {"cloud_bucket_mount_credentials": bucketKeys},
	"Sandbox": {
		"nfs_mounts": Elsewhere, "s3_mounts": Elsewhere, "i6pn_enabled": Elsewhere,
		"custom_domain":                Elsewhere,
		"experimental_outbound_policy": Elsewhere, "include_x509_svid": Elsewhere,
		"outbound_policy": {"routes for outbound connections are not supported",
			"use outbound_cidr_allowlist and outbound_domain_allowlist"},
	},
	"Resources": {
		"gpu_config": Elsewhere,
		"rdma":       {"there is no RDMA here", "leave rdma out"},
	},
	"CloudBucketMount":        {"requester_pays": Elsewhere, "oidc_auth_role_arn": Elsewhere},
	"ImageGetOrCreateRequest": {"build_function_id": Elsewhere},
	"Image": {
		"gpu_config": Elsewhere, "build_function": Elsewhere,
		"build_function_def": Elsewhere,
		"volume_mounts": {"volumes are not mounted in builds here",
			"read the files in a sandbox that mounts the volume, and take a snapshot of it"},
	},
	"VolumeGetOrCreateRequest": {
		"create_options": {"volumes have no experimental options here", "leave experimental_options out"},
	},
}

var bucketKeys = Refusal{"keys of buckets without a secret are not supported", "give the mount a secret"}

// Harmless are the fields that are ignored, by message: they choose among machines or versions that do not exist
// here, or describe what happens anyway. docs/modal.md lists them.
var Harmless = together(creationHarmless, objectHarmless)

var creationHarmless = map[protoreflect.Name][]protoreflect.Name{
	"SandboxRestoreV2Request": {"worker_id"},
	"SandboxGetTaskIdRequest": {"timeout", "wait_until_ready"},
	"SandboxTagsSetRequest":   {"environment_name"},
	"Sandbox": {
		"cloud_provider", "runtime_debug", "scheduler_placement", "worker_id", "snapshot_version",
		"runsc_runtime_version", "verbose",
		"preload_path_prefixes", "direct_sandbox_commands_enabled", "_restore_instance_type",
	},
	"CloudBucketMount": {"bucket_type", "metadata_ttl_type", "metadata_ttl_seconds"},
	"VolumeMount":      {"allow_background_commits"},
	"PTYInfo":          {"no_terminate_on_idle_stdin"},
	"ImageGetOrCreateRequest": {"app_id", "existing_image_id", "namespace", "builder_version",
		"allow_global_deployment"},
	"Image":                    {"version", "build_function_globals", "runtime", "runtime_debug"},
	"VolumeGetOrCreateRequest": {"app_id", "version"},
	"MountGetOrCreateRequest":  {"app_id", "earliest_checked_at"},
	"MountFile":                {"size"},
	"BlobCreateRequest":        {"content_md5"},
	"VolumeDeleteRequest":      {"environment_name"},
	"VolumeGetFile2Request":    {"client_pads_blocks"},
	"VolumePutFilesRequest":    {"earliest_checked_at"},
	"Block":                    {"put_response"},
}

// Check returns an error if the message of a request, or one within it, has a refused field. Other requests pass.
func Check(m proto.Message) error {
	r := m.ProtoReflect()
	if !slices.Contains(Roots, r.Descriptor().Name()) {
		return nil
	}
	return check(r)
}

func check(m protoreflect.Message) error {
	name := m.Descriptor().Name()
	for _, field := range slices.Sorted(maps.Keys(Refused[name])) {
		no := Refused[name][field]
		if f := m.Descriptor().Fields().ByName(field); no != Elsewhere && f != nil && set(m, f) {
			return errors.Remedy(errors.Newf(errors.Unsupported, "%s", no.Why), "%s", no.Remedy)
		}
	}
	var err error
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := 0; err == nil && i < v.List().Len(); i++ {
				err = check(v.List().Get(i).Message())
			}
		default:
			err = check(v.Message())
		}
		return err == nil
	})
	return err
}

// set reports whether a field has content: an empty message has none.
func set(m protoreflect.Message, f protoreflect.FieldDescriptor) bool {
	if !m.Has(f) {
		return false
	}
	return f.Message() == nil || f.IsList() || f.IsMap() || proto.Size(m.Get(f).Message().Interface()) > 0
}
