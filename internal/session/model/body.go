package model

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
)

// maxBody bounds a request whose body the gateway reads. OpenAI accepts 50 MB of files.
const maxBody = 64 << 20

// counter counts the bytes of a request.
type counter struct {
	io.ReadCloser
	n atomic.Int64 // an answer can end before its request does
}

// Read implements io.Reader.
func (c *counter) Read(b []byte) (int, error) {
	n, err := c.ReadCloser.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// read reads the model from the body, and asks for the usage. It returns the reason to refuse the request, or nil.
func (x *exchange) read() *Failure {
	invalid := func(status int, message string) *Failure {
		return &Failure{Status: status, Type: "invalid_request_error", Message: message}
	}
	if e := x.r.Header.Get("Content-Encoding"); e != "" && !strings.EqualFold(e, "identity") {
		return invalid(http.StatusUnsupportedMediaType, "send the request without Content-Encoding")
	}
	data, err := io.ReadAll(io.LimitReader(x.r.Body, maxBody+1))
	if err != nil {
		return invalid(http.StatusBadRequest, "the request ended early")
	}
	if len(data) > maxBody {
		return &Failure{Status: http.StatusRequestEntityTooLarge, Type: "request_too_large",
			Message: "the request has more than 64 MiB"}
	}
	// The names of fields must match exactly, as they do for the API. Hence no struct.
	body := map[string]json.RawMessage{}
	if json.Unmarshal(data, &body) != nil {
		return invalid(http.StatusBadRequest, "the request is not a JSON object")
	}
	_ = json.Unmarshal(body["model"], &x.model) // the API refuses another type
	var background bool
	if _ = json.Unmarshal(body["background"], &background); background { // its result would not be counted
		return invalid(http.StatusBadRequest, "background responses are not supported")
	}
	if x.to.chat && x.api.provider == OpenAI && withUsage(body) {
		x.drop = true
		if data, err = json.Marshal(body); err != nil {
			return invalid(http.StatusBadRequest, "the request is not a JSON object")
		}
	}
	x.r.Body, x.r.ContentLength, x.r.TransferEncoding = io.NopCloser(bytes.NewReader(data)), int64(len(data)), nil
	return nil
}
