package api

import "time"

// Routes of the Modal Sandbox System (mission 6.1 to 6.7), based on the same core as the other routes. The status of
// every success is 200 (6.9).
const (
	ModalSandboxes = "/api/modal/sandbox"
	ModalSandboxed = "/api/modal/sandbox/{id}"
	ModalClaude    = "/api/modal/sandbox/{id}/claude"
)

// ModalRequest is the body of POST /api/modal/sandbox. Every field is optional.
type ModalRequest struct {
	// ImageBase is an image by ID or name, or a registry's; "" means "base".
	ImageBase          string   `json:"image_base,omitempty"`
	DockerfileCommands []string `json:"dockerfile_commands,omitempty"` // on top of it

	VolumeName      string `json:"volume_name,omitempty"` // created if missing
	VolumeMountPath string `json:"volume_mount_path,omitempty"`

	// The bucket's files are those of the volume at S3MountPath or, without that path, of the volume at
	// VolumeMountPath.
	S3BucketName string `json:"s3_bucket_name,omitempty"`
	S3KeyPrefix  string `json:"s3_key_prefix,omitempty"`
	S3MountPath  string `json:"s3_mount_path,omitempty"`
	S3Secret     string `json:"s3_secret,omitempty"` // secret with the credentials; "" means "aws"
	InitFromS3   bool   `json:"init_from_s3,omitempty"`
	SyncToS3     bool   `json:"sync_on_terminate,omitempty"`

	Environment map[string]string `json:"environment,omitempty"`
	Secrets     []string          `json:"secrets,omitempty"`
	Workdir     string            `json:"workdir,omitempty"`
	CPU         float64           `json:"cpu,omitempty"`
	Memory      int64             `json:"memory_bytes,omitempty"`
	Timeout     float64           `json:"timeout_seconds,omitempty"`
}

// ModalMountPath is the default mount path of a volume.
const ModalMountPath = "/workspace"

// ModalSandbox is a sandbox in the format of these routes.
type ModalSandbox struct {
	SandboxID  string `json:"sandbox_id"`
	Status     string `json:"status"` // "running", "terminated" or "error"
	AccountID  string `json:"account_id"`
	Image      string `json:"image"`
	VolumeName string `json:"volume_name,omitempty"`
	MountPath  string `json:"volume_mount_path,omitempty"`
	Workdir    string `json:"workdir,omitempty"`
	S3Bucket   string `json:"s3_bucket_name,omitempty"`
	S3Prefix   string `json:"s3_key_prefix,omitempty"`
	S3Path     string `json:"s3_mount_path,omitempty"`
	// SyncError says why the files could not be sent to S3 at the end; this is retried.
	SyncError string    `json:"sync_error,omitempty"`
	Reason    string    `json:"reason,omitempty"` // why it ended or failed
	Created   time.Time `json:"created_at"`
	Ended     time.Time `json:"terminated_at,omitzero"`
	Expires   time.Time `json:"expires_at"`
}

// ModalPrompt is the body of POST /api/modal/sandbox/{id}/claude.
type ModalPrompt struct {
	Prompt string `json:"prompt"`
}

// ModalDone is the last event of POST /api/modal/sandbox/{id}/claude, named done.
type ModalDone struct {
	ReturnCode int     `json:"returncode"`
	Text       string  `json:"text,omitempty"` // Claude's final text
	Failed     bool    `json:"failed"`
	Reason     string  `json:"reason,omitempty"`
	Usage      *Usage  `json:"usage,omitempty"`
	Seconds    float64 `json:"duration_secs"`
	SandboxID  string  `json:"sandbox_id"`
}
