package edge

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"html/template"
	"net/http"
	"strings"

	"github.com/RelevanceAI/harvest/client/api"
)

// errorPage shows a problem as a page, for a person who opened an address in a browser.
var errorPage = template.Must(template.New("error").Parse(`<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Detail}} · Harvest</title>
{{if .Again}}<script>{{.Again}}</script><noscript><meta http-equiv="refresh" content="10"></noscript>{{end}}
<style>h1::first-letter{text-transform:uppercase}</style>
` + Look + `<main><h1>{{.Detail}}</h1>{{if .Remedy}}<p>Next: {{.Remedy}}.</p>{{end}}{{if .Again}}<p>This page tries again by itself.</p>{{end}}{{if .Home}}<p><a href="./">Go to Harvest</a></p>{{end}}
{{if .RequestID}}<p><small>Request {{.RequestID}}</small></p>{{end}}</main></body></html>
`))

// again loads the page again as soon as its address no longer responds with a problem. Until then the page stays as it
// is, for screen readers.
const again = `setInterval(async () => {
	try {
		const { headers } = await fetch(location.href, { cache: 'no-store' });
		if (headers.get('Content-Type') !== '` + api.TypeProblem + `') location.reload();
	} catch {}
}, 2000);`

// errorPagePolicy is the Content-Security-Policy of errorPage.
var errorPagePolicy = func() string {
	sum := sha256.Sum256([]byte(again))
	return "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-" +
		base64.StdEncoding.EncodeToString(sum[:]) + "'; connect-src 'self'; base-uri 'none'; form-action 'none'"
}()

// wantsPage reports whether a person opened the address in a browser: programs and scripts do not ask for HTML.
func wantsPage(r *http.Request) bool {
	opens := r.Method == http.MethodGet || r.Method == http.MethodPost
	return opens && strings.Contains(r.Header.Get("Accept"), "text/html") && r.Header.Get("Authorization") == ""
}

// asPage returns the problem as a page, which tries again by itself if the problem is retryable.
func asPage(p *api.Problem, r *http.Request) []byte {
	var b bytes.Buffer
	var script template.JS
	if p.Retryable && r.Method == http.MethodGet {
		script = again
	}
	_ = errorPage.Execute(&b, struct { // cannot fail with these fields
		*api.Problem
		Again template.JS
		Home  bool
	}{p, script, r.URL.Path == api.SignIn})
	return b.Bytes()
}
