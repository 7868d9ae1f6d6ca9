package edge

import (
	"bytes"
	"html/template"
	"net/http"
	"strings"

	"github.com/RelevanceAI/harvest/api"
)

// errorPage shows a problem as a page, for a person who opened an address in a browser.
var errorPage = template.Must(template.New("error").Parse(`<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{{.Detail}} · Harvest</title>
{{if .Again}}<meta http-equiv="refresh" content="2">{{end}}
<style>:root{color-scheme:light dark;background:Canvas;color:CanvasText}body{font:16px/1.5 system-ui,sans-serif;max-width:34rem;margin:20vh auto;padding:1rem}h1{font-size:1.2rem;overflow-wrap:anywhere}small{opacity:.7}</style></head>
<body><main><h1>{{.Detail}}</h1>{{if .Remedy}}<p>Next: {{.Remedy}}.</p>{{end}}{{if .Again}}<p>This page tries again by itself.</p>{{end}}{{if .Home}}<p><a href="./">Go to Harvest</a></p>{{end}}
{{if .RequestID}}<p><small>Request {{.RequestID}}</small></p>{{end}}</main></body></html>
`))

// wantsPage reports whether a person opened the address in a browser: programs and scripts do not ask for HTML.
func wantsPage(r *http.Request) bool {
	opens := r.Method == http.MethodGet || r.Method == http.MethodPost
	return opens && strings.Contains(r.Header.Get("Accept"), "text/html") && r.Header.Get("Authorization") == ""
}

// asPage returns the problem as a page. The page reloads itself if the problem is retryable.
func asPage(p *api.Problem, r *http.Request) []byte {
	var b bytes.Buffer
	_ = errorPage.Execute(&b, struct { // cannot fail with these fields
		*api.Problem
		Again, Home bool
	}{p, p.Retryable && r.Method == http.MethodGet, r.URL.Path == api.SignIn})
	return b.Bytes()
}
