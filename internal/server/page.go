package server

import (
	"bytes"
	"net/http"
	"net/url"
	"strconv"
	"strings"
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
	// Each form has a tag of its own, so that a cache cannot join ranges of different forms.
	h.Set("ETag", file.Tag)
	h.Set("Vary", "Accept-Encoding")
	data := file.Data
	if file.Gzip != nil && acceptsGzip(r.Header.Values("Accept-Encoding")) {
		data = file.Gzip
		h.Set("ETag", strings.TrimSuffix(file.Tag, `"`)+`-gzip"`)
		h.Set("Content-Encoding", "gzip")
	}
	http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(data))
	return nil
}

// acceptsGzip reports whether a client with these Accept-Encoding headers accepts gzip: it, or else "*", is listed with
// a weight above 0 (RFC 9110, section 12.5.3).
func acceptsGzip(accepted []string) bool {
	weights := map[string]float64{}
	for one := range strings.SplitSeq(strings.Join(accepted, ","), ",") {
		coding, parameters, _ := strings.Cut(one, ";")
		weight := 1.0
		if _, q, ok := strings.Cut(parameters, "="); ok {
			weight, _ = strconv.ParseFloat(strings.TrimSpace(q), 64) // 0, "not accepted", if it is not a number
		}
		weights[strings.ToLower(strings.TrimSpace(coding))] = weight
	}
	weight, listed := weights["gzip"]
	return weight > 0 || !listed && weights["*"] > 0
}
