package spec

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/RelevanceAI/harvest/client/errors"
)

// fields returns the JSON field names of a Request.
var fields = sync.OnceValue(func() []string {
	var names []string
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Request]()) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "-" {
			names = append(names, name)
		}
	}
	return names
})

// Decode decodes a Request from JSON. It returns Invalid and names every unknown field.
func Decode(data []byte) (Request, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(data, &top); err != nil {
		return Request{}, decodeError(err)
	}
	var p Problems
	for _, name := range slices.Sorted(maps.Keys(top)) {
		if !slices.Contains(fields(), name) {
			p.Invalidf("use one of "+strings.Join(fields(), ", "), "unknown field %.80q", name)
		}
	}
	if err := p.Err(); err != nil {
		return Request{}, err
	}
	known, err := json.Marshal(top)
	if err != nil {
		return Request{}, decodeError(err)
	}
	var req Request
	strict := json.NewDecoder(bytes.NewReader(known))
	strict.DisallowUnknownFields() // for the fields of volumes and network
	if err := strict.Decode(&req); err != nil {
		return Request{}, decodeError(err)
	}
	return req, nil
}

func decodeError(err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && wrongType.Field != "" {
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "invalid %s: a JSON %s is not accepted",
			wrongType.Field, wrongType.Value),
			"give it a %s", words[wrongType.Type.Kind()])
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "unknown field %.80s", name),
			"use name, path and read_only for volumes; mode, allow and deny for network; "+
				"bucket, prefix, mount_path, init, sync_on_terminate and secret for s3")
	}
	return errors.Remedy(errors.Explainf(err, errors.Invalid, "the request is not a JSON object"),
		`send an object such as {"image":"base"}`)
}

// words maps Go's kinds to JSON's names.
var words = map[reflect.Kind]string{
	reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "whole number", reflect.Int64: "whole number",
	reflect.Float64: "number",
	reflect.Map:     "object", reflect.Struct: "object", reflect.Slice: "list",
}
