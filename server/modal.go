package server

import (
	"net/http"
	"strings"

	"github.com/RelevanceAI/harvest/account"
	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/sandbox"
)

// modalRoutes are those of the Modal Sandbox System, as its document words them.
func (s *Server) modalRoutes() []route {
	return []route{
		{method: "POST", path: api.ModalSandboxes, handle: s.modalCreate, scope: account.Write, summary: "Create a sandbox", in: api.ModalRequest{},
			out: api.ModalSandbox{}, status: 200},
		{method: "GET", path: api.ModalSandboxed, handle: s.modalGet, scope: account.Read, summary: "Status and metadata of a sandbox", out: api.ModalSandbox{}, status: 200},
		{method: "DELETE", path: api.ModalSandboxed, handle: s.modalDelete, scope: account.Write, summary: "Terminate a sandbox", out: api.ModalSandbox{}, status: 200},
		{method: "POST", path: api.ModalClaude, handle: s.modalClaude, scope: account.Exec, summary: "Run Claude with a prompt, as a stream of events; not there yet: 501",
			in: api.ModalPrompt{}, status: 200, events: "message.delta and others, then done"},
	}
}

func (s *Server) modalCreate(w http.ResponseWriter, r *http.Request) error {
	var req api.ModalRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	if req.S3BucketName != "" || req.S3KeyPrefix != "" || req.S3MountPath != "" || req.InitFromS3 || req.SyncToS3 {
		return errors.Stage(errors.Remedy(errors.Newf(errors.Unsupported, "S3 buckets cannot be used yet"), "leave the fields of S3 out, and keep files on a volume"), "s3")
	}
	if req.VolumeMountPath != "" && req.VolumeName == "" {
		return errors.Stage(errors.Remedy(errors.Newf(errors.Invalid, "there is a volume_mount_path, but no volume"), "give a volume_name, too"), "validate")
	}
	create := sandbox.Request{
		Image: req.ImageBase, Env: req.Environment, Secrets: req.Secrets, Workdir: req.Workdir, CPU: req.CPU, Memory: req.Memory, TimeoutSeconds: req.Timeout,
	}
	if req.VolumeName != "" {
		at := req.VolumeMountPath
		if at == "" {
			at = api.ModalMountPath
		}
		create.Volumes = []sandbox.Mount{{Name: req.VolumeName, Path: at}}
	}
	if len(req.DockerfileCommands) > 0 || req.ImageBase != "" && req.ImageBase != "base" {
		base := req.ImageBase
		if base == "" {
			base = "base"
		}
		built, err := s.images(r).Build(r.Context(), image.Spec{Base: base, Commands: req.DockerfileCommands}, image.BuildOptions{
			Credentials: s.opts.Fleet.Credentials(accountOf(r.Context()), ""),
		})
		if err != nil {
			return errors.Stage(err, "image")
		}
		create.Image = built.ID
	}
	made, err := s.create(r.Context(), create)
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, modalOut(made))
}

func (s *Server) modalGet(w http.ResponseWriter, r *http.Request) error {
	found, err := s.opts.Fleet.Get(r.Context(), accountOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, modalOut(found))
}

// modalDelete answers with the sandbox as it is then. When releasing it fails, that is the answer, and the Fleet goes on trying (5.5).
func (s *Server) modalDelete(w http.ResponseWriter, r *http.Request) error {
	if err := s.opts.Fleet.Destroy(r.Context(), accountOf(r.Context()), r.PathValue("id")); err != nil {
		return err
	}
	return s.modalGet(w, r)
}

// modalClaude says what is wrong with the request, or that agents are not there yet.
func (s *Server) modalClaude(w http.ResponseWriter, r *http.Request) error {
	var req api.ModalPrompt
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	if strings.TrimSpace(req.Prompt) == "" {
		return errors.Remedy(errors.Newf(errors.Invalid, "the prompt is empty"), "say what is to be done in \"prompt\"")
	}
	if _, err := s.opts.Fleet.Get(r.Context(), accountOf(r.Context()), r.PathValue("id")); err != nil {
		return err
	}
	return errors.Remedy(errors.Newf(errors.Unsupported, "this server cannot run Claude yet"), "run commands with POST "+api.SandboxExec)
}

// modalStatus is the document's word (5.7) for each state.
func modalStatus(s sandbox.Status) string {
	switch s {
	case sandbox.Terminated:
		return "terminated"
	case sandbox.Failed, sandbox.Lost:
		return "error"
	}
	return "running"
}

func modalOut(s sandbox.Sandbox) api.ModalSandbox {
	out := api.ModalSandbox{
		SandboxID: s.ID, Status: modalStatus(s.Status), AccountID: s.Account, Image: s.Image, Workdir: s.Workdir, Reason: s.Reason,
		Created: s.Created.UTC(), Ended: s.Ended.UTC(), Expires: s.Expires.UTC(),
	}
	if len(s.Volumes) > 0 {
		out.VolumeName, out.MountPath = s.Volumes[0].Name, s.Volumes[0].Path
	}
	return out
}
