package server

import (
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, err := io.WriteString(w, "ok\n")
	return errors.Wrapf(err, "answer")
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) error {
	status, code := "ready", http.StatusOK
	if s.settings.Stopping.Err() != nil {
		status, code = "stopping", http.StatusServiceUnavailable
	}
	who, err := s.authenticate(r)
	if err != nil { // sufficient for a load balancer
		return edge.Respond(w, code, struct {
			Status string `json:"status"`
		}{status})
	}
	w.Header().Set(api.HeaderVersion, s.opts.Version)
	if who.MustBeOperator() != nil { // hide data of other accounts
		can := s.opts.Fleet.Capabilities()
		return edge.Respond(w, code, api.ServerInfo{
			Status: status, Version: s.opts.Version, Engine: s.opts.Engine, Isolation: can.Isolation,
			Limits:  edge.Each(can.Limits, strings.Clone),
			Missing: edge.Each(can.Missing, strings.Clone), ModalURL: s.opts.ModalURL,
			ModalAuthority: s.opts.ModalAuthority,
		})
	}
	can, stats := s.opts.Fleet.Capabilities(), s.opts.Fleet.Stats()
	return edge.Respond(w, code, api.Server{
		Status: status, Version: s.opts.Version, PID: os.Getpid(), Background: s.opts.Background,
		Requests: s.active(), Sandboxes: s.sandboxes(), Spares: s.spares(), Commands: stats.Commands,
		Engine: s.opts.Engine, Isolation: can.Isolation, Limits: edge.Each(can.Limits, strings.Clone),
		Missing: edge.Each(can.Missing, strings.Clone), ModalURL: s.opts.ModalURL,
		ModalAuthority: s.opts.ModalAuthority,
	})
}

// sandboxes returns the number of sandboxes that have not ended.
func (s *Server) sandboxes() int {
	n := 0
	for _, count := range s.opts.Fleet.Stats().Sandboxes {
		n += count
	}
	return n
}

// spares returns how many sessions made ahead wait.
func (s *Server) spares() int {
	if s.opts.Sessions == nil {
		return 0
	}
	waiting, _ := s.opts.Sessions.Spares()
	return waiting
}

// shutdown asks the server to end. The response body ends when the server has ended, so that the client need not poll
// for it.
func (s *Server) shutdown(w http.ResponseWriter, r *http.Request) error {
	var req api.ShutdownRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	if s.opts.Shutdown == nil {
		return errors.Newf(errors.Unsupported, "this server cannot be stopped through its API")
	}
	if busy := s.active() + s.opts.Fleet.Stats().Commands; req.IfIdle && busy > 0 {
		return errors.Remedy(errors.Newf(errors.Conflict, "the server is busy"),
			"wait until commands and requests have ended")
	}
	w.Header().Set("Content-Type", api.TypeJSON)
	w.WriteHeader(http.StatusAccepted)
	edge.Encode(w, struct{}{})
	// Without the flush, the client would receive the response only at its end.
	if err := http.NewResponseController(w).Flush(); err != nil {
		return errors.Wrapf(err, "answer")
	}
	if v := visitOf(r.Context()); v != nil { // the audit log is closed when this request is done
		s.audit(r, v, http.StatusAccepted)
		v.audited = false
	}
	s.mu.Lock()
	first := !s.asked
	s.asked = true
	s.mu.Unlock()
	if first {
		s.opts.Shutdown()
	}
	select {
	case <-s.done:
	case <-r.Context().Done():
	}
	return nil
}
