package server

import (
	"io"
	"net/http"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// backup answers with a tar stream from which another server can be restored. The response starts after the first
// bytes are available.
func (s *Server) backup(w http.ResponseWriter, r *http.Request) error {
	var req api.BackupRequest
	if err := edge.DecodeBody(w, r, api.MaxBody, &req); err != nil {
		return err
	}
	if s.opts.Backup == nil {
		return errors.Newf(errors.Unsupported, "this server has nothing to back up")
	}
	return edge.Pour(w, r, func(out io.Writer) error { return s.opts.Backup(r.Context(), req.Keys, out) })
}
