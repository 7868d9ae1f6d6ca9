// Package sandboxes serves sandboxes and their commands: create, list, end; run, exec, streams and terminals.
package sandboxes

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/account"
	"github.com/RelevanceAI/harvest/internal/engine"
	"github.com/RelevanceAI/harvest/internal/fleet"
	"github.com/RelevanceAI/harvest/internal/fleet/record"
	"github.com/RelevanceAI/harvest/internal/fleet/spec"
	"github.com/RelevanceAI/harvest/internal/image"
	"github.com/RelevanceAI/harvest/internal/server/edge"
	"github.com/RelevanceAI/harvest/internal/server/images"
)

// Service serves the routes for sandboxes and their commands.
type Service struct {
	edge.Settings
	Fleet    *fleet.Fleet
	Tracer   trace.Tracer
	Patience time.Duration // how long a client may take to read the end of a stream

	terms    terminals
	attached attachments
}

// Routes returns one row per route.
func (s *Service) Routes() []edge.Route {
	const read, write, exec = account.Read, account.Write, account.Exec
	return append([]edge.Route{
		{Method: "POST", Path: api.Sandboxes, Handle: s.createSandbox, Scope: write, Summary: "Create a sandbox",
			In:  api.SandboxRequest{},
			Out: api.Sandbox{}, Status: 201, Events: "image.progress, then sandbox.ready or error"},
		{Method: "GET", Path: api.Sandboxes, Handle: s.listSandboxes, Scope: read,
			Summary: "List sandboxes, newest first",
			Query: edge.QueryPage + "; all: also sandboxes that have ended; name: only the sandbox of this name; " +
				"tag: KEY=VALUE, repeatable; everyone: sandboxes of all accounts, for operators",
			Out: api.List[api.Sandbox]{}, Status: 200},
		{Method: "GET", Path: api.Sandboxed, Handle: s.getSandbox, Scope: read, Summary: "Get a sandbox",
			Out: api.Sandbox{}, Status: 200},
		{Method: "DELETE", Path: api.Sandboxed, Handle: s.destroySandbox, Scope: write,
			Summary: "End a sandbox and release its resources",
			Query: "sync: upload its volume to S3 first (default: the sandbox's setting); everyone: a sandbox of " +
				"any account, by its whole id, for operators", Status: 204},
		{Method: "POST", Path: api.SandboxExtend, Handle: s.extendSandbox, Scope: write,
			Summary: "Extend the lifetime of a sandbox", In: api.ExtendRequest{},
			Out: api.Sandbox{}, Status: 200},
		{Method: "POST", Path: api.SandboxSuspend, Handle: s.suspendSandbox, Scope: write,
			Summary: "Suspend a sandbox: keep its files and, if possible, its processes, and release its resources. " +
				"The next operation on it wakes it",
			Out: api.Sandbox{}, Status: 200},
		{Method: "POST", Path: api.SandboxWake, Handle: s.wakeSandbox, Scope: write,
			Summary: "Wake a suspended sandbox", Out: api.Sandbox{}, Status: 200},
		{Method: "POST", Path: api.SandboxNetwork, Handle: s.setNetwork, Scope: write,
			Summary: "Change the network policy of a running sandbox", In: api.Network{},
			Out: api.Sandbox{}, Status: 200},
		{Method: "GET", Path: api.SandboxUsage, Handle: s.sandboxUsage, Scope: read,
			Summary: "Get the resource use of a sandbox over its life: CPU time, memory and network",
			Out:     api.Used{}, Status: 200},
		{Method: "POST", Path: api.SandboxSnapshot, Handle: s.snapshotSandbox, Scope: write,
			Summary: "Make an image of a running sandbox's files",
			In:      api.SnapshotRequest{}, Out: api.Image{}, Status: 201},
		{Method: "POST", Path: api.SandboxFork, Handle: s.forkSandbox, Scope: write,
			Summary: "Create a sandbox with the files of a running one",
			In:      api.ForkRequest{}, Out: api.Sandbox{}, Status: 201},
		{Method: "POST", Path: api.SandboxExec, Handle: s.exec, Scope: exec,
			Summary: "Run a command. If it is detached, the answer is 202 with the id of the process",
			In:      api.ExecRequest{}, Out: api.Result{}, Status: 200,
			Events: "started, stdout, stderr, then exit or error"},
		{Method: "GET", Path: api.SandboxExec, Handle: s.execStream, Scope: exec,
			Summary: "Run a command or attach to one, with input and output as messages",
			Socket:  "the first message is an ExecRequest or an AttachRequest"},
		{Method: "GET", Path: api.SandboxProcesses, Handle: s.listProcesses, Scope: read,
			Summary: "List the commands of a sandbox", Query: edge.QueryPage,
			Out: api.List[api.Process]{}, Status: 200},
		{Method: "PUT", Path: api.SandboxArchive, Handle: s.sandboxArchiveIn, Scope: write,
			Summary: "Unpack a tar stream in a directory", Query: edge.QueryPath,
			RawIn: api.TypeTar, Status: 204},
		{Method: "GET", Path: api.SandboxArchive, Handle: s.sandboxArchiveOut, Scope: read,
			Summary: "Get a file or directory as a tar stream", Query: edge.QueryPath,
			RawOut: api.TypeTar, Status: 200},
		{Method: "POST", Path: api.Run, Handle: s.run, Scope: exec, Summary: "Run a command in a new sandbox",
			In: api.RunRequest{}, Out: api.Result{},
			Status: 200, Events: "image.progress, started, stdout, stderr, then exit or error"},
		{Method: "GET", Path: api.Run, Handle: s.runStream, Scope: exec,
			Summary: "Run a command in a new sandbox, with input and output as messages",
			Socket:  "the first message is a RunRequest"},
	}, s.terminalRoutes()...)
}

// createSandbox responds with the sandbox, or with events: first the progress of an image build, then the sandbox.
func (s *Service) createSandbox(w http.ResponseWriter, r *http.Request) error {
	data, err := edge.Body(w, r, api.MaxBody)
	if err != nil {
		return err
	}
	req, err := spec.Decode(data)
	if err != nil {
		return err
	}
	if !edge.WantsEvents(r) {
		made, err := s.Create(r.Context(), req)
		return edge.Send(w, http.StatusCreated, sandboxOut, made, err)
	}
	ev := s.NewEvents(w)
	defer ev.Close()
	req.Progress = func(p image.Progress) { ev.Send(api.EventProgress, api.Progress(p)) }
	made, err := s.Create(r.Context(), req)
	if err != nil {
		ev.Send(api.EventProblem, edge.Problem(r.Context(), err))
		return nil
	}
	ev.Send(api.EventReady, sandboxOut(made))
	return nil
}

// Create is Fleet.Create with a span, which has a child span for each stage.
func (s *Service) Create(ctx context.Context, req spec.Request) (record.Sandbox, error) {
	ctx, span := s.Tracer.Start(ctx, "sandbox.create")
	defer span.End()
	at := time.Now()
	made, err := s.Fleet.Create(ctx, edge.AccountOf(ctx), req)
	if !span.IsRecording() {
		return made, err
	}
	for _, stage := range made.Stages {
		_, part := s.Tracer.Start(ctx, "sandbox.create."+stage.Name, trace.WithTimestamp(at))
		at = at.Add(time.Duration(stage.MS * float64(time.Millisecond)))
		part.End(trace.WithTimestamp(at))
	}
	span.SetAttributes(attribute.String("harvest.sandbox_id", made.ID), attribute.Bool("harvest.warm", made.Warm))
	if err != nil {
		span.SetAttributes(attribute.String("harvest.failed_stage", errors.StageOf(err)))
		span.SetStatus(codes.Error, string(errors.KindOf(err)))
	}
	return made, err
}

func (s *Service) listSandboxes(w http.ResponseWriter, r *http.Request) error {
	limit, err := edge.Number(r, "limit", api.DefaultPage, api.MaxPage)
	if err != nil {
		return err
	}
	all, err := edge.Flag(r, "all")
	if err != nil {
		return err
	}
	after, err := s.After(r)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	filter := record.Filter{All: all, Name: query.Get("name"), Before: after, Limit: limit + 1}
	for _, tag := range query["tag"] {
		key, value, ok := strings.Cut(tag, "=")
		if !ok {
			return errors.Newf(errors.Invalid, "invalid ?tag=: want KEY=VALUE, not %.100q", tag)
		}
		if filter.Tags == nil {
			filter.Tags = map[string]string{}
		}
		filter.Tags[key] = value
	}
	owner, err := ownerOf(r)
	if err != nil {
		return err
	}
	found, err := s.Fleet.List(r.Context(), owner, filter)
	if err != nil {
		return err
	}
	page := api.List[api.Sandbox]{}
	if len(found) > limit {
		found = found[:limit]
		page.NextCursor = s.Cursor(r, found[limit-1].ID)
	}
	page.Data = edge.Each(found, sandboxOut)
	return edge.Respond(w, http.StatusOK, page)
}

func (s *Service) getSandbox(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Fleet.Get(r.Context(), edge.Account(r), r.PathValue("id"))
	return edge.Send(w, http.StatusOK, sandboxOut, found, err)
}

func (s *Service) sandboxUsage(w http.ResponseWriter, r *http.Request) error {
	used, err := s.Fleet.Usage(r.Context(), edge.Account(r), r.PathValue("id"))
	return edge.Send(w, http.StatusOK, usageOut, used, err)
}

// ownerOf returns the account whose sandboxes r is about: the caller's, or, for the operator with ?everyone=true, "",
// which means all.
func ownerOf(r *http.Request) (string, error) {
	who := edge.PrincipalOf(r.Context())
	everyone, err := edge.Flag(r, "everyone")
	if err != nil || !everyone {
		return who.Account, err
	}
	return "", who.MustBeOperator()
}

func (s *Service) destroySandbox(w http.ResponseWriter, r *http.Request) error {
	owner, err := ownerOf(r)
	if err != nil {
		return err
	}
	if owner == "" { // then only a complete ID names it
		all, err := s.Fleet.List(r.Context(), "", record.Filter{})
		if err != nil {
			return err
		}
		owner = edge.Account(r)
		for _, one := range all {
			if one.ID == r.PathValue("id") {
				owner = one.Account
			}
		}
	}
	return edge.NoContent(w, s.Destroy(r, owner))
}

// Destroy ends the sandbox. ?sync= overrides whether its volume is sent to S3 first.
func (s *Service) Destroy(r *http.Request, owner string) error {
	if r.URL.Query().Has("sync") {
		sync, err := edge.Flag(r, "sync")
		if err != nil {
			return err
		}
		if err := s.Fleet.SyncOnEnd(r.Context(), owner, r.PathValue("id"), sync); err != nil {
			return err
		}
	}
	return s.Fleet.Destroy(r.Context(), owner, r.PathValue("id"))
}

func (s *Service) extendSandbox(w http.ResponseWriter, r *http.Request) error {
	var req api.ExtendRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	life, err := edge.Seconds("timeout_seconds", req.TimeoutSeconds)
	if err != nil {
		return err
	}
	idle, err := edge.Seconds("idle_timeout_seconds", req.IdleTimeoutSeconds)
	if err != nil {
		return err
	}
	changed, err := s.Fleet.Extend(r.Context(), edge.Account(r), r.PathValue("id"), life, idle)
	return edge.Send(w, http.StatusOK, sandboxOut, changed, err)
}

func (s *Service) suspendSandbox(w http.ResponseWriter, r *http.Request) error {
	changed, err := fleet.Suspend(r.Context(), s.Fleet, edge.Account(r), r.PathValue("id"))
	return edge.Send(w, http.StatusOK, sandboxOut, changed, err)
}

func (s *Service) wakeSandbox(w http.ResponseWriter, r *http.Request) error {
	changed, err := fleet.Wake(r.Context(), s.Fleet, edge.Account(r), r.PathValue("id"))
	return edge.Send(w, http.StatusOK, sandboxOut, changed, err)
}

// setNetwork replaces the network policy of a sandbox.
func (s *Service) setNetwork(w http.ResponseWriter, r *http.Request) error {
	var req api.Network
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	changed, err := s.Fleet.SetNetwork(r.Context(), edge.Account(r), r.PathValue("id"),
		spec.Network(req))
	return edge.Send(w, http.StatusOK, sandboxOut, changed, err)
}

func (s *Service) snapshotSandbox(w http.ResponseWriter, r *http.Request) error {
	var req api.SnapshotRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	img, err := s.Fleet.Snapshot(r.Context(), edge.Account(r), r.PathValue("id"),
		fleet.SnapshotOptions(req))
	return edge.Send(w, http.StatusCreated, images.Out, img, err)
}

func (s *Service) forkSandbox(w http.ResponseWriter, r *http.Request) error {
	var req api.ForkRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	made, err := s.Fleet.Fork(r.Context(), edge.Account(r), r.PathValue("id"), fleet.ForkRequest(req))
	return edge.Send(w, http.StatusCreated, sandboxOut, made, err)
}

func (s *Service) listProcesses(w http.ResponseWriter, r *http.Request) error {
	found, err := s.Fleet.Processes(r.Context(), edge.Account(r), r.PathValue("id"))
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b engine.ProcessInfo) int { return strings.Compare(counted(a.ID), counted(b.ID)) })
	return edge.Paged(s.Settings, w, r, found, false,
		func(p engine.ProcessInfo) string { return counted(p.ID) }, processOut)
}

// counted converts a decimal ID to a form whose lexical order is the numeric order: shorter ones first.
func counted(id string) string { return fmt.Sprintf("%03d%s", len(id), id) }

func (s *Service) sandboxArchiveIn(w http.ResponseWriter, r *http.Request) error {
	err := s.Fleet.CopyIn(r.Context(), edge.Account(r), r.PathValue("id"),
		r.URL.Query().Get("path"), r.Body)
	return edge.NoContent(w, err)
}

func (s *Service) sandboxArchiveOut(w http.ResponseWriter, r *http.Request) error {
	tar, err := s.Fleet.CopyOut(r.Context(), edge.Account(r), r.PathValue("id"), r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	return edge.SendTar(w, r, tar)
}
