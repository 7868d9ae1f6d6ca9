package server

import (
	"encoding/json"
	"net/http"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/base/logf"
	"github.com/RelevanceAI/harvest/internal/base/places"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/session/agent"
)

// modalRoutes returns the routes of the Modal Sandbox System, as specified in its document.
func (s *Server) modalRoutes() []edge.Route {
	return []edge.Route{
		{Method: "POST", Path: api.ModalSandboxes, Handle: s.modalCreate, Scope: account.Write,
			Summary: "Create a sandbox", In: api.ModalRequest{},
			Out: api.ModalSandbox{}, Status: 200},
		{Method: "GET", Path: api.ModalSandboxed, Handle: s.modalGet, Scope: account.Read,
			Summary: "Get the status and metadata of a sandbox", Out: api.ModalSandbox{}, Status: 200},
		{Method: "DELETE", Path: api.ModalSandboxed, Handle: s.modalDelete, Scope: account.Write,
			Summary: "Terminate a sandbox",
			Query:   "sync: upload its volume to S3 first (default: the sandbox's setting)",
			Out:     api.ModalSandbox{}, Status: 200},
		{Method: "POST", Path: api.ModalClaude, Handle: s.modalClaude, Scope: account.Exec,
			Summary: "Run Claude with a prompt, as a stream of events",
			In:      api.ModalPrompt{}, Status: 200, Events: "message.delta and others, then done"},
	}
}

func (s *Server) modalCreate(w http.ResponseWriter, r *http.Request) error {
	var req api.ModalRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	if req.VolumeMountPath != "" && req.VolumeName == "" {
		return errors.Stage(errors.Remedy(errors.Newf(errors.Invalid, "volume_mount_path needs a volume"),
			"give a volume_name, too"), "validate")
	}
	create := spec.Request{
		Image: req.ImageBase, Env: req.Environment, Secrets: req.Secrets, Workdir: req.Workdir, CPU: req.CPU,
		Memory: req.Memory, TimeoutSeconds: req.Timeout,
	}
	if req.VolumeName != "" {
		at := req.VolumeMountPath
		if at == "" {
			at = api.ModalMountPath
		}
		create.Volumes = []spec.Mount{{Name: req.VolumeName, Path: at}}
	}
	create.S3 = modalS3(req, create.Volumes)
	if len(req.DockerfileCommands) > 0 || req.ImageBase != "" && req.ImageBase != "base" {
		base := req.ImageBase
		if base == "" {
			base = "base"
		}
		built, err := s.parts.images.Of(r).Build(r.Context(), image.Spec{Base: base, Commands: req.DockerfileCommands},
			image.BuildOptions{
				Credentials: s.opts.Fleet.Credentials(edge.Account(r), ""),
			})
		if err != nil {
			return errors.Stage(err, "image")
		}
		create.Image = built.ID
	}
	made, err := s.parts.sandboxes.Create(r.Context(), create)
	return edge.Send(w, http.StatusOK, modalOut, made, err)
}

// modalS3 returns the S3 request for the document's fields; nil if all are missing. Without a mount path, the bucket
// is used for the first volume.
func modalS3(req api.ModalRequest, volumes []spec.Mount) *spec.S3 {
	at := req.S3MountPath
	switch {
	case req.S3BucketName == "" && req.S3KeyPrefix == "" && at == "" && req.S3Secret == "" && !req.InitFromS3 &&
		!req.SyncToS3:
		return nil
	case at == "" && len(volumes) > 0:
		at = volumes[0].Path
	case at == "":
		at = api.ModalMountPath
	}
	return &spec.S3{Place: places.Place{Bucket: req.S3BucketName, Prefix: req.S3KeyPrefix, Secret: req.S3Secret},
		MountPath: at, Init: req.InitFromS3,
		SyncOnTerminate: req.SyncToS3}
}

func (s *Server) modalGet(w http.ResponseWriter, r *http.Request) error {
	found, err := s.opts.Fleet.Get(r.Context(), edge.Account(r), r.PathValue("id"))
	return edge.Send(w, http.StatusOK, modalOut, found, err)
}

// modalDelete responds with the state of the sandbox after its end. If its release fails, that error is the response,
// and the Fleet keeps retrying (5.5).
func (s *Server) modalDelete(w http.ResponseWriter, r *http.Request) error {
	if err := s.parts.sandboxes.Destroy(r, edge.Account(r)); err != nil {
		return err
	}
	return s.modalGet(w, r)
}

// modalClaude has Claude answer one prompt in the sandbox. It streams Claude's events as they happen; when the client
// disconnects, the run ends.
func (s *Server) modalClaude(w http.ResponseWriter, r *http.Request) error {
	var req api.ModalPrompt
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	if strings.TrimSpace(req.Prompt) == "" {
		return errors.Remedy(errors.Newf(errors.Invalid, "the prompt is empty"), "write the task into \"prompt\"")
	}
	if _, err := s.opts.Fleet.Get(r.Context(), edge.Account(r), r.PathValue("id")); err != nil {
		return err
	}
	if s.opts.Sessions == nil {
		return edge.Lacks("sessions")
	}
	ctx, cancel := s.parts.sandboxes.CommandContext(r)
	defer cancel()
	logf.Infof(ctx, "sent a prompt to Claude in %s", r.PathValue("id"))
	stream := &modalStream{begin: func() *edge.Events { return s.settings.NewEvents(w) }}
	defer stream.close()
	result, err := s.opts.Sessions.RunOnce(ctx, edge.AccountOf(ctx), r.PathValue("id"), "claude", req.Prompt,
		stream.tell)
	if err != nil && stream.events == nil {
		return err // as a status: nothing was sent yet
	}
	stream.open()
	done := api.ModalDone{ReturnCode: result.ReturnCode, Failed: result.ReturnCode != 0 || err != nil,
		SandboxID: result.SandboxID, Seconds: result.Duration}
	if end := stream.done; end != nil {
		done.Text, done.Failed, done.Reason = end.Text, end.Failed || done.Failed, end.Reason
		if end.Usage != nil {
			done.Usage = (*api.Usage)(end.Usage)
		}
	}
	if err != nil {
		stream.events.Send("error", edge.Problem(ctx, err))
	} else if done.Failed {
		message := done.Text
		if message == "" {
			message = strings.Join(stream.said, "\n")
		}
		if message == "" {
			message = "Claude ended with exit code " + strconv.Itoa(result.ReturnCode) + " and no output"
		}
		stream.events.Send("error", map[string]any{"detail": message, "returncode": result.ReturnCode})
	}
	stream.events.Send("done", done)
	logf.Infof(ctx, "Claude ended in %s: exit code %d after %.1f s", r.PathValue("id"), result.ReturnCode,
		result.Duration)
	return nil
}

// modalStream is the response of modalClaude. It starts with the first event.
type modalStream struct {
	begin  func() *edge.Events
	events *edge.Events
	done   *agent.Event
	said   []string // last lines that are not events
}

func (s *modalStream) open() {
	if s.events == nil {
		s.events = s.begin()
	}
}

func (s *modalStream) close() {
	if s.events != nil {
		s.events.Close()
	}
}

// maxSaid is the maximum number of such lines in an error.
const maxSaid = 20

func (s *modalStream) tell(e agent.Event) {
	if e.Type == agent.Done {
		s.done = &e
		return
	}
	var text string
	if e.Type == agent.Other && json.Unmarshal(e.Raw, &text) == nil {
		s.said = append(s.said[max(0, len(s.said)-maxSaid+1):], text)
	}
	s.open()
	s.events.Send(string(e.Type), e)
}

// modalStatus maps a state to the document's term (5.7).
func modalStatus(s record.Status) string {
	switch s {
	case record.Terminated:
		return "terminated"
	case record.Failed, record.Lost:
		return "error"
	}
	return "running"
}

func modalOut(s record.Sandbox) api.ModalSandbox {
	out := api.ModalSandbox{
		SandboxID: s.ID, Status: modalStatus(s.Status), AccountID: s.Account, Image: s.Image, Workdir: s.Workdir,
		Reason:  s.Reason,
		Created: s.Created.UTC(), Ended: s.Ended.UTC(), Expires: s.Expires.UTC(),
	}
	if len(s.Volumes) > 0 {
		out.VolumeName, out.MountPath = s.Volumes[0].Name, s.Volumes[0].Path
	}
	if s.S3 != nil {
		out.S3Bucket, out.S3Prefix, out.S3Path, out.SyncError = s.S3.Bucket, s.S3.Prefix, s.S3.MountPath, s.S3.SyncError
	}
	return out
}
