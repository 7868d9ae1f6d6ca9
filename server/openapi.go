package server

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/invopop/jsonschema"

	"github.com/RelevanceAI/harvest/api"
	"github.com/RelevanceAI/harvest/errors"
	"github.com/RelevanceAI/harvest/internal/pattern"
)

// The OpenAPI document (https://spec.openapis.org/oas/v3.1.0) is generated from the same table as the router, so that
// they cannot differ.

type object = map[string]any

const (
	schemas    = "#/components/schemas/"
	problemRef = "#/components/responses/Problem"
)

// openAPI responds with the document.
func (s *Server) openAPI(w http.ResponseWriter, _ *http.Request) error {
	doc, err := s.document()
	if err != nil {
		return err
	}
	return respond(w, http.StatusOK, doc)
}

func (s *Server) document() (object, error) {
	types := newTypes()
	paths := map[string]object{}
	for _, rt := range s.routes() {
		path := strings.ReplaceAll(rt.path, "...}", "}")
		if paths[path] == nil {
			paths[path] = object{}
		}
		paths[path][strings.ToLower(rt.method)] = rt.operation(types)
	}
	problem := types.ref(api.Problem{})
	all, err := types.schemas()
	if err != nil {
		return nil, err
	}
	return object{
		"openapi":           "3.1.0",
		"jsonSchemaDialect": "https://json-schema.org/draft/2020-12/schema",
		"info": object{
			"title": "Harvest", "version": "1", "summary": "Isolated computers for code and agents",
			"description": "Durations are seconds and sizes bytes, as their names say. Times are RFC 3339 in UTC. Lists are paged: pass next_cursor of a page to get the next one. " +
				"If a POST with an Idempotency-Key is repeated within a day, the server returns the first answer and does nothing. Unknown fields are rejected.",
			"license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
		},
		"security": []object{{"key": []string{}}, {"cookie": []string{}}},
		"paths":    paths,
		"components": object{
			"schemas": all,
			"responses": object{"Problem": object{
				"description": "Description of the error (RFC 9457).",
				"content":     object{api.TypeProblem: object{"schema": problem}},
			}},
			"securitySchemes": object{
				"key": object{"type": "http", "scheme": "bearer",
					"description": "API key, created with harvest key create NAME."},
				"cookie": object{"type": "apiKey", "in": "cookie", "name": "harvest",
					"description": "Session cookie of a browser that has signed in."},
			},
		},
	}, nil
}

var placeholder = pattern.New(`\{([a-z_]+)(?:\.\.\.)?\}`)

// operation returns the description of a route.
func (rt route) operation(types *types) object {
	parameters := []object{}
	for _, m := range placeholder().FindAllStringSubmatch(rt.path, -1) {
		parameters = append(parameters, object{"name": m[1], "in": "path", "required": true,
			"schema": object{"type": "string"}})
	}
	if rt.query != "" {
		for p := range strings.SplitSeq(rt.query, "; ") {
			name, about, _ := strings.Cut(p, ": ")
			parameters = append(parameters, object{"name": name, "in": "query", "description": about,
				"schema": object{"type": "string"}})
		}
	}
	if rt.method == http.MethodPost && !rt.raw {
		parameters = append(parameters, object{"name": api.HeaderIdempotency, "in": "header",
			"schema": object{"type": "string", "maxLength": 255}})
	}
	op := object{"operationId": rt.id(), "summary": rt.summary, "parameters": parameters, "tags": []string{rt.tag()}}
	if rt.scope == "" {
		op["security"] = []object{}
	} else {
		op["description"] = "Requires the scope " + string(rt.scope) + "."
	}
	switch {
	case rt.in != nil:
		op["requestBody"] = object{"content": object{api.TypeJSON: object{"schema": types.ref(rt.in)}}}
	case rt.rawIn != "":
		op["requestBody"] = object{"required": true, "content": object{rt.rawIn: object{}}}
	}
	op["responses"] = rt.responses(types)
	return op
}

func (rt route) responses(types *types) object {
	content := object{}
	if rt.out != nil {
		content[api.TypeJSON] = object{"schema": types.ref(rt.out)}
	}
	if rt.rawOut != "" {
		content[rt.rawOut] = object{}
	}
	if rt.events != "" {
		content[api.TypeEvents] = object{"schema": object{"type": "string", "description": rt.events}}
	}
	status, about := rt.status, http.StatusText(rt.status)
	if rt.socket != "" {
		status, about = http.StatusSwitchingProtocols, "A WebSocket: "+rt.socket
	}
	success := object{"description": about}
	if len(content) > 0 {
		success["content"] = content
	}
	return object{fmt.Sprint(status): success, "default": object{"$ref": problemRef}}
}

// id is the operation's name in generated clients.
func (rt route) id() string {
	var b strings.Builder
	b.WriteString(strings.ToLower(rt.method))
	for word := range strings.FieldsFuncSeq(rt.path, func(r rune) bool { return strings.ContainsRune("/{}.-_", r) }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

func (rt route) tag() string {
	parts := strings.Split(strings.Trim(rt.path, "/"), "/")
	switch {
	case parts[0] == "v1" && len(parts) > 1:
		return strings.TrimSuffix(parts[1], ".json")
	case parts[0] == "api":
		return "modal"
	}
	return "system"
}

// types collects the schemas of Go types.
type types struct {
	reflector jsonschema.Reflector
	all       object
	err       error
}

func newTypes() *types {
	t := &types{all: object{}}
	t.reflector = jsonschema.Reflector{
		AllowAdditionalProperties: true, // fields may be added
		Anonymous:                 true,
		Namer:                     typeName,
		Mapper: func(typ reflect.Type) *jsonschema.Schema {
			if typ == reflect.TypeFor[time.Time]() {
				return &jsonschema.Schema{Type: "string", Format: "date-time"}
			}
			return nil
		},
	}
	return t
}

// typeName names a type as its struct; List[api.Sandbox] is SandboxList.
func typeName(typ reflect.Type) string {
	name, param, generic := strings.Cut(typ.Name(), "[")
	if !generic {
		return name
	}
	param = strings.TrimSuffix(param, "]")
	return param[strings.LastIndexAny(param, "./")+1:] + name
}

// ref returns a reference to the schema of v's type.
func (t *types) ref(v any) object {
	name := typeName(reflect.TypeOf(v))
	if t.all[name] == nil {
		text, err := json.Marshal(t.reflector.Reflect(v))
		var schema struct {
			Defs object `json:"$defs"`
		}
		if err == nil {
			err = json.Unmarshal(bytes.ReplaceAll(text, []byte(`"#/$defs/`), []byte(`"`+schemas)), &schema)
		}
		if err != nil || schema.Defs[name] == nil {
			t.err = errors.Join(t.err, errors.Wrapf(err, "describe %s", name), errors.Errorf("no schema for %s", name))
			return object{}
		}
		for n, def := range schema.Defs {
			t.all[n] = spelled(def)
		}
	}
	return object{"$ref": schemas + name}
}

// spelled replaces the schema true, which allows anything, with the equivalent {}: many client generators support
// only the latter.
func spelled(schema any) any {
	def, ok := schema.(object)
	if !ok {
		if schema == true {
			return object{}
		}
		return schema
	}
	for _, key := range []string{"items", "additionalProperties"} {
		// All generators support a boolean as additionalProperties.
		if _, has := def[key]; has && (key == "items" || def[key] != true) {
			def[key] = spelled(def[key])
		}
	}
	if properties, ok := def["properties"].(object); ok {
		for name, property := range properties {
			properties[name] = spelled(property)
		}
	}
	return def
}

func (t *types) schemas() (object, error) { return t.all, t.err }

var page = template.Must(template.New("docs").Parse(`<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Harvest API</title>
<meta name="viewport" content="width=device-width"><style>
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222;background:#fff}
h2{margin-top:2.5rem;border-bottom:1px solid #ddd}h3{font:600 1rem ui-monospace,monospace;margin-bottom:0}
p{margin:.2rem 0}code{font-size:.9em}small{color:#666}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#181818}h2{border-color:#444}small{color:#999}}
</style></head><body><h1>Harvest API</h1>
<p>{{.About}}</p><p>The same as a document for programs: <a href="/v1/openapi.json">/v1/openapi.json</a>.</p>
<p>Send a key as <code>Authorization: Bearer hv_…</code>; <code>harvest key create NAME</code> makes one.</p>
{{range .Groups}}<h2>{{.Name}}</h2>{{range .Routes}}<h3>{{.Method}} {{.Path}}</h3><p>{{.Summary}}.
{{with .Details}}<br><small>{{range $i, $d := .}}{{if $i}} · {{end}}{{$d}}{{end}}</small>{{end}}</p>{{end}}{{end}}
</body></html>
`))

type docGroup struct {
	Name   string
	Routes []docRoute
}

type docRoute struct {
	Method, Path, Summary string
	Details               []string
}

// docs responds with a page that lists the routes.
func (s *Server) docs(w http.ResponseWriter, _ *http.Request) error {
	var groups []docGroup
	for _, rt := range s.routes() {
		i := slices.IndexFunc(groups, func(g docGroup) bool { return g.Name == rt.tag() })
		if i < 0 {
			groups = append(groups, docGroup{Name: rt.tag()})
			i = len(groups) - 1
		}
		groups[i].Routes = append(groups[i].Routes, rt.doc())
	}
	var b bytes.Buffer
	err := page.Execute(&b, object{"Groups": groups,
		"About": "Durations are seconds and sizes bytes. Times are RFC 3339 in UTC. Lists are paged. Errors are application/problem+json."})
	if err != nil {
		return errors.Wrapf(err, "render the page")
	}
	return sendPage(w, b.Bytes())
}

func (rt route) doc() docRoute {
	d := docRoute{Method: rt.method, Path: rt.path, Summary: rt.summary}
	add := func(label, text string) {
		if text != "" {
			d.Details = append(d.Details, label+text)
		}
	}
	add("scope ", string(rt.scope))
	add("query ", rt.query)
	if rt.in != nil {
		add("body ", typeName(reflect.TypeOf(rt.in)))
	}
	add("body ", rt.rawIn)
	if rt.out != nil {
		add(fmt.Sprint(rt.status)+" ", typeName(reflect.TypeOf(rt.out)))
	}
	add("answer ", rt.rawOut)
	add("events ", rt.events)
	add("WebSocket: ", rt.socket)
	return d
}

// sendPage sends a page that loads nothing from elsewhere and cannot be framed.
func sendPage(w http.ResponseWriter, page []byte) error {
	return sendForm(w, page, "'none'", "no-referrer")
}

// sendForm sends a page with forms that may be submitted to action. With the referrer policy "no-referrer", browsers
// send no origin with them.
func sendForm(w http.ResponseWriter, page []byte, action, referrer string) error {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy",
		"default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action "+action)
	h.Set("Referrer-Policy", referrer)
	_, err := w.Write(page)
	return errors.Wrapf(err, "send a page")
}
