package server

import (
	"bytes"
	"net/http"
	"net/url"
	"time"

	"github.com/RelevanceAI/harvest/web"
)

// frames returns the hosts that the page may show in frames: the host names of ports.
func (s *Server) frames(r *http.Request) string {
	base, err := s.base(r)
	if err != nil || s.opts.PortDomain == "" {
		return ""
	}
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	host := "*." + s.opts.PortDomain
	if port := u.Port(); port != "" {
		host += ":" + port
	}
	return u.Scheme + "://" + host
}

// page responds with the web page. It needs no authentication: all its data comes from API requests.
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
	h.Set("Content-Security-Policy", web.Policy(s.frames(r)))
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Referrer-Policy", "no-referrer")
	// The page names the version of its files, so that browsers can cache them without revalidation. Other files are
	// revalidated.
	h.Set("Cache-Control", "no-cache")
	if file.Fixed {
		h.Set("Cache-Control", "max-age=31536000, immutable")
	}
	h.Set("ETag", file.Tag)
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(file.Data))
	return nil
}
