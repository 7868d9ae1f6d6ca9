package server

import (
	"bytes"
	"net/http"
	"time"

	"github.com/RelevanceAI/harvest/web"
)

// page answers with the page, which anybody may have: it shows nothing but what it asks the API for.
func (s *Server) page(w http.ResponseWriter, r *http.Request) error {
	name := r.PathValue("file")
	if r.URL.Path == "/" {
		name = web.Index
	}
	file, ok := web.Open(name)
	if !ok {
		return s.unknown(w, r)
	}
	h := w.Header()
	h.Set("Content-Type", file.Type)
	h.Set("Content-Security-Policy", web.Policy)
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	// Files have the same names in every version: browsers keep them, and ask whether they are still the same.
	h.Set("Cache-Control", "no-cache")
	h.Set("ETag", file.Tag)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(file.Data))
	return nil
}
