// Package fields lists the fields of the requests of Modal's protocol that are refused. Its tests list all others: a
// field is served, or harmless to ignore. An option that restricts something is never ignored.
package fields

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/RelevanceAI/harvest/client/errors"
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
