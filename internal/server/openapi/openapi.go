// Package openapi describes the routes of the HTTP API: as an OpenAPI document, and as a page.
package openapi

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

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
	"github.com/RelevanceAI/harvest/internal/base/pattern"
	"github.com/RelevanceAI/harvest/internal/server/edge"
)

// The OpenAPI document (https://spec.openapis.org/oas/v3.1.0) is generated from the same table as the router, so that
// they cannot differ.

type object = map[string]any

const (
	schemas    = "#/components/schemas/"
	problemRef = "#/components/responses/Problem"
)

// Document responds with the OpenAPI document of all routes.
func Document(w http.ResponseWriter, routes []edge.Route) error {
	doc, err := document(routes)
	if err != nil {
		return err
	}
	return edge.Respond(w, http.StatusOK, doc)
}

func document(routes []edge.Route) (object, error) {
	types := newTypes()
	paths := map[string]object{}
	for _, rt := range routes {
		path := strings.ReplaceAll(rt.Path, "...}", "}")
		if paths[path] == nil {
			paths[path] = object{}
		}
		paths[path][strings.ToLower(rt.Method)] = operation(rt, types)
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
			"description": "Durations are seconds and sizes bytes, as their names say. Times are RFC 3339 in UTC. " +
				"Lists are paged: pass next_cursor of a page to get the next one. " +
				"If a POST with an Idempotency-Key is repeated within a day, the server returns the first answer and " +
				"does nothing. Unknown fields are rejected.",
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
func operation(rt edge.Route, types *types) object {
	parameters := []object{}
	for _, m := range placeholder().FindAllStringSubmatch(rt.Path, -1) {
		parameters = append(parameters, object{"name": m[1], "in": "path", "required": true,
			"schema": object{"type": "string"}})
	}
	if rt.Query != "" {
		for p := range strings.SplitSeq(rt.Query, "; ") {
			name, about, _ := strings.Cut(p, ": ")
			parameters = append(parameters, object{"name": name, "in": "query", "description": about,
				"schema": object{"type": "string"}})
		}
	}
	if rt.Method == http.MethodPost && !rt.Raw {
		parameters = append(parameters, object{"name": api.HeaderIdempotency, "in": "header",
			"schema": object{"type": "string", "maxLength": 255}})
	}
	op := object{"operationId": id(rt), "summary": rt.Summary, "parameters": parameters, "tags": []string{tag(rt)}}
	if rt.Scope == "" {
		op["security"] = []object{}
	} else {
		op["description"] = "Requires the scope " + string(rt.Scope) + "."
	}
	switch {
	case rt.In != nil:
		op["requestBody"] = object{"content": object{api.TypeJSON: object{"schema": types.ref(rt.In)}}}
	case rt.RawIn != "":
		op["requestBody"] = object{"required": true, "content": object{rt.RawIn: object{}}}
	}
	op["responses"] = responses(rt, types)
	return op
}

func responses(rt edge.Route, types *types) object {
	content := object{}
	if rt.Out != nil {
		content[api.TypeJSON] = object{"schema": types.ref(rt.Out)}
	}
	if rt.RawOut != "" {
		content[rt.RawOut] = object{}
	}
	if rt.Events != "" {
		content[api.TypeEvents] = object{"schema": object{"type": "string", "description": rt.Events}}
	}
	status, about := rt.Status, http.StatusText(rt.Status)
	if rt.Socket != "" {
		status, about = http.StatusSwitchingProtocols, "A WebSocket: "+rt.Socket
	}
	success := object{"description": about}
	if len(content) > 0 {
		success["content"] = content
	}
	return object{fmt.Sprint(status): success, "default": object{"$ref": problemRef}}
}

// id is the operation's name in generated clients.
func id(rt edge.Route) string {
	var b strings.Builder
	b.WriteString(strings.ToLower(rt.Method))
	for word := range strings.FieldsFuncSeq(rt.Path, func(r rune) bool { return strings.ContainsRune("/{}.-_", r) }) {
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

func tag(rt edge.Route) string {
	parts := strings.Split(strings.Trim(rt.Path, "/"), "/")
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

// Page responds with a page that lists the routes.
func Page(w http.ResponseWriter, routes []edge.Route) error {
	var groups []docGroup
	for _, rt := range routes {
		i := slices.IndexFunc(groups, func(g docGroup) bool { return g.Name == tag(rt) })
		if i < 0 {
			groups = append(groups, docGroup{Name: tag(rt)})
			i = len(groups) - 1
		}
		groups[i].Routes = append(groups[i].Routes, doc(rt))
	}
	var b bytes.Buffer
	err := page.Execute(&b, object{"Groups": groups,
		"About": "Durations are seconds and sizes bytes. Times are RFC 3339 in UTC. Lists are paged. Errors are " +
			"application/problem+json."})
	if err != nil {
		return errors.Wrapf(err, "render the page")
	}
	return edge.SendPage(w, b.Bytes())
}

func doc(rt edge.Route) docRoute {
	d := docRoute{Method: rt.Method, Path: rt.Path, Summary: rt.Summary}
	add := func(label, text string) {
		if text != "" {
			d.Details = append(d.Details, label+text)
		}
	}
	add("scope ", string(rt.Scope))
	add("query ", rt.Query)
	if rt.In != nil {
		add("body ", typeName(reflect.TypeOf(rt.In)))
	}
	add("body ", rt.RawIn)
	if rt.Out != nil {
		add(fmt.Sprint(rt.Status)+" ", typeName(reflect.TypeOf(rt.Out)))
	}
	add("answer ", rt.RawOut)
	add("events ", rt.Events)
	add("WebSocket: ", rt.Socket)
	return d
}
