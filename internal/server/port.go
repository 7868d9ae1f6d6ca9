package server

import (
	"context"
	"net/http"
	"strconv"
	"strings"

	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/client/transport/bytestream"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

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
	up, err := s.opts.Fleet.Dial(r.Context(), edge.Account(r), r.PathValue("id"), port)
	if err != nil {
		return err
	}
	ws, release, err := edge.Accept(w, r)
	if err != nil {
		_ = up.Close()
		return nil // accept has responded
	}
	defer release()
	ctx, leave := context.WithCancel(context.WithoutCancel(r.Context()))
	defer leave()
	defer context.AfterFunc(s.settings.Stopping, leave)()
	bytestream.Join(bytestream.New(ctx, ws), up)
	return nil
}
