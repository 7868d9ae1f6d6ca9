package server

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/bytestream"
	"github.com/RelevanceAI/harvest/sandbox"
)

// setNetwork replaces the network policy of a sandbox.
func (s *Server) setNetwork(w http.ResponseWriter, r *http.Request) error {
	var req api.Network
	if err := decodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	changed, err := s.opts.Fleet.SetNetwork(r.Context(), accountOf(r.Context()), r.PathValue("id"),
		sandbox.Network(req))
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, sandboxOut(changed))
}

// connectPort connects a WebSocket to a port in a sandbox. The connection is closed when the server stops.
func (s *Server) connectPort(w http.ResponseWriter, r *http.Request) error {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		return errors.Remedy(errors.Newf(errors.Invalid, "GET %.200s: needs a WebSocket", r.URL.Path),
			"connect with a WebSocket")
	}
	port, err := strconv.Atoi(r.URL.Query().Get("port"))
	if err != nil {
		return errors.Remedy(errors.Newf(errors.Invalid, "invalid ?port=: %.40q", r.URL.Query().Get("port")),
			"give a number from 1 to 65535")
	}
	up, err := s.opts.Fleet.Dial(r.Context(), accountOf(r.Context()), r.PathValue("id"), port)
	if err != nil {
		return err
	}
	ws, release, err := accept(w, r)
	if err != nil {
		_ = up.Close()
		return nil // accept has responded
	}
	defer release()
	ctx, leave := context.WithCancel(context.WithoutCancel(r.Context()))
	defer leave()
	defer context.AfterFunc(s.stopping, leave)()
	bytestream.Join(bytestream.New(ctx, ws), up)
	return nil
}
