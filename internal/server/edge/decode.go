package edge

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/RelevanceAI/harvest/client/api"
	"github.com/RelevanceAI/harvest/client/errors"
)

// Body reads the whole body. It fails if the body is larger than limit.
func Body(w http.ResponseWriter, r *http.Request, limit int64) ([]byte, error) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, limit))
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		return nil, WithStatus(errors.Remedy(errors.Newf(errors.Invalid, "the request exceeds %d bytes", limit),
			"copy large data into a volume or the sandbox; upload the commits of a repository with POST "+
				api.Uploads), http.StatusRequestEntityTooLarge)
	}
	if err != nil {
		return nil, BrokeOff(err, "the request")
	}
	return data, nil
}

// BrokeOff returns the error for a body that could not be read: its sender stopped in the middle, unless err is a
// timeout.
func BrokeOff(err error, what string) error {
	if errors.KindOf(err) == errors.Timeout {
		return err
	}
	return errors.Explainf(err, errors.Canceled, "%s was cut off", what)
}

// DecodeBody strictly decodes a JSON body into v. An empty body is equivalent to {}.
func DecodeBody(w http.ResponseWriter, r *http.Request, limit int64, v any) error {
	data, err := Body(w, r, limit)
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	return Decode(data, v)
}

// Decode strictly decodes one JSON value. It returns Invalid and names an unknown field or a field of the wrong type.
func Decode(data []byte, v any) error {
	if !utf8.Valid(data) { // encoding/json would replace invalid bytes silently
		return errors.Remedy(errors.Newf(errors.Invalid, "the request is not valid UTF-8"),
			"send binary data in base64, or as a file")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return explainJSON(err)
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.Remedy(errors.Newf(errors.Invalid, "the request has data after its JSON value"),
			"send one JSON object")
	}
	return nil
}

func explainJSON(err error) error {
	return errors.Remedy(whichJSON(err), "see %s for the fields of the request", api.Docs)
}

func whichJSON(err error) error {
	var wrongType *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrongType) && wrongType.Field != "":
		return errors.Explainf(err, errors.Invalid, "invalid field %q: a JSON %s is not accepted", wrongType.Field,
			wrongType.Value)
	case errors.As(err, &wrongType):
		return errors.Explainf(err, errors.Invalid, "the request must be a JSON object, not a %s", wrongType.Value)
	case errors.As(err, &syntax):
		return errors.Explainf(err, errors.Invalid, "invalid JSON at byte %d", syntax.Offset)
	}
	if name, ok := strings.CutPrefix(err.Error(), "json: unknown field "); ok {
		return errors.Remedy(errors.Explainf(err, errors.Invalid, "unknown field %.100s", name),
			"check its spelling, or omit it")
	}
	return errors.Explainf(err, errors.Invalid, "invalid JSON")
}

// Seconds returns v as a duration. It returns Invalid if v is out of range; callers validate the value.
func Seconds(field string, v float64) (time.Duration, error) {
	if math.IsNaN(v) || math.Abs(v) > math.MaxInt64/float64(time.Second)/2 {
		return 0, errors.Remedy(errors.Newf(errors.Invalid, "invalid %s: %g", field, v),
			"give a number of seconds, such as 60")
	}
	return time.Duration(v * float64(time.Second)), nil
}

// Number returns the whole number in a query parameter, or the value of or if it is missing.
func Number(r *http.Request, name string, or, most int) (int, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return or, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > most {
		return 0, errors.Remedy(errors.Newf(errors.Invalid, "invalid ?%s=: want a number from 1 to %d, not %.40q", name,
			most, text), "correct it, or omit it")
	}
	return n, nil
}

// Flag returns the boolean in a query parameter, false if it is missing.
func Flag(r *http.Request, name string) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return false, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, errors.Remedy(errors.Newf(errors.Invalid, "invalid ?%s=: want true or false, not %.40q", name,
			text), "correct it, or omit it")
	}
	return v, nil
}

// Respond answers with v as JSON.
func Respond(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", api.TypeJSON)
	w.WriteHeader(status)
	Encode(w, v)
	return nil
}

// Encode writes v as a line of JSON. It ignores errors, since they mean that the client has disconnected.
func Encode(w io.Writer, v any) { _, _ = w.Write(append(Marshal(v), '\n')) }

// Marshal returns v, one of the structs of package api, as JSON. Encoding cannot fail, except for NaN and infinite
// numbers.
func Marshal(v any) []byte {
	data, err := json.Marshal(v)
	if err != nil {
		return []byte("null")
	}
	return data
}
