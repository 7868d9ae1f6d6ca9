package server

import (
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/engine"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/image"
	"github.com/RelevanceAI/harvest/sandbox"
)

// createSandbox responds with the sandbox, or with events: first the progress of an image build, then the sandbox.
func (s *Server) createSandbox(w http.ResponseWriter, r *http.Request) error {
	data, err := body(w, r, api.MaxBody)
	if err != nil {
		return err
	}
	req, err := sandbox.DecodeRequest(data)
	if err != nil {
		return err
	}
	if !wantsEvents(r) {
		made, err := s.create(r.Context(), req)
		if err != nil {
			return err
		}
		return respond(w, http.StatusCreated, sandboxOut(made))
	}
	ev := s.newEvents(w)
	defer ev.close()
	req.Progress = func(p image.Progress) { ev.send(api.EventProgress, api.Progress(p)) }
	made, err := s.create(r.Context(), req)
	if err != nil {
		ev.send(api.EventProblem, problem(r.Context(), err))
		return nil
	}
	ev.send(api.EventReady, sandboxOut(made))
	return nil
}

func (s *Server) listSandboxes(w http.ResponseWriter, r *http.Request) error {
	limit, err := number(r, "limit", api.DefaultPage, api.MaxPage)
	if err != nil {
		return err
	}
	all, err := flag(r, "all")
	if err != nil {
		return err
	}
	after, err := s.after(r)
	if err != nil {
		return err
	}
	query := r.URL.Query()
	filter := sandbox.Filter{All: all, Name: query.Get("name"), Before: after, Limit: limit + 1}
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
	found, err := s.opts.Fleet.List(r.Context(), owner, filter)
	if err != nil {
		return err
	}
	page := api.List[api.Sandbox]{}
	if len(found) > limit {
		found = found[:limit]
		page.NextCursor = s.cursor(r, found[limit-1].ID)
	}
	page.Data = each(found, sandboxOut)
	return respond(w, http.StatusOK, page)
}

func (s *Server) getSandbox(w http.ResponseWriter, r *http.Request) error {
	found, err := s.opts.Fleet.Get(r.Context(), accountOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, sandboxOut(found))
}

func (s *Server) sandboxUsage(w http.ResponseWriter, r *http.Request) error {
	used, err := s.opts.Fleet.Usage(r.Context(), accountOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, usageOut(used))
}

// ownerOf returns the account whose sandboxes r is about: the caller's, or, for the operator with ?everyone=true, "",
// which means all.
func ownerOf(r *http.Request) (string, error) {
	who := principalOf(r.Context())
	everyone, err := flag(r, "everyone")
	if err != nil || !everyone {
		return who.Account, err
	}
	return "", who.MustBeOperator()
}

func (s *Server) destroySandbox(w http.ResponseWriter, r *http.Request) error {
	owner, err := ownerOf(r)
	if err != nil {
		return err
	}
	if owner == "" { // then only a complete ID names it
		all, err := s.opts.Fleet.List(r.Context(), "", sandbox.Filter{})
		if err != nil {
			return err
		}
		owner = accountOf(r.Context())
		for _, one := range all {
			if one.ID == r.PathValue("id") {
				owner = one.Account
			}
		}
	}
	if err := s.destroy(r, owner); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// destroy ends the sandbox. ?sync= overrides whether its volume is sent to S3 first.
func (s *Server) destroy(r *http.Request, owner string) error {
	if r.URL.Query().Has("sync") {
		sync, err := flag(r, "sync")
		if err != nil {
			return err
		}
		if err := s.opts.Fleet.SyncOnEnd(r.Context(), owner, r.PathValue("id"), sync); err != nil {
			return err
		}
	}
	return s.opts.Fleet.Destroy(r.Context(), owner, r.PathValue("id"))
}

func (s *Server) extendSandbox(w http.ResponseWriter, r *http.Request) error {
	var req api.ExtendRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	life, err := seconds("timeout_seconds", req.TimeoutSeconds)
	if err != nil {
		return err
	}
	idle, err := seconds("idle_timeout_seconds", req.IdleTimeoutSeconds)
	if err != nil {
		return err
	}
	changed, err := s.opts.Fleet.Extend(r.Context(), accountOf(r.Context()), r.PathValue("id"), life, idle)
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, sandboxOut(changed))
}

func (s *Server) snapshotSandbox(w http.ResponseWriter, r *http.Request) error {
	var req api.SnapshotRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	img, err := s.opts.Fleet.Snapshot(r.Context(), accountOf(r.Context()), r.PathValue("id"),
		sandbox.SnapshotOptions(req))
	if err != nil {
		return err
	}
	return respond(w, http.StatusCreated, imageOut(img))
}

func (s *Server) forkSandbox(w http.ResponseWriter, r *http.Request) error {
	var req api.ForkRequest
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	made, err := s.opts.Fleet.Fork(r.Context(), accountOf(r.Context()), r.PathValue("id"), sandbox.ForkRequest(req))
	if err != nil {
		return err
	}
	return respond(w, http.StatusCreated, sandboxOut(made))
}

func (s *Server) listProcesses(w http.ResponseWriter, r *http.Request) error {
	found, err := s.opts.Fleet.Processes(r.Context(), accountOf(r.Context()), r.PathValue("id"))
	if err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b engine.ProcessInfo) int { return strings.Compare(counted(a.ID), counted(b.ID)) })
	return paged(s, w, r, found, false, func(p engine.ProcessInfo) string { return counted(p.ID) }, processOut)
}

// counted converts a decimal ID to a form whose lexical order is the numeric order: shorter ones first.
func counted(id string) string { return fmt.Sprintf("%03d%s", len(id), id) }

func (s *Server) sandboxArchiveIn(w http.ResponseWriter, r *http.Request) error {
	err := s.opts.Fleet.CopyIn(r.Context(), accountOf(r.Context()), r.PathValue("id"),
		r.URL.Query().Get("path"), r.Body)
	if err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) sandboxArchiveOut(w http.ResponseWriter, r *http.Request) error {
	tar, err := s.opts.Fleet.CopyOut(r.Context(), accountOf(r.Context()), r.PathValue("id"), r.URL.Query().Get("path"))
	if err != nil {
		return err
	}
	return sendTar(w, r, tar)
}

// sendTar responds with the stream and closes it. If the stream fails, it aborts the connection, so that the client
// notices.
func sendTar(w http.ResponseWriter, r *http.Request, tar io.ReadCloser) error {
	w.Header().Set("Content-Type", api.TypeTar)
	w.WriteHeader(http.StatusOK)
	_, err := io.Copy(w, tar)
	if closing := tar.Close(); err == nil {
		err = closing
	}
	if err != nil && r.Context().Err() != nil {
		return errors.Explainf(err, errors.Canceled, "the client has disconnected")
	}
	return errors.Wrapf(err, "send the archive")
}
